"""The codes of all linters, and the explanation of each for `winhost explain`."""

from collections.abc import Mapping
from importlib.resources import files
from string import Formatter

from winhost.findings.finding import Row, rows_of
from winhost.knowledge import catalogue
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.model.reason import Category, Explanation, Remedy, Severity

# The package that has the rows of a linter.
_PACKAGES = {
    "wslconfig": "wslconfig",
    "wslconf": "wslconfig",
    "serve": "recipes",
    "docker-daemon": "recipes",
    "cdi": "recipes",
    "autoinstall": "autoinstall",
}
_MEANS = {
    Severity.DANGEROUS: "It works, and opens, loses or destroys something.",
    Severity.UNSUPPORTED: "It does not start, waits for somebody, lacks something that it needs, or is not as written.",
    Severity.DEGRADED: "What is written has no effect, or another name now, and something is lost by that.",
    Severity.UNVERIFIED: "Whether it holds depends on something that is not known.",
    Severity.NOTE: "It does what is written, which may not be all that you expect, or could be better.",
}


_COUNTED = {Category.DEFECT: "a defect", Category.ADVICE: "advice"}


@once
def lint_codes() -> Mapping[str, Row]:
    """Return every code that a linter prints, with its row."""
    rows: dict[str, Row] = {}
    for linter, package in _PACKAGES.items():
        default = "serve" if package == _PACKAGES["serve"] else linter
        codes_of_linters = load_catalogue(files("winhost").joinpath(package, "findings.yaml")).get("_linters", {})
        for code, row in rows_of(f"winhost.{package}").items():
            if linter in ([each for each, codes in codes_of_linters.items() if code in codes.split()] or [default]):
                rows[f"{linter}.{code}"] = row
    return rows


def explain_lint(code: str) -> Explanation:
    """Return the explanation of a code of `lint_codes`."""
    row, linter = lint_codes()[code], code.partition(".")[0]
    advice = _name_placeholders(row.do)
    others = [name for name in lint_codes() if name.startswith(f"{linter}.") and name != code]
    related = [name for name in others if {*lint_codes()[name].evidence} & {*row.evidence}]
    return Explanation(
        code=code,
        sentence=_name_placeholders(row.says),
        means=f"{_MEANS[row.severity]} `winhost lint` finds it in a file, as {_COUNTED[row.severity.category]}.",
        risks=(),
        remedy=Remedy(None, advice) if advice else None,
        evidence=catalogue.evidence_of(row.evidence),
        related=tuple(related[: catalogue.MAX_RELATED]),
    )


def _name_placeholders(text: str) -> str:
    """Return a sentence with `<name>` for each placeholder. A placeholder that only ends a word, such as a plural, is
    dropped.
    """
    result = ""
    for literal, name, _, _ in Formatter().parse(text):
        result += literal
        if name == "near":
            result += "."
        elif name and not (result[-1:].isalnum() or result.endswith(">")):
            result += f"<{name}>"
    return result
