"""Switches, forwarded ports, and the firewall of Hyper-V."""

import ipaddress
from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import Condition, DependentRule, KeepIf, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DISTRO_ACCESS, NETWORK_CONSENT
from winhost.resources.values import FLAG, GUID, NETWORKS, Value, is_canonical, is_port, one_of, or_nothing, text

NONE, SETTLED = "none", "settled"


@resource(
    ResourceType(
        "ExternalSwitch",
        title="external switches",
        order=130,
        key=("name",),
        sets={"adapter": or_nothing(text(GUID, "the interface GUID of an adapter"))},
        requires="HyperVRole",
        after=("NetworkAdapter",),
        absent={"adapter": None, "management_os": False, "vms": 0, "phase": NONE, "detail": None},
        asks=("network",),
        risks=NETWORK_CONSENT,
        dependents=(DependentRule("WslVm", at=("mode", "bridged")),),
        # Only the host's record of what winhost made there gives the right to remove it.
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (Condition("adapter", none_of=(None,)), Condition("phase", one_of=(NONE,))),
                    "this switch is not the one that winhost made",
                ),
                KeepIf((Condition("vms", none_of=(0,)),), "{vms} VM adapter(s) are connected to it"),
            )
        ),
    )
)
class ExternalSwitch(State):
    """An external switch by its name, which is what WSL knows it by.

    adapter: whose it is for good: null before the switch is settled, and the old one until its removal is. vms:
    adapters of VMs on it. phase: none (not winhost's), pending (at work), awaiting (done, and undone again unless the
    controller comes back), settled, undone (as before: detail says why) or failed (neither: detail says what is left).

    Making and removing cut the wire, so the host does either by itself: `set` leaves a record and a scheduled task,
    which keeps the adapter's addresses, makes the switch, puts back what got lost and then waits for a second call.
    That the controller can be reached is proved by nothing but its coming back, so the first `set` never ends well:
    where the wire held, it answers `Winhost.ComeBack`, which counts as a lost answer. Either way the engine opens a new
    session, reads, finds `adapter` not yet as wanted, and asks for the same again: that is the commit. Who does not
    come back within `how.within` seconds, or lets the host restart meanwhile, finds it as it was. An undone attempt is
    reported to the next request for the same; a request after that tries again.

    What only a real host shows: that Remove-VMSwitch gives static addresses back by itself is not relied on; DHCP may
    give another address than before (the switch has the adapter's MAC address, so most servers do not); static routes
    of an adapter that uses DHCP are not kept.
    """

    adapter: str | None
    management_os: bool
    vms: int
    phase: str
    detail: str | None


NO_NAT: Mapping[str, Json] = MappingProxyType(
    {"made": False, "network": None, "address": None, "switch": None, "vms": 0}
)


def _network(value: Json) -> bool:
    """An IPv4 network with room for hosts."""
    return is_canonical(ipaddress.IPv4Network)(value) and ipaddress.IPv4Network(value).prefixlen <= 30


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


@resource(
    ResourceType(
        "PortForward",
        title="forwarded ports",
        order=370,
        key=("port",),
        sets={
            "target": Value(
                "an IPv4 address, or nothing", lambda v: v is None or is_canonical(ipaddress.IPv4Address)(v)
            ),
            "connect_port": Value("a port, or nothing", lambda v: v is None or is_port(v)),
            "allowed": NETWORKS,
        },
        absent={"target": None, "connect_port": None, "allowed": None},
        asks=("network",),
        risks=NETWORK_CONSENT,
        dependents=DISTRO_ACCESS,
    )
)
class PortForward(State):
    """A TCP port of Windows that leads to an address behind it (netsh portproxy), and who may come in (`allowed`:
    CIDR).

    For WSL in NAT mode. TCP only: portproxy knows no UDP. That address changes with each start of WSL's VM, so a
    forward holds until the next one and `verify` reports one that leads nowhere. All three are set and taken back
    together. `allowed` is empty while nobody may come in: setting it failed half-way, or somebody turned our rule off.
    """

    target: str | None
    connect_port: int | None
    allowed: tuple[str, ...] | None


WSL = "40e0ac32-46a5-438a-a0b2-2b479e8f2e90"  # Microsoft: "Configure Hyper-V firewall", the VMCreatorId of WSL


@resource(
    ResourceType(
        "HyperVFirewall",
        title="the Hyper-V firewall",
        order=380,
        key=("creator",),
        sets={
            "inbound": one_of("allow", "block", "not-configured"),
            "ports": Value("a list of ports", lambda v: isinstance(v, list) and all(map(is_port, v))),
            "allowed": NETWORKS,
        },
        asks=("network",),
        risks=NETWORK_CONSENT,
        dependents=DISTRO_ACCESS,
    )
)
class HyperVFirewall(State):
    """The inbound rules for VMs of one creator (`WSL`) in mirrored mode.

    ports: TCP, allowed by rules of winhost's; allowed: networks (CIDR) that may come to one of them, null: everybody.
    A rule of winhost's that somebody disabled opens nothing, so its port is not among them: to set `ports` replaces
    such a rule, to set `allowed` alone leaves it disabled.
    Windows 11 22H2 and later have it: elsewhere there is no instance. That `not-configured` means `block` for WSL is
    documented; that a rule lets in what the setting blocks, too.
    """

    inbound: str
    ports: tuple[int, ...]
    allowed: tuple[str, ...] | None
