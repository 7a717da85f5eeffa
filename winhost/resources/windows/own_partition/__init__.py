"""Partitions that winhost makes for another system."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, KeepIf, UndoRule
from winhost.model.units import Bytes, MiB
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import FLAG, GUID, or_nothing, sizes, text

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
