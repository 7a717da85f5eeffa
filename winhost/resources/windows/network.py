"""Network adapters, and how a WSL distro gets onto the network: a switch, forwarded ports, the Hyper-V firewall."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from winhost.model.facts import Json
from winhost.resources.base import Change, Keep, ResourceType, Rests, State, Undo, resource, undo_property_by_property
from winhost.resources.values import Value, one_of

ETHERNET, WIFI, TEAM, VIRTUAL, VPN = "ethernet", "wifi", "team", "virtual", "vpn"
NONE, SETTLED, UNDONE = "none", "settled", "undone"
WSL = "40e0ac32-46a5-438a-a0b2-2b479e8f2e90"  # Microsoft: "Configure Hyper-V firewall", the VMCreatorId of WSL

_GUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@dataclass(frozen=True)
class Address:
    """origin: manual, dhcp or router-advertisement. Raises ValueError for what is no address with its prefix."""

    address: str
    prefix: int
    origin: str

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_interface(f"{self.address}/{self.prefix}")
        except ValueError:
            raise ValueError("should be an IP address with the length of its prefix") from None


@resource(ResourceType("NetworkAdapter", key=("adapter",)))
class NetworkAdapter(State):
    """A network adapter by its interface GUID, which survives renaming.

    kind: ethernet, wifi, team, virtual (of a switch), vpn or other, by what its driver says (NdisPhysicalMedium,
    InterfaceType, ComponentID; which products say so is in part inferred); status: up, disconnected, disabled or down;
    speed: bits per second; vlan: null where the driver has none; profile: public, private, domain, or null without a
    network; switch: the virtual switch that is bound to it; management: a WinRM session goes over it now, of whomever;
    filters: names of those bound to it that are not Windows' own.
    """

    name: str
    description: str
    mac: str | None
    kind: str
    status: str
    speed: int | None
    vlan: int | None
    addresses: tuple[Address, ...]
    gateway: str | None
    dns: tuple[str, ...]
    profile: str | None
    switch: str | None
    management: bool
    filters: tuple[str, ...]


def _guid(value: Json) -> bool:
    return isinstance(value, str) and re.fullmatch(_GUID, value) is not None


def undo_switch(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """Only the host's record of what winhost made there gives the right to remove it."""
    if now["adapter"] is not None and now["phase"] == NONE:
        return Keep("this switch is not the one that winhost made")
    if now["vms"]:
        return Keep(f"{now['vms']} VM adapter(s) are connected to it")
    return undo_property_by_property(before, after, now)


def cuts_the_wire(change: Change) -> tuple[str, ...]:
    """Whatever it changes, somebody may be on the other end of it."""
    return ("network",)


@resource(
    ResourceType(
        "ExternalSwitch",
        key=("name",),
        sets={"adapter": Value("the interface GUID of an adapter, or nothing", lambda v: v is None or _guid(v))},
        requires="HyperVRole",
        after=("NetworkAdapter",),
        absent={"adapter": None, "management_os": False, "vms": 0, "phase": NONE, "detail": None},
        asks=("network",),
        risks=cuts_the_wire,
        rests=(Rests("WslVm", at=("mode", "bridged")),),
        undo=undo_switch,
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
    told to whoever asks for the same next; who asks again after that tries again.

    What only a real host shows: that Remove-VMSwitch gives static addresses back by itself is not relied on; DHCP may
    give another address than before (the switch has the adapter's MAC address, so most servers do not); static routes
    of an adapter that uses DHCP are not kept.
    """

    adapter: str | None
    management_os: bool
    vms: int
    phase: str
    detail: str | None


def _ipv4(value: Json) -> bool:
    try:
        return isinstance(value, str) and str(ipaddress.IPv4Address(value)) == value
    except ValueError:
        return False


def _networks(value: Json) -> bool:
    try:
        # In their one spelling; a zone, as in fe80::%1, says nothing on another machine.
        return (
            isinstance(value, list)
            and bool(value)
            and all(str(ipaddress.ip_network(each)) == each and "%" not in each for each in value)
        )
    except (ValueError, TypeError):
        return False


# Who goes back in a distro goes in by them.
WAYS_IN = (Rests("WslAccess", unless=("active", (False,))),)
NETWORKS = Value("networks (CIDR), or nothing", lambda v: v is None or _networks(v))


def port(value: Json) -> bool:
    """A number of a TCP port, as JSON has it."""
    return type(value) is int and 0 < value < 65536


@resource(
    ResourceType(
        "PortForward",
        key=("port",),
        sets={
            "target": Value("an IPv4 address, or nothing", lambda v: v is None or _ipv4(v)),
            "connect_port": Value("a port, or nothing", lambda v: v is None or port(v)),
            "allowed": NETWORKS,
        },
        absent={"target": None, "connect_port": None, "allowed": None},
        asks=("network",),
        risks=cuts_the_wire,
        rests=WAYS_IN,
    )
)
class PortForward(State):
    """A TCP port of Windows that leads to an address behind it (netsh portproxy), and who may come in (`allowed`:
    CIDR).

    For WSL in NAT mode. TCP only: portproxy knows no UDP. That address changes with each start of WSL's VM, so a
    forward holds until the next one and `verify` tells when it leads nowhere. All three are set and taken back
    together. `allowed` is empty while nobody may come in: setting it failed half-way, or somebody turned our rule off.
    """

    target: str | None
    connect_port: int | None
    allowed: tuple[str, ...] | None


@resource(
    ResourceType(
        "HyperVFirewall",
        key=("creator",),
        sets={
            "inbound": one_of("allow", "block", "not-configured"),
            "ports": Value("a list of ports", lambda v: isinstance(v, list) and all(map(port, v))),
            "allowed": NETWORKS,
        },
        asks=("network",),
        risks=cuts_the_wire,
        rests=WAYS_IN,
    )
)
class HyperVFirewall(State):
    """What may come into VMs of one maker (`WSL`), in mirrored mode.

    ports: TCP, allowed by rules of winhost's; allowed: networks (CIDR) that may come to one of them, null: everybody.
    Windows 11 22H2 and later have it: elsewhere there is no instance. That `not-configured` means `block` for WSL is
    documented; that a rule lets in what the setting blocks, too.
    """

    inbound: str
    ports: tuple[int, ...]
    allowed: tuple[str, ...] | None


@resource(ResourceType("WslPolicy"))
class WslPolicy(State):
    """Group Policy for WSL (microsoft/WSL, intune/WSL.admx): null where it says nothing, and then all is allowed.

    allow_wsl, allow_inbox: WSL at all, and the one that is part of Windows; the others: whether .wslconfig may set it.
    default_networking: 0 none, 1 NAT, 3 mirrored, 4 VirtioProxy, for whoever sets no mode.
    """

    allow_wsl: bool | None
    allow_inbox: bool | None
    allow_kernel: bool | None
    allow_kernel_command_line: bool | None
    allow_system_distro: bool | None
    allow_networking: bool | None
    allow_firewall: bool | None
    allow_nested: bool | None
    default_networking: int | None
