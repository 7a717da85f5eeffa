"""Boot entries that winhost makes in the firmware."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import ConsentRule, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import FLAG, GUID, or_nothing, text

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
