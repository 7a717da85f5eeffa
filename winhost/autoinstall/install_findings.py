"""What is found in an autoinstall file: its code and effect, its sentence, what to do, and what shows it."""

from collections.abc import Mapping
from enum import StrEnum
from importlib.resources import files
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.category import Category
from winhost.model.errors import visible
from winhost.model.once import once


class InstallEffect(StrEnum):
    """What comes of it; see autoinstall_findings.yaml."""

    WIPES = "wipes"
    FAILS = "fails"
    EXPOSES = "exposes"
    ASKS = "asks"
    IGNORED = "ignored"
    NOTE = "note"


@dataclass(frozen=True)
class InstallFinding:
    """One problem. Line and column count from 1; path: of the key, as storage.config[3].size."""

    code: str
    category: Category
    effect: InstallEffect
    line: int
    column: int
    path: str
    sentence: str
    mend: str
    evidence: str


def install_finding(code: str, place: tuple[int, int], path: str, /, **words: object) -> InstallFinding:
    """The finding of this code; control characters in `words`, which come from the file, are escaped."""
    row = _rows()[code]
    shown = {name: visible(str(word))[:200] for name, word in words.items()}
    sentence, mend = (row[name].format(**shown) for name in ("says", "mend"))
    effect = InstallEffect(row["effect"])
    return InstallFinding(
        f"autoinstall.{code}",
        Category.of(effect),
        effect,
        *place,
        visible(path)[:200],
        sentence,
        mend,
        row["evidence"],
    )


def install_codes() -> list[str]:
    """The codes of findings, without the name before the dot."""
    return list(_rows())


def install_keys() -> Mapping[str, Any]:
    """The keys that the installer knows, by where they stand."""
    keys: Mapping[str, Any] = _table()["keys"]
    return keys


@once
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = load_catalogue(files(__package__).joinpath("autoinstall_findings.yaml"))
    return table


def _rows() -> Mapping[str, Mapping[str, str]]:
    rows: Mapping[str, Mapping[str, str]] = _table()["findings"]
    return rows
