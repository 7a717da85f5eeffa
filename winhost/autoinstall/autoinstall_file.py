"""Parse an autoinstall file with the positions of its keys, and query what an installer would see on a machine."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from winhost.autoinstall.manifest import SCHEMA, DiskManifest, read_manifest
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.findings.finding import Observation, rows_of
from winhost.model.catalogue_file import load_package_file
from winhost.model.errors import UsageError, did_you_mean_or_period, visible
from winhost.model.once import once
from winhost.model.units import Bytes
from winhost.model.yamlfile import dotted, load_json
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.resources.windows.disks import Partition

Loc = tuple[str | int, ...]
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_VALUES = 20_000
_MAX_DEPTH = 40


class Delivery(StrEnum):
    """The form of the file: for the root of the medium, the same below the key `autoinstall`, or a cloud-config."""

    PLAIN = "plain"
    WRAPPED = "wrapped"
    CLOUD_CONFIG = "cloud-config"


class Unreadable(Exception):
    """The file cannot be read as YAML. why: the reason; position: line and column."""

    def __init__(self, why: str, position: tuple[int, int]) -> None:
        super().__init__(why)
        self.why, self.position = why, position


@dataclass(frozen=True)
class AutoinstallFile:
    """whole: the content of the file; section: the part that the installer reads; at: the keys that lead to the
    section; positions: line and column of each key and item; twice: repeated keys.
    """

    whole: Mapping[str, Any]
    section: Mapping[str, Any]
    at: Loc
    delivery: Delivery
    positions: Mapping[Loc, tuple[int, int]]
    twice: Sequence[Loc]

    def position(self, loc: Loc) -> tuple[int, int]:
        """Return line and column of this key in the section, counted from 1; else those of the nearest outer key."""
        full = (*self.at, *loc)
        return next(
            (self.positions[full[:end]] for end in range(len(full), 0, -1) if full[:end] in self.positions), (1, 1)
        )


def parse_autoinstall(text: str) -> AutoinstallFile:
    """Parse the text of a file. Raises Unreadable."""
    try:
        node = yaml.compose(text, _PARSER)
        positions: dict[Loc, tuple[int, int]] = {}
        twice: list[Loc] = []
        for loc, mark in _walk(node):
            if loc in positions:
                twice.append(loc)
            positions[loc] = (mark.line + 1, mark.column + 1)  # the last one counts
            if len(positions) > _MAX_VALUES:
                raise Unreadable(f"it has more than {_MAX_VALUES:,} values", (1, 1))
        whole = yaml.load(text, _PARSER)  # noqa: S506 - the safe one, in C
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(str(error.problem or error.context), _line_and_column(mark)) from None
    except yaml.reader.ReaderError:
        odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
        before = text[: odd.start()].split("\n") if odd else [""]
        raise Unreadable("it has a character that YAML does not allow", (len(before), len(before[-1]) + 1)) from None
    except RecursionError:
        raise Unreadable("it is nested too deeply", (1, 1)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise Unreadable(f"it has a value that YAML cannot take ({error})"[:200], (1, 1)) from None
    return _locate_section(whole, positions, twice, text.startswith("#cloud-config"))


def _line_and_column(mark: Any) -> tuple[int, int]:
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


def _walk(node: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    """Yield every key and item with its mark. Aliases are followed, so the caller bounds the number of values."""
    if len(loc) > _MAX_DEPTH:
        raise Unreadable(f"it is nested more than {_MAX_DEPTH} deep", _line_and_column(node.start_mark))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*loc, str(key.value))
            yield inner, key.start_mark
            yield from _walk(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*loc, index), item.start_mark
            yield from _walk(item, (*loc, index))


def _locate_section(
    whole: Any, positions: Mapping[Loc, tuple[int, int]], twice: Sequence[Loc], is_cloud_config: bool
) -> AutoinstallFile:
    if not isinstance(whole, dict):
        raise Unreadable("it is not a mapping of keys to values", (1, 1))
    inner = whole.get("autoinstall")
    wrapped = "autoinstall" in whole
    delivery = Delivery.CLOUD_CONFIG if is_cloud_config else Delivery.WRAPPED if wrapped else Delivery.PLAIN
    at: Loc = ("autoinstall",) if wrapped else ()
    content = inner if wrapped else {} if is_cloud_config else whole
    section = content if isinstance(content, dict) else {}
    return AutoinstallFile(whole, section, at, delivery, positions, twice)


ROWS, PREFIX = rows_of(__package__), "autoinstall"


@once
def schema() -> Mapping[str, Any]:
    """Return the installer's schema, in the form that installer_schema.yaml explains."""
    return load_package_file(__package__, "installer_schema.yaml")


def bare(shape: Mapping[str, Any]) -> list[str]:
    """Return the keys of a mapping in the schema, without their markers."""
    return [key.rstrip("!?") for key in shape if key not in ("*", "=")]


def last_key(loc: Loc) -> str:
    """Return the last key of this position. The position itself may be an item of that key's list."""
    return next((part for part in reversed(loc) if isinstance(part, str)), "the file")


