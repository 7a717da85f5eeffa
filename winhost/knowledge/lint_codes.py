"""The codes of all linters, and the story of each, as `winhost explain` tells it."""

from collections.abc import Mapping
from importlib.resources import files
from string import Formatter

from winhost.findings.finding import Row, rows_of
from winhost.knowledge import catalogue
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.model.reason import Category, Explanation, Remedy, Severity

# By the linter, the package that has its rows.
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
    """Every code that a linter prints, with its row."""
    found: dict[str, Row] = {}
    for linter, package in _PACKAGES.items():
        rest = "serve" if package == _PACKAGES["serve"] else linter
        named = load_catalogue(files("winhost").joinpath(package, "findings.yaml")).get("_linters", {})
        for code, row in rows_of(f"winhost.{package}").items():
            if linter in ([each for each, codes in named.items() if code in codes.split()] or [rest]):
                found[f"{linter}.{code}"] = row
    return found


def explain_lint(code: str) -> Explanation:
    """The story of a code among `lint_codes`."""
    row, linter = lint_codes()[code], code.partition(".")[0]
    advice = _told(row.do)
    others = [name for name, other in lint_codes().items() if name.startswith(f"{linter}.") and name != code]
    near = [name for name in others if {*lint_codes()[name].evidence} & {*row.evidence}]
    return Explanation(
        code=code,
        sentence=_told(row.says),
        means=f"{_MEANS[row.severity]} `winhost lint` finds it in a file, as {_COUNTED[row.severity.category]}.",
        risks=(),
        remedy=Remedy(None, advice) if advice else None,
        evidence=catalogue.evidence_of(row.evidence),
        related=tuple(near[: catalogue.MOST_RELATED]),
    )


def _told(text: str) -> str:
    """A sentence without a finding: its words are named, and what may be at the end of a word is left out."""
    told = ""
    for literal, name, _, _ in Formatter().parse(text):
        told += literal
        if name == "near":
            told += "."
        elif name and not (told[-1:].isalnum() or told.endswith(">")):
            told += f"<{name}>"
    return told
