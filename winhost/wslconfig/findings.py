"""A lint finding: its code, severity, line and column, and its sentence from findings.yaml."""

from collections.abc import Mapping
from enum import StrEnum
from importlib.resources import files

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.category import Category
from winhost.model.errors import visible
from winhost.model.once import once
from winhost.wslconfig.format import Dialect


class LintSeverity(StrEnum):
    """What WSL does about it; see findings.yaml."""

    NOTE = "note"
    IGNORED = "ignored"
    NO_NETWORK = "no-network"
    ERROR = "error"


@dataclass(frozen=True)
class LintFinding:
    """One problem in a file. Line and column count from 1."""

    code: str
    category: Category
    severity: LintSeverity
    line: int
    column: int
    sentence: str


def finding(dialect: Dialect, code: str, position: tuple[int, int], /, **words: object) -> LintFinding:
    """The finding of this code; control characters in `words`, which come from the file, are escaped."""
    entry = _sentences()[code]
    sentence = entry["says"].format(**{name: visible(str(word)) for name, word in words.items()})
    severity = LintSeverity(entry["severity"])
    return LintFinding(f"{dialect.name}.{code}", Category.of(severity), severity, *position, sentence)


def codes() -> list[str]:
    """The codes of findings, without the name of the file before the dot."""
    return list(_sentences())


@once
def _sentences() -> Mapping[str, Mapping[str, str]]:
    sentences: Mapping[str, Mapping[str, str]] = load_catalogue(files(__package__).joinpath("findings.yaml"))
    return sentences
