"""Findings in a file: what its rules observe, the rows of the catalogue that say it, and the one runner of all linters.

A rule takes what it is about (a file, an engine) and yields what it observed. Sentence, severity, remedy and evidence
stand in the row of its code.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar

from winhost.core.dataclass import dataclass
from winhost.findings.catalogue import Catalogue, typed
from winhost.findings.condition import Ask, Condition, When, holding, meets
from winhost.model.errors import visible
from winhost.model.masking import masked
from winhost.model.reason import Finding, Remedy, Severity

Position: TypeAlias = tuple[int, int]
"""Line and column, counted from 1."""
OWN = "instead"  # the word of a finding that is a sentence of ours, and is neither escaped nor cut
_LONGEST = 200
C = TypeVar("C")


@dataclass(frozen=True, order=True)
class TextEdit:
    """Text that replaces the characters from start to end."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Found:
    """A rule's observation, before it becomes a finding. at: an offset in the text, or a position; words: the names
    in its sentence; edits: what --fix writes; doubt: what is not known and could make it untrue here; where: the
    engine, or the path of the key.
    """

    code: str
    at: int | Position
    words: Mapping[str, object] = field(default_factory=dict)
    edits: Sequence[TextEdit] = ()
    doubt: str = ""
    where: str = ""


@dataclass(frozen=True)
class FileFinding(Finding):
    """A finding in a file. Line and column count from 1.

    subject: the engine, or the path of the key, empty where its sentence names it; fixed: --fix does it; lacks: what is
    not known and could make it untrue. observed is empty: what a linter saw are the words at this position, which its
    sentence quotes as far as they may be shown.
    """

    line: int = 1
    column: int = 1
    fixed: bool = False


@dataclass(frozen=True)
class Row:
    """A finding as its catalogue has it. find, when: see docs/conditions.md; mend: what --fix writes; case: a file in
    which it is found, for tests.
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
    """The rows of a linter: `findings.yaml` in its package, which is not imported for that: a tab waits for them."""
    file = files("winhost").joinpath(package.removeprefix("winhost."), "findings.yaml")
    return Catalogue(file, lambda code, row: Row(code, **typed(code, row)))


def run(rules: Iterable[Callable[[C], Iterable[Found]]], about: C) -> list[Found]:
    """All that rules observe in what they are about, rule by rule."""
    return [each for rule in rules for each in rule(about)]


def at_keys(rows: Rows, ask: Ask) -> Iterator[tuple[Row, str]]:
    """Yield the rows about a key of a file (`find: {key: …}`) that hold there, with the key."""
    about = (
        row
        for row in rows.values()
        if (key := row.find.get("key"))
        and ("value" not in row.find or any(meets(answer, row.find["value"]) for answer in ask(key)))
    )
    for row, _ in holding(about, ask, "nothing"):
        yield row, row.find["key"]


def tell(
    rows: Rows,
    prefix: str,
    found: Iterable[Found],
    position: Callable[[int], Position] = lambda offset: (1, offset + 1),
    secrets: Sequence[str] = (),
) -> list[FileFinding]:
    """Turn observations into findings in the order of the text, with secrets masked and control characters shown.

    position: line and column of an offset.
    """
    told = [_told(rows[each.code], f"{prefix}.{each.code}", each, position, secrets) for each in found]
    return sorted(told, key=lambda each: (each.line, each.column))


def _told(
    row: Row, code: str, found: Found, position: Callable[[int], Position], secrets: Sequence[str]
) -> FileFinding:
    words = {name: word if name == OWN else _shown(word, secrets) for name, word in found.words.items()}
    line, column = position(found.at) if isinstance(found.at, int) else found.at
    return FileFinding(
        code=code,
        severity=row.severity,
        subject=hidden(visible(found.where)[:_LONGEST], secrets),
        observed="",
        sentence=row.says.format(**words),
        remedy=Remedy(None, do) if (do := row.do.format(**words)) else None,
        evidence=row.evidence,
        lacks=found.doubt or None,
        line=line,
        column=column,
        fixed=bool(found.edits),
    )


def _shown(word: object, secrets: Sequence[str]) -> object:
    if isinstance(word, int | float):
        return word
    text = visible(hidden(str(word), secrets))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def hidden(text: str, secrets: Sequence[str] = ()) -> str:
    """Without what looks like a secret, and without those that the file sets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return masked(text)
