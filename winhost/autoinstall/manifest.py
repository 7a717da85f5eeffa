"""The disk manifest: the machine and the disk that an installer may touch, with exact positions.

winhost makes it from the facts of Windows. In the installer, the guard compares it with what Linux finds, before
anything is written. It contains only values on which both systems agree: the SMBIOS UUID, the GUIDs in the GPT, offsets
and sizes in bytes. They do not agree on the numbers of disks and partitions, or on the form of serial numbers.
"""

import re
from enum import StrEnum
from functools import partial
from itertools import pairwise
from pathlib import Path

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.model.versions import refuse_other_version
from winhost.model.yamlfile import load_json

SCHEMA = "winhost.disk-manifest/1"

# Placeholders of vendors in SMBIOS, which identify no machine; SMBIOS itself reserves the first two UUIDs.
_PLACEHOLDER_UUIDS = {
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "03000200-0400-0500-0006-000700080009",
    "12345678-1234-5678-90ab-cddeefaabbcc",
}
_PLACEHOLDER_SERIALS = {"", "0", "0123456789", "default string", "none", "not specified", "system serial number"}
_GUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RUN = re.compile(r"[0-9a-f]{8}")


class PartitionRole(StrEnum):
    """The role of a partition. The installer uses ESP and TARGET; it only lists and keeps all others."""

    ESP = "esp"
    MSR = "msr"
    WINDOWS = "windows"
    RECOVERY = "recovery"
    STAGING = "staging"
    TARGET = "target"
    OTHER = "other"


def normalize_guid(text: str) -> str:
    """Write a GUID in lower case without braces, as Linux does. Raises ValueError for other text."""
    guid = text.strip().strip("{}").lower()
    if not _GUID.fullmatch(guid):
        raise ValueError(f"{text[:60]!r} is not a GUID")
    return guid


@dataclass(frozen=True)
class MachineIdentity:
    """The identity in SMBIOS type 1. uuid: as Windows (Win32_ComputerSystemProduct) and Linux write it; serial: None if
    the vendor left a placeholder.
    """

    uuid: str
    serial: str | None = None

    def __post_init__(self) -> None:
        if normalize_guid(self.uuid) != self.uuid:
            raise ValueError(f"uuid {self.uuid!r} should be in lower case, without braces")
        if self.serial is not None and is_placeholder(self.serial):
            raise ValueError(f"serial {self.serial[:60]!r} names no machine: leave it out")

    @property
    def is_unique(self) -> bool:
        """The UUID identifies this machine, and not only its model."""
        return self.uuid not in _PLACEHOLDER_UUIDS


def is_placeholder(serial: str) -> bool:
    """Tell whether this text is a placeholder of vendors for a missing serial number."""
    text = " ".join(serial.lower().split())
    return text in _PLACEHOLDER_SERIALS or "o.e.m" in text or not any(char.isalnum() for char in text)


@dataclass(frozen=True)
class PartitionRecord:
    """A partition by its GUID. offset and size in bytes; type: its GPT type.

    number: of Windows, for display; Linux numbers the entries of the table, which the guard reads. filesystem: such as
    ntfs, vfat or BitLocker; None if it is not known, and then it is not compared.
    """

    guid: str
    offset: Bytes
    size: Bytes
    type: str
    role: PartitionRole
    number: int | None = None
    filesystem: str | None = None

    def __post_init__(self) -> None:
        for guid in (self.guid, self.type):
            if normalize_guid(guid) != guid:
                raise ValueError(f"{guid!r} should be in lower case, without braces")
        if self.offset <= 0 or self.size <= 0:
            raise ValueError(f"partition {self.guid} has offset {self.offset} and size {self.size}")

    @property
    def end(self) -> Bytes:
        """The offset of the first byte after it."""
        return self.offset + self.size


@dataclass(frozen=True)
class DiskManifest:
    """A GPT disk with all its partitions, in the order of their offsets, on this machine.

    guid: of the disk; size: of the disk; sector: the size of its logical sectors; run: 8 hexadecimal digits of the run
    that prepared it, which are part of the label of its target.
    """

    machine: MachineIdentity
    guid: str
    size: Bytes
    sector: Bytes
    model: str
    partitions: tuple[PartitionRecord, ...]
    run: str
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema is {self.schema[:60]!r}, not {SCHEMA!r}")
        if normalize_guid(self.guid) != self.guid:
            raise ValueError(f"{self.guid!r} should be in lower case, without braces")
        if self.sector not in (512, 4096):
            raise ValueError(f"disks have sectors of 512 or 4096 bytes, not {self.sector}")
        if not _RUN.fullmatch(self.run):
            raise ValueError(f"run {self.run[:60]!r} should be 8 hexadecimal digits in lower case")
        _check_layout(self)

    @property
    def label(self) -> str:
        """The label of the file system that Windows puts on the target, by which the guard recognizes it."""
        return f"WINHOST-{self.run}"

    def with_role(self, role: PartitionRole) -> PartitionRecord:
        """Return the partition with this role. Raises ValueError unless there is exactly one."""
        found = [each for each in self.partitions if each.role is role]
        if len(found) != 1:
            raise ValueError(f"{len(found)} partitions of disk {self.guid} have the role {role}, and one is needed")
        return found[0]


def _check_layout(disk: DiskManifest) -> None:
    """Refuse an impossible GPT, so that a mistake is found here and not in the installer. Raises ValueError."""
    guids = [disk.guid, *(each.guid for each in disk.partitions)]
    if len(set(guids)) != len(guids):
        raise ValueError("two of the GUIDs are the same: a cloned disk, or a mistake")
    for each in disk.partitions:
        if each.offset % disk.sector or each.size % disk.sector:
            raise ValueError(f"partition {each.guid} does not begin and end with a sector of {disk.sector} bytes")
    for before, after in pairwise(disk.partitions):
        if after.offset < before.end:
            raise ValueError(f"partition {after.guid} begins before {before.guid} ends; list them by offset")
    if disk.partitions and disk.partitions[-1].end > disk.size:
        raise ValueError(f"partition {disk.partitions[-1].guid} ends after the end of the disk")


def read_manifest(path: Path) -> DiskManifest:
    """Read a disk manifest. Raises UsageError (FileFaults, OtherVersion)."""
    return load_json(path, DiskManifest, partial(refuse_other_version, str(path)))
