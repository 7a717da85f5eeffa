"""Networks behind the host's own address."""

import ipaddress
from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import Condition, KeepIf, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import FLAG, Value, or_nothing

NO_NAT: Mapping[str, Json] = MappingProxyType(
    {"made": False, "network": None, "address": None, "switch": None, "vms": 0}
)


def _network(value: Json) -> bool:
    try:
        return isinstance(value, str) and str(found := ipaddress.IPv4Network(value)) == value and found.prefixlen <= 30
    except ValueError:
        return False


@resource(
    ResourceType(
        "NatSwitch",
        title="networks behind NAT",
        order=115,
        key=("name",),
        sets={"made": FLAG, "network": or_nothing(Value("an IPv4 network, as 192.168.211.0/24", _network))},
        after=("HyperVRole",),
        requires="HyperVRole",
        absent=NO_NAT,
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (Condition("made", of="before", one_of=(False,)), Condition("vms", none_of=(0,))),
                    "{vms} VM adapter(s) are connected to it",
                ),
            ),
            remove_if_created={name: NO_NAT[name] for name in ("made", "network")},
        ),
    )
)
class NatSwitch(State):
    """A network of VMs behind the host's address, by the name of its NAT (WinNAT).

    One that winhost makes is an internal switch of that name, the first address of the network for the host's own port
    on it, and the NAT; no network adapter of the host is touched. Windows has one such NAT at a time, so beside another
    none is made. made: by winhost, and whole; null while it was begun and not finished, or somebody took a part of it
    away since. switch: the internal switch on which the host has an address in the network, address; vms: adapters of
    VMs on it.
    """

    made: bool | None
    network: str | None
    address: str | None
    switch: str | None
    vms: int
