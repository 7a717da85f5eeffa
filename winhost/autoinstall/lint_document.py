"""An autoinstall file as one installer on one machine would take it: what the rules ask."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from importlib.resources import files
from typing import Any

from packaging.version import Version

from winhost.autoinstall.autoinstall_file import AutoinstallFile, Loc
from winhost.core.dataclass import dataclass
from winhost.findings.finding import Finding, Found, Rows
from winhost.model.catalogue_file import load_catalogue
from winhost.model.errors import did_you_mean
from winhost.model.once import once
from winhost.model.units import Bytes
from winhost.model.yamlfile import dotted

ROWS, PREFIX = Rows(__package__), "autoinstall"


@once
def install_keys() -> Mapping[str, Any]:
    """The keys that the installer knows, by where they stand."""
    read: Mapping[str, Any] = load_catalogue(files(__package__).joinpath("known_keys.yaml"))
    return read


@dataclass(frozen=True)
class KnownPartition:
    """As the facts have it."""

    guid: str
    offset: Bytes
    size: Bytes
    type: str


@dataclass(frozen=True)
class KnownDisk:
    """By the GUID of its table."""

    guid: str
    partitions: tuple[KnownPartition, ...]


@dataclass(frozen=True)
class StorageAction:
    """One entry of storage.config, and where it stands."""

    loc: Loc
    data: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.data.get("type"))

    @property
    def id(self) -> str:
        return str(self.data.get("id", "without an id"))

    def is_true(self, key: str) -> bool:
        return self.data.get(key) is True

    def number(self, key: str) -> int | None:
        """A whole number of bytes, also where it is written as 512M; None for what the installer works out."""
        return _bytes(self.data.get(key))


_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


def _bytes(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 0 else None
    text = str(value).strip().upper()
    digits, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "B")
    return int(digits) * _UNITS[unit] if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


@dataclass(frozen=True)
class AutoinstallContext:
    """installer: its version, None where it is not known; disks: of the machine, none where no facts are given."""

    file: AutoinstallFile
    installer: Version | None = None
    disks: Sequence[KnownDisk] = field(default=())

    def found(self, loc: Loc, code: str, **words: object) -> Finding:
        """A finding at this place of the section."""
        return ROWS.tell(PREFIX, Found(code, 0, words), self.file.place(loc), dotted(loc) or "the file")

    def get(self, *keys: str) -> Any:
        """A value of the section; None where there is none."""
        value: Any = self.file.section
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def mapping(self, *keys: str) -> dict[str, Any]:
        value = self.get(*keys)
        return value if isinstance(value, dict) else {}

    @cached_property
    def uses_layout(self) -> bool:
        return "layout" in self.mapping("storage")

    @cached_property
    def actions(self) -> list[StorageAction]:
        """None where a layout makes the installer ignore them."""
        config = self.get("storage", "config")
        rows = config if isinstance(config, list) and not self.uses_layout else []
        return [StorageAction(("storage", "config", at), row) for at, row in enumerate(rows) if isinstance(row, dict)]

    def of(self, type_: str) -> list[StorageAction]:
        return [each for each in self.actions if each.type == type_]

    def by_id(self, type_: str, name: object) -> StorageAction | None:
        return next((each for each in self.of(type_) if each.data.get("id") == name), None)

    def unknown(self, loc: Loc, value: dict[str, Any], table: str) -> Iterator[tuple[Loc, str, str]]:
        """Keys that the installer does not know here, each with the known one that may be meant."""
        known = install_keys()[table]
        for key in value:
            if key not in known:
                yield (*loc, str(key)), str(key), did_you_mean(str(key), known) or "."
