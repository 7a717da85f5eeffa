"""Entries of the firmware that start Windows, or a Linux beside it."""

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
        after=("KeyEscrow",),  # before that nothing at all is changed for another system
    )
)
class FastStartup(State):
    """Either leaves the volumes of Windows in use while it is off, and another system must not touch them then.

    hibernation: there is a hibernation file; without it there is no Fast Startup, whatever fast_startup says.
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
        after=("KeyEscrow",),  # without the proof nothing is done for another system
        asks=("data",),
        risks=(ConsentRule("data", (Condition("kept", of="desired", one_of=(False,)),)),),
    )
)
class EfiBackup(State):
    """A copy of an EFI system partition's files, by the partition's GUID. kept: the host has a copy of its files.

    changed: what has another content by now; added: what came since, of that which an installer of Linux puts there.
    Once the copy is not wanted any more, the first is put back by its hash, and the second taken away, with the boot
    entries that start a Linux from there and came since. A file that was open when it was to be copied, as the one that
    Windows boots by, is in neither.
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
        # The restart that it was set for takes it away: what was found comes back whatever it is by then.
        undo=UndoRule(unconditional=True),
    )
)
class FirmwareBoot(State):
    """kind: uefi or bios, which has no such variables. order: of what is tried; current: what was started; next: what
    is started once, before the order, and forgotten by that. Entries are those of the order: the firmware may number
    them anew with any restart, so that an entry is known by its description, partition and path. Of all these only kind
    is told with the whole host; the others are told by name, since to read them starts a C# compiler.
    """

    kind: str
    current: str | None
    next: str | None
    order: tuple[str, ...]
    entries: tuple[BootEntry, ...]


NO_ENTRY: Mapping[str, Json] = MappingProxyType({"made": False, "partition": None, "path": None, "entry": None})
_SET = ("made", "partition", "path")


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
        undo=UndoRule(remove_if_created={name: NO_ENTRY[name] for name in _SET}),
    )
)
class OwnBootEntry(State):
    """A boot entry, by its name, which stands in its description after `winhost-`. It is the last of the order, so that
    nothing starts it unless that is asked for once.

    partition: on which path lies, by its GUID; entry: its four digits now, which the firmware may change with any
    restart. made: null where it was begun, or the firmware forgot it.
    """

    made: bool | None
    partition: str | None
    path: str | None
    entry: str | None


WINDOWS, LINUX = "windows", "linux"
LINUX_NEXT = "linux-next"  # Windows runs, and the next start is of the other one


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
    """system: windows, or linux-next where the firmware starts the other one next; linux is told by that Linux, while
    it runs. Setting it tells the firmware what to start once (BootNext), and takes effect with a restart: the Linux, or
    where there is none yet its installer.

    linux: the path by which a boot entry starts a Linux, the first of them; null where winhost made a partition for one
    whose installer has not left its label at EFI\\ubuntu\\winhost.txt yet. installer: the four digits of the entry that
    winhost made. Null where there is none.
    """

    system: str
    linux: str | None
    installer: str | None


NO_INSTALLER: Mapping[str, Json] = MappingProxyType(
    {"made": False, **dict.fromkeys(("partition", "image", "files", "user", "address", "host_key", "ticket"))}
)
_COPYING = 3600  # seconds that some GB may take from a slow disk, also to be hashed


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
        timeout=lambda change: _COPYING if change.desired.get("made") or change.desired.get("ticket") else 60,
        undo=UndoRule(remove_if_created=NO_INSTALLER),
    )
)
class UbuntuInstaller(State):
    """The content of the installer's partition, and the identity of the new system. Its name is ubuntu.

    partition: the GUID of that which winhost made for it; image: the staged file whose content is there; files: what
    winhost puts beside and over it, JSON of texts by their paths. user, address, host_key: who may log on to the new
    system, where (null for DHCP), and the SSH key by which it is known. ticket: the SHA-256 of winhost/fetch.json on
    the partition, by which the installer gets its settings; the text of that comes as the secret of a set, is good for
    one answer, and is never told. With it the partition becomes read-only by the attribute of its table, and then all
    that lies on it must be what was put there. made: null where it was begun and not finished, or the partition is
    gone.
    """

    made: bool | None
    partition: str | None
    image: str | None
    files: str | None
    user: str | None
    address: str | None
    host_key: str | None
    ticket: str | None
