"""What a rule finds in a file, and the rows that say it: sentence, severity, what to do and evidence in one place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from importlib.resources import files
from typing import Any, TypeVar

from winhost.core.dataclass import dataclass
from winhost.findings.condition import When
from winhost.knowledge import catalogue
from winhost.model.catalogue_file import load_catalogue
from winhost.model.errors import visible
from winhost.model.masking import masked
from winhost.model.reason import Finding, Severity

OWN = "instead"  # the word of a finding that is a sentence of ours, and is neither escaped nor cut
_LONGEST = 200
C = TypeVar("C")


@dataclass(frozen=True, order=True)
class TextEdit:
    """What is written instead of the characters from start to end."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Found:
    """What a rule found, before it is told. place: an offset in the text; words: what its sentence names; edits: what
    --fix writes; doubt: what is not known and could make it untrue here.
    """

    code: str
    place: int
    words: Mapping[str, object] = field(default_factory=dict)
    edits: Sequence[TextEdit] = ()
    doubt: str = ""


@dataclass(frozen=True)
class FileFinding(Finding):
    """A finding in a file. Line and column count from 1.

    subject: the engine, or the path of the key; remedy: what to do in words, None if the sentence says it; fixed: --fix
    does it; lacks: what is not known and could make it untrue.
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
    when: When = field(default_factory=dict)
    mend: Mapping[str, Any] = field(default_factory=dict)
    case: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """The rows of a linter: `findings.yaml` in its package. `_all` is there what a row has unless it says otherwise,
    `_basis` the same of evidence that is written within a row; `_linters` names the codes of those that share the rows.
    """

    package: str

    @cached_property
    def _written(self) -> Mapping[str, Any]:
        read: Mapping[str, Any] = load_catalogue(files(self.package).joinpath("findings.yaml"))
        return read

    @cached_property
    def _read(self) -> Mapping[str, Row]:
        shared, basis = self._written.get("_all", {}), self._written.get("_basis", {})
        rows = {code: row for code, row in self._written.items() if not code.startswith("_")}
        return {code: _row(code, {**shared, **row}, basis) for code, row in rows.items()}

    def __getitem__(self, code: str) -> Row:
        return self._read[code]

    def linters(self, code: str, default: str) -> Sequence[str]:
        """The linters that print this code; default: the one of a code that `_linters` does not name."""
        named = self._written.get("_linters", {})
        return [linter for linter, codes in named.items() if code in codes.split()] or [default]

    def all(self) -> Mapping[str, Row]:
        """By code, in their order."""
        return self._read

    def tell(
        self,
        prefix: str,
        found: Found,
        position: tuple[int, int],
        where: str = "",
        secrets: Sequence[str] = (),
    ) -> FileFinding:
        """For people and programs: secrets are masked, and nothing in it moves a cursor."""
        row = self[found.code]
        words = {name: word if name == OWN else _shown(word, secrets) for name, word in found.words.items()}
        return FileFinding(
            code=f"{prefix}.{found.code}",
            severity=row.severity,
            observed="",
            subject=hidden(visible(where)[:_LONGEST], secrets),
            remedy=row.do.format(**words) or None,
            evidence=row.evidence,
            sentence=row.says.format(**words),
            lacks=found.doubt or None,
            line=position[0],
            column=position[1],
            fixed=bool(found.edits),
        )


def run(
    rules: Iterable[Callable[[C], Iterable[FileFinding]]], context: C, before: Iterable[FileFinding] = ()
) -> list[FileFinding]:
    """All that rules find in a file, with what was found before it could be read as one, by line and column."""
    found = [*before, *(each for rule in rules for each in rule(context))]
    return sorted(found, key=lambda each: (each.line, each.column))


def _row(code: str, written: Mapping[str, Any], basis: Mapping[str, Any]) -> Row:
    cited = [each if isinstance(each, str) else {**basis, **each} for each in written.get("evidence", ())]
    return Row(code, **catalogue.typed(code, {**written, "evidence": cited}))


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
