"""What is said of a file: a code, how bad it is, where, and the sentence of findings.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files

import yaml

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
    """Something in a file that is not as its author will have thought. Line and column count from 1."""

    code: str
    severity: LintSeverity
    line: int
    column: int
    sentence: str


def finding(dialect: Dialect, code: str, place: tuple[int, int], /, **words: object) -> LintFinding:
    """With the sentence of its code; what is from the file is shown in it, not obeyed."""
    said = _sentences()[code]
    sentence = said["says"].format(**{name: visible(str(word)) for name, word in words.items()})
    return LintFinding(f"{dialect.name}.{code}", LintSeverity(said["severity"]), *place, sentence)


def codes() -> list[str]:
    """What follows the point in the codes of findings."""
    return list(_sentences())


@once
def _sentences() -> Mapping[str, Mapping[str, str]]:
    text = files(__package__).joinpath("findings.yaml").read_text(encoding="utf-8")
    said: Mapping[str, Mapping[str, str]] = yaml.load(text, yaml.CSafeLoader)
    return said
