"""Findings in a file: the observations of rules, the rows of the catalogue, and the runner that all linters share.

A rule takes its subject (a file, an engine) and yields observations. The row of an observation's code has the sentence,
severity, remedy and evidence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar

from winhost.core.dataclass import dataclass
from winhost.findings.catalogue import Catalogue, parse_row
from winhost.findings.condition import Ask, Condition, When, matches, matching_rows
from winhost.model.errors import visible
from winhost.model.masking import masked
from winhost.model.reason import Finding, Remedy, Severity

Position: TypeAlias = tuple[int, int]
"""Line and column, counted from 1."""
UNESCAPED_VALUE = "instead"  # the value of an observation that winhost wrote itself: neither escaped nor shortened
_MAX_LENGTH = 200
S = TypeVar("S")


@dataclass(frozen=True, order=True)
class TextEdit:
    """Text that replaces the characters from start to end."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Observation:
    """An observation of a rule, before it becomes a finding.

    position: an offset in the text, or line and column; values: for the placeholders of the row's sentence; edits: what
    --fix writes; doubt: what is not known and could make the observation untrue; subject: the engine, or the path of
    the key.
    """

    code: str
    position: int | Position
    values: Mapping[str, object] = field(default_factory=dict)
    edits: Sequence[TextEdit] = ()
    doubt: str = ""
    subject: str = ""


@dataclass(frozen=True)
class FileFinding(Finding):
    """A finding in a file. Line and column count from 1.

    subject: the engine, or the path of the key; empty where the sentence names it; fixed: --fix mends it; lacks: what
    is not known and could make the finding untrue. `observed` is empty: the sentence quotes the text at this position,
    as far as that may be shown.
    """

    line: int = 1
    column: int = 1
    fixed: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a linter's catalogue. find, when: see docs/conditions.md; mend: what --fix writes; case: for tests, a
    file that has this finding.
    """

    code: str
    severity: Severity
    says: str
    do: str = ""
    evidence: tuple[str, ...] = ()
    find: Mapping[str, Any] = field(default_factory=dict)
    when: When = field(default_factory=Condition)
    mend: Mapping[str, Any] = field(default_factory=dict)
    case: Mapping[str, Any] = field(default_factory=dict)


Rows: TypeAlias = Catalogue[Row]


def rows_of(package: str) -> Rows:
    """Return the rows of a linter: `findings.yaml` in its package. The package is not imported, so that shell
    completion stays fast.
    """
    file = files("winhost").joinpath(package.removeprefix("winhost."), "findings.yaml")
    return Catalogue(file, lambda code, row: Row(code, **parse_row(code, row)))


def run_rules(rules: Iterable[Callable[[S], Iterable[Observation]]], subject: S) -> list[Observation]:
    """Return the observations of all rules about a subject, in the order of the rules."""
    return [observation for rule in rules for observation in rule(subject)]


def matching_key_rows(rows: Rows, ask: Ask) -> Iterator[tuple[Row, str]]:
    """Yield each row about a key of the file (`find: {key: …}`) whose condition holds, with that key."""
    candidates = (
        row
        for row in rows.values()
        if (key := row.find.get("key"))
        and ("value" not in row.find or any(matches(answer, row.find["value"]) for answer in ask(key)))
    )
    for row, _ in matching_rows(candidates, ask, "nothing"):
        yield row, row.find["key"]


def to_findings(
    rows: Rows,
    prefix: str,
    observations: Iterable[Observation],
    position: Callable[[int], Position] = lambda offset: (1, offset + 1),
    secrets: Sequence[str] = (),
) -> list[FileFinding]:
    """Turn observations into findings in the order of the text. Secrets are masked and control characters escaped.

    position: maps an offset to line and column.
    """
    findings = [_to_finding(rows[each.code], f"{prefix}.{each.code}", each, position, secrets) for each in observations]
    return sorted(findings, key=lambda each: (each.line, each.column))


def _to_finding(
    row: Row, code: str, observation: Observation, position: Callable[[int], Position], secrets: Sequence[str]
) -> FileFinding:
    values = {
        name: value if name == UNESCAPED_VALUE else _printable(value, secrets)
        for name, value in observation.values.items()
    }
    at = observation.position
    line, column = position(at) if isinstance(at, int) else at
    return FileFinding(
        code=code,
        severity=row.severity,
        subject=mask_secrets(visible(observation.subject)[:_MAX_LENGTH], secrets),
        observed="",
        sentence=row.says.format(**values),
        remedy=Remedy(None, do) if (do := row.do.format(**values)) else None,
        evidence=row.evidence,
        lacks=observation.doubt or None,
        line=line,
        column=column,
        fixed=bool(observation.edits),
    )


def _printable(value: object, secrets: Sequence[str]) -> object:
    if isinstance(value, int | float):
        return value
    text = visible(mask_secrets(str(value), secrets))
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"


def mask_secrets(text: str, secrets: Sequence[str] = ()) -> str:
    """Replace the given secrets, and everything that looks like one, by `***`."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return masked(text)
