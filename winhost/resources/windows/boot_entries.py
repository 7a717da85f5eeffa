"""Boot entries of the firmware, and other resources of a dual boot with Linux."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.core.rules import Condition, ConsentRule, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import RESTART_CONSENT
from winhost.resources.values import FLAG, GUID, INTERFACE, one_of, or_nothing, text


@resource(
    ResourceType(
        "FastStartup",
        title="Fast Startup and hibernation",
        order=78,
        sets={"hibernation": FLAG, "fast_startup": FLAG},
        after=("KeyEscrow",),  # nothing is changed for another system before the recovery keys are proven to be stored
    )
)
class FastStartup(State):
    """Hibernation and Fast Startup. Either leaves the Windows volumes in use while Windows is off, when another system
    must not write to them.

    hibernation: there is a hibernation file; without it Fast Startup is off, whatever fast_startup says.
    """

    hibernation: bool
    fast_startup: bool


@resource(
    ResourceType(
        "EfiBackup",
        title="the copy of the EFI system partition",
        order=94,
        key=("partition",),
        sets={"kept": FLAG},
        after=("KeyEscrow",),  # nothing is done for another system before that proof
        asks=("data",),
        risks=(ConsentRule("data", (Condition("kept", of="desired", one_of=(False,)),)),),
    )
)
class EfiBackup(State):
    """A copy of the files of an EFI system partition, by the partition's GUID. kept: the host has such a copy.

    changed: files whose content differs from the copy; added: files that installers of Linux create and that are not
    in the copy. When `kept` becomes false, changed files are restored and added files are removed, with the boot
    entries that start a Linux from this partition and were created since. Files that were open when the copy was
    taken, as the one from which Windows boots, are not in it and are never listed.
    """

    kept: bool
    changed: tuple[str, ...]
    added: tuple[str, ...]


ENTRY = or_nothing(text("[0-9A-F]{4}", "the four digits of a boot entry"))


@dataclass(frozen=True)
class BootEntry:
    """A Boot#### variable. entry: its four digits; partition: the GUID of the partition that path is on."""

    entry: str
    description: str
    active: bool
    partition: str | None
    path: str | None


@resource(
    ResourceType(
        "FirmwareBoot",
        title="the firmware's boot variables",
        order=84,
        sets={"next": ENTRY},
        after=("OwnBootEntry",),
        # BootNext is cleared by the restart that uses it, so the original is restored whatever the value is by then.
        undo=UndoRule(unconditional=True),
    )
)
class FirmwareBoot(State):
    """The boot variables of the firmware.

    kind: uefi, or bios, which has none. order: BootOrder; current: BootCurrent; next: BootNext, which is started once
    and then cleared; entries: those in the order. The firmware may renumber entries at any restart, so an entry is
    identified by its description, partition and path. When the whole host is read, only kind is read: reading the
    others starts a C# compiler.
    """

    kind: str
    current: str | None
    next: str | None
    order: tuple[str, ...]
    entries: tuple[BootEntry, ...]


NO_ENTRY: Mapping[str, Json] = MappingProxyType({"made": False, "partition": None, "path": None, "entry": None})
_SETTABLE = ("made", "partition", "path")


@resource(
    ResourceType(
        "OwnBootEntry",
        title="the new boot entry",
        order=92,
        key=("name",),
        sets={
            "made": FLAG,
            "partition": or_nothing(text(GUID, "the GUID of a partition")),
            "path": or_nothing(
                text(r"(\\[A-Za-z0-9._-]{1,40}){1,8}\.(efi|EFI)", "a path such as \\EFI\\boot\\bootx64.efi")
            ),
        },
        after=("OwnPartition", "EfiBackup"),
        absent=NO_ENTRY,
        asks=("data",),
        risks=(ConsentRule("data"),),
        undo=UndoRule(remove_if_created={name: NO_ENTRY[name] for name in _SETTABLE}),
    )
)
class OwnBootEntry(State):
    """A boot entry that winhost creates, by its name; its description is `winhost-NAME`. It is the last one in the boot
    order, so that it starts only when it is requested once with BootNext.

    partition: the GUID of the partition that contains path; entry: its current four digits, which the firmware may
    change at any restart. made: null if creating it was interrupted, or if the firmware lost it.
    """

    made: bool | None
    partition: str | None
    path: str | None
    entry: str | None


