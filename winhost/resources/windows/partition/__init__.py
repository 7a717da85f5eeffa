"""Partitions of GPT disks."""

from winhost.core.rules import ConsentRule
from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import sizes

EFI = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
RESERVED = "e3c9e316-0b5c-4db8-817d-f92df00215ae"
BASIC_DATA = "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7"
RECOVERY = "de94bba4-06d1-4d40-a16a-bfd50179d6ac"
LINUX = "0fc63daf-8483-4772-8e79-3d69d8477de4"
# Of dynamic disks: what is told of their volumes, and those volumes.
DYNAMIC = ("5808c8aa-7e8f-42e0-85d2-e1e90434cfb3", "af9b60a0-1431-4f62-bc68-3311714a69ad")
STORAGE_SPACES = "e75caf8f-f680-4cee-afa3-b001e56efc2d"


SECTOR: Bytes = 512
RESIZING = 3600  # seconds: what is at the end of a full volume is moved first


@resource(
    ResourceType(
        "Partition",
        title="partitions",
        order=72,
        key=("partition",),
        sets={"size": sizes(SECTOR)},
        # The last two can fail, and nothing was changed then.
        after=("BitLocker", "FastStartup", "EfiBackup", "StagedFile"),
        asks=("data",),
        risks=(ConsentRule("data"),),
        lasts=lambda change: RESIZING,
    )
)
class Partition(State):
    """A partition by its GUID, which Linux knows as PARTUUID.

    disk: the GUID of its disk's GPT; number: of Windows, which Linux need not share; offset and size in bytes; type:
    the GUID of its kind; letter: of its drive; boot: Windows is on it; system: its boot manager is. hidden, no_letter:
    the flags of its entry by which Windows gives it no drive letter. Only the one that Windows runs from is resized.
    """

    disk: str | None
    number: int
    offset: Bytes
    size: Bytes
    type: str
    letter: str | None
    boot: bool
    system: bool
    hidden: bool
    no_letter: bool


def starts_windows(partition: Partition) -> bool:
    """It is the EFI system partition that the running Windows was started from, which may be on another disk."""
    return partition.system and partition.type == EFI
