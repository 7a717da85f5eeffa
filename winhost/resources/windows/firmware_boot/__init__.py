"""The boot variables of the firmware as they are, not as bcdedit tells of them."""

from winhost.core.dataclass import dataclass
from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import or_nothing, text

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
