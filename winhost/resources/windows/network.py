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
        # A switch is removed only if the host has a record that winhost created it.
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
    """An external switch by its name, by which WSL refers to it.

    - adapter: the adapter to which the switch is bound once that is committed: null until a new switch is committed,
      and the former adapter until its removal is committed.
    - vms: the number of VM adapters connected to it.
    - phase: none (not created by winhost), pending (the change is being made), awaiting (the change is made, and is
      undone unless the controller commits it), settled (committed), undone (as before; detail says why) or failed
      (neither; detail says what remains).

    Creating or removing the switch interrupts the network, so a scheduled task on the host does it: it saves the
    adapter's addresses, changes the switch, restores addresses that got lost, and waits for the commit. Only a new
    connection proves that the controller can still reach the host, so the first `set` never succeeds: if the
    connection survived, it answers `Winhost.ComeBack`, which counts as a lost answer. The engine then opens a new
    session, reads the switch, finds `adapter` not as desired, and sends the same `set` again, which is the commit.
    Without a commit within `how.within` seconds, or after a restart of the host, the task undoes the change. The next
    request for the same change reports that; a further request tries again.

    Not relied on, because only a real host would show it: that Remove-VMSwitch restores static addresses by itself.
    DHCP may assign another address than before, although most servers do not, because the switch has the adapter's MAC
    address. Static routes of an adapter that uses DHCP are not restored.
    """

    adapter: str | None
    management_os: bool
    vms: int
    phase: str
    detail: str | None


NO_NAT: Mapping[str, Json] = MappingProxyType(
    {"made": False, "network": None, "address": None, "switch": None, "vms": 0}
)


def _is_host_network(value: Json) -> bool:
    """Tell whether it is an IPv4 network with addresses for hosts."""
    return is_canonical(ipaddress.IPv4Network)(value) and ipaddress.IPv4Network(value).prefixlen <= 30


@resource(
    ResourceType(
        "NatSwitch",
        title="networks behind NAT",
        order=115,
        key=("name",),
        sets={"made": FLAG, "network": or_nothing(Value("an IPv4 network, as 192.168.211.0/24", _is_host_network))},
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

    winhost creates an internal switch of that name, gives the host's port on it the first address of the network, and
    creates the NAT; it changes no network adapter of the host. Windows supports one such NAT at a time, so none is
    created if there is another. made: winhost created it completely; null if creating it was interrupted, or if
    somebody removed a part of it since. switch: the internal switch on which the host has an address of the network
    (address); vms: the number of VM adapters connected to it.
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
    """A TCP port of Windows that is forwarded to an address behind it (netsh portproxy), for WSL in NAT mode.

    allowed: networks (CIDR) that may connect; empty if none may, because setting it was interrupted or somebody
    disabled winhost's firewall rule. portproxy does not support UDP. The target address changes at each start of WSL's
    VM, so a forward is valid until the next start, and `verify` reports one that has no target. The three properties
    are set and undone together.
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
    """The inbound rules of the Hyper-V firewall for VMs of one creator (`WSL`) in mirrored mode.

    ports: TCP ports that winhost's rules open; allowed: networks (CIDR) that may connect to them, null for all. A rule
    of winhost's that somebody disabled opens no port, so it is not listed: setting `ports` replaces such a rule,
    setting `allowed` alone leaves it disabled. Windows before Windows 11 22H2 has no such firewall, and no instance.
    Documented: for WSL, `not-configured` means `block`, and a rule allows traffic that this setting blocks.
    """

    inbound: str
    ports: tuple[int, ...]
    allowed: tuple[str, ...] | None