@dataclass(frozen=True)
class KnownPartition:
    """A partition of the facts."""

    guid: str
    offset: Bytes
    size: Bytes
    type: str


@dataclass(frozen=True)
class KnownDisk:
    """A disk with a GPT; guid: of its table."""

    guid: str
    partitions: tuple[KnownPartition, ...]


@dataclass(frozen=True)
class StorageAction:
    """One entry of storage.config, and its position."""

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
        """Return a number of bytes, which may be written as 1.5G; None if the installer computes it."""
        found = storage_bytes(self.data.get(key))
        return found if found is not None and found >= 0 else None


PLACEHOLDER = re.compile(r"<.*>|\{\{.*\}\}|\$\{.*\}|@\w+@|__\w+__")  # what a template or a person fills in
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+) *([BKMGTP]?)", re.ASCII | re.IGNORECASE)


def storage_bytes(value: object) -> int | None:
    """Parse a size as the installer's own `dehumanize_size` does (subiquity, models/filesystem.py): its unit is one
    letter in either case, so that 512MB is not a size. Returns -1 for a share of the disk or for its remaining space;
    None for a size that the installer refuses.
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
    """installer: its version, None if it is not known; disks: of the machine, empty without facts."""

    file: AutoinstallFile
    installer: Version | None = None
    disks: Sequence[KnownDisk] = field(default=())

    def observe(self, loc: Loc, code: str, **words: object) -> Observation:
        """Make a finding at this position of the section. words: the placeholders of its sentence."""
        return Observation(code, self.file.position(loc), words, subject=dotted(loc) or "the file")

    def get(self, *keys: str) -> Any:
        """Return a value of the section; None if there is none."""
        value: Any = self.file.section
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def ask(self, question: str) -> tuple[Any]:
        """Return the version of the installer, or the value of a dotted key; `()` for an empty list or mapping."""
        value = self.installer if question == "installer" else self.get(*question.split("."))
        return (() if value in ([], {}) else value,)

    def mapping(self, *keys: str) -> dict[str, Any]:
        value = self.get(*keys)
        return value if isinstance(value, dict) else {}

    @cached_property
    def asks(self) -> list[str]:
        """The sections for which the installer waits for a person."""
        names = self.get("interactive-sections") or []
        return [str(name) for name in (names if isinstance(names, list) else [names])]

    @cached_property
    def uses_layout(self) -> bool:
        return "layout" in self.mapping("storage")

    @cached_property
    def actions(self) -> list[StorageAction]:
        """The storage actions; empty if the installer ignores them because of a layout."""
        config = self.get("storage", "config")
        rows = config if isinstance(config, list) and not self.uses_layout else []
        return [StorageAction(("storage", "config", at), row) for at, row in enumerate(rows) if isinstance(row, dict)]

    def actions_of(self, type_: str) -> list[StorageAction]:
        return [each for each in self.actions if each.type == type_]

    def keeps(self, partition: StorageAction) -> bool:
        """Tell whether the disk of a partition is preserved."""
        disk = self.find_action("disk", partition.data.get("device"))
        return disk is not None and disk.is_true("preserve")

    def find_action(self, type_: str, name: object) -> StorageAction | None:
        return next((each for each in self.actions_of(type_) if each.data.get("id") == name), None)

    def unknown(self, loc: Loc, value: dict[str, Any], shape: Mapping[str, Any]) -> Iterator[tuple[Loc, str, str]]:
        """Yield the keys that the installer does not know here, each with a suggestion."""
        known = bare(shape)
        for key in value if "*" not in shape else ():
            if key not in known:
                yield (*loc, str(key)), str(key), did_you_mean_or_period(str(key), known)


def read_known_disks(path: Path) -> tuple[str | None, Sequence[KnownDisk]]:
    """Read the host and its disks from a facts file or from a disk manifest, which names no host. Raises UsageError."""
    schema = str(load_json(path, dict[str, Any]).get("schema"))
    if schema.rpartition("/")[0] == SCHEMA.rpartition("/")[0]:
        return None, (disk_of_manifest(read_manifest(path)),)
    try:
        facts = HostFacts(read_facts(path))
        return facts.host, disks_of_facts(facts)
    except MissingFact as missing:
        what = f"{visible(str(path))} does not say which partitions there are: {missing}"
        hint = "Read the host again: winhost detect HOST -o facts"
        raise UsageError("NoPartitions", what=what, hint=hint) from missing


def disk_of_manifest(manifest: DiskManifest) -> KnownDisk:
    parts = (KnownPartition(each.guid, each.offset, each.size, each.type) for each in manifest.partitions)
    return KnownDisk(manifest.guid, tuple(parts))


def disks_of_facts(facts: HostFacts) -> Sequence[KnownDisk]:
    """Return the disks with a GPT. Raises MissingFact, WrongState."""
    found: defaultdict[str, list[KnownPartition]] = defaultdict(list)
    for each in facts.all(Partition):
        state = each.state
        if state.disk is not None:
            found[state.disk].append(KnownPartition(each.key["partition"], state.offset, state.size, state.type))
    return [KnownDisk(guid, tuple(parts)) for guid, parts in found.items()]
