"""VMs that winhost makes."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, KeepIf, UndoRule
from winhost.model.units import Bytes, MiB
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import FLAG, GUID, Value, or_nothing, sizes, text

NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
"""A VM of ours, its folder and its guest have one name, so it is one that all three can have."""

NO_VM: Mapping[str, Json] = MappingProxyType(
    {
        "made": False,
        "ours": False,
        "id": None,
        "cpus": None,
        "memory": None,
        "switch": None,
        "vlan": None,
        "mac": None,
        "secure_boot": None,
    }
)
_SET = ("made", "cpus", "memory", "switch", "vlan", "mac", "secure_boot")


def _up_to(most: int, expected: str) -> Value:
    return or_nothing(Value(expected, lambda value: type(value) is int and 0 < value <= most))


@resource(
    ResourceType(
        "OwnVm",
        title="the new VM",
        order=185,
        key=("name",),
        sets={
            "made": FLAG,
            "cpus": _up_to(2048, "a number of processors"),
            "memory": or_nothing(sizes(2 * MiB)),
            "switch": or_nothing(text(GUID, "the GUID of a switch")),
            "vlan": _up_to(4094, "a VLAN, 1 to 4094"),
            "mac": or_nothing(text("[0-9A-F]{12}", "a MAC address as Hyper-V writes it, 02AB00112233")),
            "secure_boot": or_nothing(FLAG),
        },
        after=("VmDisk", "NatSwitch"),
        requires="HyperVRole",
        absent=NO_VM,
        asks=("data",),
        risks=(ConsentRule("data", (Condition("made", of="desired", one_of=(False,)),)),),
        known_as=("vm", "id"),
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (
                        Condition("made", of="before", one_of=(False,)),
                        Condition("id", none_of=(None,)),
                        Condition("ours", one_of=(False,)),
                    ),
                    "its notes no longer have the mark that winhost put there",
                ),
            ),
            remove_if_created={name: NO_VM[name] for name in _SET},
        ),
    )
)
class OwnVm(State):
    """A VM that winhost made, by its name: generation 2, with its `VmDisk` and one network adapter.

    It is known by its id, which the host keeps a record of, and by a mark in the VM's notes; ours: it has both. made:
    null while it was begun and not finished, or somebody took it or its mark away since. Static memory, no checkpoints,
    no nested virtualization, turned off when the host stops; COM1 is the pipe \\\\.\\pipe\\<id>, for the boot log.
    secure_boot: on, with the template for Linux, Microsoft's UEFI certificate authority, asked for by id and read back.
    switch: the GUID of the switch that it is on; mac: static. Taken away it must be off, with no device assigned.
    """

    made: bool | None
    ours: bool
    id: str | None
    cpus: int | None
    memory: Bytes | None
    switch: str | None
    vlan: int | None
    mac: str | None
    secure_boot: bool | None
