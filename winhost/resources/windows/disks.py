"""Partitions, staged files and BitLocker of a Windows host."""

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
# Partitions of dynamic disks: the metadata of their volumes, and their data.
DYNAMIC = ("5808c8aa-7e8f-42e0-85d2-e1e90434cfb3", "af9b60a0-1431-4f62-bc68-3311714a69ad")
STORAGE_SPACES = "e75caf8f-f680-4cee-afa3-b001e56efc2d"

SECTOR: Bytes = 512
RESIZE_TIMEOUT = 3600  # seconds; files at the end of a full volume are moved first


@resource(
    ResourceType(
        "Partition",
        title="partitions",
        order=72,
        key=("partition",),
        sets={"size": sizes(SECTOR)},
        # EfiBackup and StagedFile can fail: then the partition table has not been changed.
        after=("BitLocker", "FastStartup", "EfiBackup", "StagedFile"),
        asks=("data",),
        risks=(ConsentRule("data"),),
        timeout=lambda change: RESIZE_TIMEOUT,
    )
)
class Partition(State):
    """A partition by its GUID, which Linux calls PARTUUID.

    disk: the GUID of its disk's GPT; number: in Windows, which may differ from that in Linux; offset, size: in bytes;
    type: the GUID of its type; letter: the drive letter; boot: Windows is on it; system: the boot manager is on it.
    hidden, no_letter: flags that keep Windows from assigning a drive letter. Only the Windows partition can be resized.
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
    """Tell whether the running Windows was started from this EFI system partition, which may be on another disk."""
    return partition.system and partition.type == EFI


LINUX_PARTITION, STAGING, OWN_EFI = "linux", "staging", "efi"
NO_PARTITION: Mapping[str, Json] = MappingProxyType(
    dict.fromkeys(("made", "disk", "offset", "size", "label", "partition"), None) | {"made": False, "ours": False}
)
_SETTABLE = ("made", "disk", "offset", "size", "label")
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
            remove_if_created={name: NO_PARTITION[name] for name in _SETTABLE},
        ),
    )
)
class OwnPartition(State):
    """A partition that winhost creates, by its name: linux, for the new system; staging, for its installer; efi, for
    its boot loader if it is on another disk than Windows.

    Windows creates it at exactly `offset` with exactly `size`, so that no installer writes a partition table. linux is
    formatted as NTFS, with a label by which the installer's guard recognizes it, and has the type of a Linux
    partition. The others are formatted as FAT32; efi has the type of an EFI system partition.

    partition: its GUID, which the host records; ours: GUID, offset and size are as recorded; made: null if creating it
    was interrupted, or if it is not as recorded.
    """

    made: bool | None
    ours: bool
    disk: str | None
    offset: Bytes | None
    size: Bytes | None
    label: str | None
    partition: str | None


def file_next_to_plan(change: Change) -> Attachment | None:
    """Return the file that a change needs from the plan's folder on winhost's computer; its source is `./NAME`."""
    prefix, _, name = change.key["source"].partition("./")
    return Attachment(name, change.key["sha256"]) if not prefix and change.desired.get("present") else None


def host_download_address(change: Change) -> str | None:
    """Return the https address from which the host downloads the file, or None."""
    source = change.key["source"]
    return source if source.startswith("https://") and change.desired.get("present") else None


def partial_file_path(key: Key) -> str:
    """Return the path of a partially received file on a host, if its %ProgramData% is the default."""
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
        upload=file_next_to_plan,
        download=host_download_address,
        # A partially received file is winhost's own, and is never restored.
        undo=UndoRule(instead={"present": (None, False)}, transitional_states={"present": (None,)}),
    )
)
class StagedFile(State):
    """A file that winhost copies to a folder of administrators: %ProgramData%\\winhost\\files\\<sha256>-<name>.

    source: an https address that the host can reach, the absolute path of a file on a drive of the host, or ./ and the
    name of a file next to the plan; name: letters, digits, dot, dash and underscore. present: there is a file with
    this SHA-256; one with another hash counts as absent and is replaced; null: it was received only in part.
    """

    present: bool | None


@dataclass(frozen=True)
class KeyProtector:
    """A key protector of a volume, by its id. Its secret never leaves the host."""

    id: str
    kind: str


MAX_RESTARTS = 15
RESTARTS = or_nothing(
    Value("a number of restarts, 0 to 15", lambda value: type(value) is int and 0 <= value <= MAX_RESTARTS)
)


@resource(
    ResourceType(
        "BitLocker",
        title="BitLocker",
        order=250,
        key=("volume",),
        sets={"suspended": RESTARTS},
        after=("KeyEscrow",),
        # Each restart decrements the count, so the original is restored whatever the value is by then.
        undo=UndoRule(unconditional=True),
    )
)
class BitLocker(State):
    """A volume by its mount point. protection: on, off or unknown.

    conversion: fully-encrypted, fully-decrypted, or in progress (encryption-in-progress …); it and percentage are
    unknown for a locked volume. A volume that is encrypted but not protected may wait for its owner to log on, as with
    device encryption. suspended: the number of restarts after which protection resumes, 0 until it is resumed
    explicitly, null if it is not suspended. pcrs: the TPM registers that must be unchanged for the volume to unlock
    automatically; empty without a TPM protector.
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
        """The kinds of the volume's protectors."""
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
    """A proof that the recovery key of a BitLocker volume is stored elsewhere, by the volume's mount point.

    proof: active-directory or entra, if that directory confirmed that it stored the key of `protector`; typed, if a
    user entered the last six digits of the key, which were compared on the host and are stored nowhere. last_group: a
    secret reference to those digits. A proof is valid as long as the volume has that protector.
    """

    proof: str
    last_group: str | None
    protector: str | None
