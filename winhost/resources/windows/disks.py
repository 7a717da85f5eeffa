"""Partitions of Windows' disks, files on them, and BitLocker."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json, Key
from winhost.core.dataclass import dataclass
from winhost.core.rules import Condition, ConsentRule, DependentRule, KeepIf, UndoRule
from winhost.core.steps import Change
from winhost.model.units import Bytes, MiB
from winhost.resources.base import NOT_REPORTED, Attachment, ResourceType, State, resource
from winhost.resources.values import FLAG, GUID, Value, one_of, or_nothing, secret_reference, sizes, text

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
        timeout=lambda change: RESIZING,
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


LINUX_PARTITION, STAGING, OWN_EFI = "linux", "staging", "efi"
NO_PARTITION: Mapping[str, Json] = MappingProxyType(
    dict.fromkeys(("made", "disk", "offset", "size", "label", "partition"), None) | {"made": False, "ours": False}
)
_SET = ("made", "disk", "offset", "size", "label")
LABEL = text("WINHOST-[0-9a-f]{8}|WINHOST", "WINHOST, or that and eight digits after a dash")


@resource(
    ResourceType(
        "OwnPartition",
        title="the new partition",
        order=90,
        key=("name",),
        sets={
            "made": FLAG,
            "disk": or_nothing(text(GUID, "the GUID of a disk")),
            "offset": or_nothing(sizes(MiB)),
            "size": or_nothing(sizes(MiB)),
            "label": or_nothing(LABEL),
        },
        after=("Partition",),
        known_as=("partition", "partition"),
        absent=NO_PARTITION,
        asks=("data",),
        risks=(ConsentRule("data"),),
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (
                        Condition("made", of="before", one_of=(False,)),
                        Condition("made", one_of=(None,)),
                        Condition("partition", none_of=(None,)),
                        Condition("ours", one_of=(False,)),
                    ),
                    "it is not where winhost put it, or not as large any more",
                ),
            ),
            remove_if_created={name: NO_PARTITION[name] for name in _SET},
        ),
    )
)
class OwnPartition(State):
    """A partition that winhost made, by its name: linux, for the system to be installed; staging, for its installer;
    efi, for its boot loader, where it gets another disk than Windows.

    Windows makes it, at exactly `offset` and with exactly `size`, so that no installer writes a partition table. Each
    is formatted with `label`: linux as NTFS, by which the installer's guard knows it, with the type of Linux; the
    others as FAT32, efi with the type of an EFI system partition. It is known by its GUID (partition), of which the
    host keeps a record, and by where it is: ours says that both are as recorded. made: null while it was begun and
    not finished, or is not as recorded.
    """

    made: bool | None
    ours: bool
    disk: str | None
    offset: Bytes | None
    size: Bytes | None
    label: str | None
    partition: str | None


def file_beside_the_plan(change: Change) -> Attachment | None:
    """./name is a file in the folder of the plan, on the computer that winhost runs on."""
    before, _, name = change.key["source"].partition("./")
    return Attachment(name, change.key["sha256"]) if not before and change.desired.get("present") else None


def fetched_by_the_host(change: Change) -> str | None:
    """An https address that the host can reach."""
    source = change.key["source"]
    return source if source.startswith("https://") and change.desired.get("present") else None


def received_at(key: Key) -> str:
    """The path of what was received of it, on a host whose %ProgramData% is where Windows puts it."""
    return rf"C:\ProgramData\winhost\files\{key['sha256']}-{key['name']}.part"


@resource(
    ResourceType(
        "StagedFile",
        title="staged files",
        order=260,
        key=("sha256", "name", "source"),
        sets={"present": FLAG},
        absent={"present": False},
        dependents=(
            DependentRule("Wsl", at=("package", "{sha256}")),
            DependentRule("WslDistro", at=("image", "{sha256}")),
        ),
        upload=file_beside_the_plan,
        download=fetched_by_the_host,
        # What is there in part is nobody else's, and never put back.
        undo=UndoRule(instead={"present": (None, False)}, transitional_states={"present": (None,)}),
    )
)
class StagedFile(State):
    """A file that winhost brings, in a folder of administrators: %ProgramData%\\winhost\\files\\<sha256>-<name>.

    source: an https address that the host can reach, the absolute path of a file on a drive of the host, or ./ and the
    name of a file next to the plan; name: letters, digits, dot, dash and underscore. present: it is there with
    this SHA-256; with any other it is as good as absent, and replaced. null: a part of it is there, and the rest is
    still to come.
    """

    present: bool | None


@dataclass(frozen=True)
class KeyProtector:
    """A key protector of a volume, by its id. Its secret never leaves the host."""

    id: str
    kind: str


MOST_RESTARTS = 15
RESTARTS = or_nothing(
    Value("a number of restarts, 0 to 15", lambda value: type(value) is int and 0 <= value <= MOST_RESTARTS)
)


@resource(
    ResourceType(
        "BitLocker",
        title="BitLocker",
        order=250,
        key=("volume",),
        sets={"suspended": RESTARTS},
        after=("KeyEscrow",),
        # Each restart counts it down: whatever it is by then, what was found comes back.
        undo=UndoRule(unconditional=True),
    )
)
class BitLocker(State):
    """A volume by its mount point. protection: on, off or unknown.

    conversion: fully-encrypted, fully-decrypted, or on its way (encryption-in-progress …), unknown of a locked volume,
    as is percentage. A volume that is encrypted and not protected may wait for its owner to log on, as with device
    encryption. suspended: after how many restarts protection comes back, 0 for when somebody says so; null where it is
    not suspended. pcrs: of the TPM, what must be as it was for the volume to open by itself; none without a TPM among
    the protectors.
    """

    protection: str
    volume_type: str
    conversion: str = NOT_REPORTED
    percentage: int = NOT_REPORTED
    suspended: int | None = NOT_REPORTED
    protectors: tuple[KeyProtector, ...] = NOT_REPORTED
    pcrs: tuple[int, ...] = NOT_REPORTED

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its protectors."""
        return tuple(protector.kind for protector in self.protectors)


NONE, DIRECTORY, ENTRA, TYPED = "none", "active-directory", "entra", "typed"


@resource(
    ResourceType(
        "KeyEscrow",
        title="the proof that a recovery key is kept",
        order=252,
        key=("volume",),
        sets={
            "proof": one_of(NONE, DIRECTORY, ENTRA, TYPED),
            "last_group": or_nothing(secret_reference("the last six digits of the recovery key")),
        },
        credential="last_group",
        undo=UndoRule(whole=True),
    )
)
class KeyEscrow(State):
    """A proof that the recovery key of a volume with BitLocker is kept elsewhere, by the volume's mount point.

    proof: active-directory or entra, which took the key of `protector` once more and said so; or typed: somebody knew
    the last six digits of it, which were compared on the host and are stored nowhere. last_group: a secret reference to
    those. A proof counts as long as the volume has that protector.
    """

    proof: str
    last_group: str | None
    protector: str | None
