"""An autoinstall file as one installer on one machine would take it: what the rules ask."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from fractions import Fraction
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
def schema() -> Mapping[str, Any]:
    """See installer_schema.yaml."""
    read: Mapping[str, Any] = load_catalogue(files(__package__).joinpath("installer_schema.yaml"))
    return read


def bare(shape: Mapping[str, Any]) -> list[str]:
    """The keys of a mapping in the schema."""
    return [key.rstrip("!?") for key in shape if key not in ("*", "=")]


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
        """A whole number of bytes, also where it is written as 1.5G; None for what the installer works out."""
        found = storage_bytes(self.data.get(key))
        return found if found is not None and found >= 0 else None


_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+) *([BKMGTP]?)", re.ASCII | re.IGNORECASE)


def storage_bytes(value: object) -> int | None:
    """A size as the installer's own `dehumanize_size` reads it (subiquity, models/filesystem.py), before curtin sees
    it: one letter for the unit, whose case does not matter, so that 512MB is no size. -1 for a share of the disk and
    for what is left of it; None for what the installer refuses.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return max(value, -1)
    text = str(value)
    if re.fullmatch(r"\d{1,9}%", text):
        return -1
    found = _SIZE.fullmatch(text) if len(text) < 40 else None
    return int(Fraction(found[1]) * 1024 ** "BKMGTP".index(found[2].upper() or "B")) if found else None


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

    def keeps(self, partition: StorageAction) -> bool:
        """Whether its disk keeps what is on it."""
        disk = self.by_id("disk", partition.data.get("device"))
        return disk is not None and disk.is_true("preserve")

    def by_id(self, type_: str, name: object) -> StorageAction | None:
        return next((each for each in self.of(type_) if each.data.get("id") == name), None)

    def unknown(self, loc: Loc, value: dict[str, Any], shape: Mapping[str, Any]) -> Iterator[tuple[Loc, str, str]]:
        """Keys that the installer does not know here, each with the known one that may be meant."""
        known = bare(shape)
        for key in value if "*" not in shape else ():
            if key not in known:
                yield (*loc, str(key)), str(key), did_you_mean(str(key), known) or "."
