"""What is found in a recipe: code, severity, place and sentence, what to do, and what that rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from importlib.resources import files
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.model.catalogue_file import load_catalogue
from winhost.model.category import Category
from winhost.model.errors import visible
from winhost.model.masking import masked
from winhost.model.once import once
from winhost.model.reason import Evidence
from winhost.recipes.recipe_text import TextEdit


class RecipeSeverity(StrEnum):
    """See findings.yaml."""

    WRONG = "wrong"
    DANGEROUS = "dangerous"
    MISSING = "missing"
    RENAMED = "renamed"
    IGNORED = "ignored"
    NOTE = "note"


@dataclass(frozen=True)
class FindingRow:
    """A row of findings.yaml. find, mend: see recipe_rows.py."""

    code: str
    severity: RecipeSeverity
    says: str
    do: str = ""
    evidence: tuple[str, ...] = ()
    find: Mapping[str, Any] = field(default_factory=dict)
    mend: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """Before it is told. place: in the file; edits: what --fix writes; doubt: what is not known of the target."""

    code: str
    place: int
    words: Mapping[str, object] = field(default_factory=dict)
    edits: Sequence[TextEdit] = ()
    doubt: str = ""


@dataclass(frozen=True)
class RecipeFinding:
    """One thing in a recipe. where: which engine of it; do: what to do; fixed: --fix does it by itself; unverified:
    what is not known and could make it untrue here.
    """

    code: str
    category: Category
    severity: RecipeSeverity
    line: int
    column: int
    where: str
    sentence: str
    do: str
    fixed: bool
    unverified: str | None
    evidence: tuple[Evidence, ...]


def told(
    found: Found, prefix: str, where: str, position: tuple[int, int], secrets: Sequence[str] = ()
) -> RecipeFinding:
    """For people and programs: secrets are masked, and nothing in it moves a cursor."""
    row = rows()[found.code]
    words = {name: word if name == OWN else _shown(word, secrets) for name, word in found.words.items()}
    return RecipeFinding(
        code=f"{prefix}.{found.code}",
        category=Category.of(row.severity),
        severity=row.severity,
        line=position[0],
        column=position[1],
        where=hidden(visible(where), secrets),
        sentence=row.says.format(**words),
        do=row.do.format(**words),
        fixed=bool(found.edits),
        unverified=found.doubt or None,
        evidence=tuple(catalogue.evidence()[key] for key in row.evidence),
    )


def _shown(word: object, secrets: Sequence[str]) -> object:
    if not isinstance(word, str):
        return word
    text = visible(hidden(word, secrets))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 100
OWN = "instead"  # a sentence of ours


def hidden(text: str, secrets: Sequence[str] = ()) -> str:
    """Without what looks like a secret, and without those that the recipe sets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return masked(text)


@once
def rows() -> Mapping[str, FindingRow]:
    """By code."""
    read: dict[str, dict[str, Any]] = load_catalogue(files(__package__).joinpath("findings.yaml"))
    return {code: _row(code, row) for code, row in read.items()}


def _row(code: str, row: Mapping[str, Any]) -> FindingRow:
    severity = RecipeSeverity(row["severity"])
    return FindingRow(code, **{**row, "severity": severity, "evidence": tuple(row.get("evidence", ()))})