WINDOWS, LINUX = "windows", "linux"
LINUX_NEXT = "linux-next"  # Windows runs, and the firmware will start Linux next


@resource(
    ResourceType(
        "RunningSystem",
        title="the Linux beside Windows",
        order=300,
        sets={"system": one_of(WINDOWS, LINUX)},
        after=("UbuntuInstaller", "OwnBootEntry", "FirmwareBoot", "BitLocker", "FastStartup", "EfiBackup"),
        restarts=True,
        asks=("restart",),
        risks=RESTART_CONSENT,
        undo=UndoRule(transitional_states={"system": (LINUX_NEXT, LINUX)}),
    )
)
class RunningSystem(State):
    """The system of a dual boot that runs, or will run next.

    system: windows; linux-next if the firmware starts Linux next; linux, which only the running Linux reports. Setting
    it sets BootNext to the Linux, or to its installer if no Linux is installed, and takes effect with a restart.

    linux: the file that the first boot entry of a Linux starts, null if there is none; also null while winhost has
    created a partition for a Linux whose installer has not yet written its label to EFI\\ubuntu\\winhost.txt.
    installer: the four digits of the boot entry that winhost created for the installer, null if there is none.
    """

    system: str
    linux: str | None
    installer: str | None


NO_INSTALLER: Mapping[str, Json] = MappingProxyType(
    {"made": False, **dict.fromkeys(("partition", "image", "files", "user", "address", "host_key", "ticket"))}
)
_COPY_TIMEOUT = 3600  # seconds to copy or hash some GB on a slow disk


@resource(
    ResourceType(
        "UbuntuInstaller",
        title="the installer of Ubuntu",
        order=290,
        key=("name",),
        sets={
            "made": FLAG,
            "partition": or_nothing(text(GUID, "the GUID of a partition")),
            "image": or_nothing(text("[0-9a-f]{64}-[A-Za-z0-9._-]{1,63}", "the SHA-256 and the name of a staged file")),
            "files": or_nothing(text(r"[A-Za-z0-9+/]{4,65536}={0,2}", "files by their paths, as gzip in base64")),
            "user": or_nothing(text(r"[a-z_][a-z0-9_-]{0,31}", "the name of a user")),
            "address": or_nothing(INTERFACE),
            "host_key": or_nothing(text(r"ssh-ed25519 [A-Za-z0-9+/]{68}", "an ed25519 key, without a name")),
            "ticket": or_nothing(text("[0-9a-f]{64}", "a SHA-256")),
        },
        after=("OwnPartition", "StagedFile"),
        absent=NO_INSTALLER,
        asks=("data",),
        risks=(ConsentRule("data"),),
        timeout=lambda change: _COPY_TIMEOUT if change.desired.get("made") or change.desired.get("ticket") else 60,
        undo=UndoRule(remove_if_created=NO_INSTALLER),
    )
)
class UbuntuInstaller(State):
    """The content of the installer's partition, and the identity of the new system. Its key's name is `ubuntu`.

    - made: null if creating it was interrupted, or if its partition is missing.
    - partition: the GUID of the partition that winhost created for it.
    - image: the staged file whose content is on the partition.
    - files: files that winhost adds to that content or replaces in it: JSON of texts by path.
    - user, address, host_key: the user who may log on to the new system, its address (null for DHCP), and its SSH host
      key.
    - ticket: the SHA-256 of winhost/fetch.json on the partition, with which the installer fetches its settings. The
      text of that file is passed as the secret of a `set`, is valid for one answer, and is never returned.

    Setting the ticket makes the partition read-only in the partition table; then its content must be exactly what
    winhost wrote.
    """

    made: bool | None
    partition: str | None
    image: str | None
    files: str | None
    user: str | None
    address: str | None
    host_key: str | None
    ticket: str | None
