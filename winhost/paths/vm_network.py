"""The network of a VM of winhost's own: its switch, its address, and how it is reached where that is behind NAT."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from ipaddress import IPv4Interface, IPv4Network, ip_address
from typing import Annotated

from pydantic import Field

from winhost.core.answers import Json, MissingFact, Unavailable
from winhost.core.dataclass import dataclass
from winhost.model.facts import Instance
from winhost.model.reason import Refusal
from winhost.paths.setting_values import DHCP, OwnAddress, PublishedEndpoint
from winhost.paths.wsl2 import host_networks
from winhost.resources.host import HostFacts
from winhost.resources.windows.network import NatSwitch
from winhost.resources.windows.read_only import NetworkAdapter, VmSwitch

NAT = "winhost-nat"
_SSH, _FORWARDED = 22, 2222
_RANGES = ("192.168.211.0/24", "172.29.211.0/24", "10.211.0.0/24")
_FIRST_GUEST = 10  # below are the host and what somebody may add by hand


class VmNetworkSettings(OwnAddress):
    """The settings of a new VM's network."""

    switch: str | None = None
    """The virtual switch by its name; left out, the only external one with a link. Where there is none, a network
    behind NAT: the one that the host has, or an internal switch that winhost makes.
    """
    vlan: Annotated[int, Field(strict=True, ge=1, le=4094)] | None = None
    ssh_port: Annotated[int, Field(strict=True, ge=1, le=65535)] = _FORWARDED
    """Behind NAT: the port of the host that leads to SSH of the guest."""
    allow: tuple[IPv4Network, ...] = ()
    """Behind NAT: networks that may come to that port. Default: those that the host is in."""


@dataclass(frozen=True)
class VmNetwork:
    """switch: by its GUID, None until winhost has made it; address: with its prefix, None for DHCP; nat: the network
    behind NAT that it is in.
    """

    switch: str | None
    address: str | None
    gateway: str | None
    dns: tuple[str, ...]
    nat: str | None = None

    @property
    def known_switch(self) -> str:
        """Raises MissingFact until it is made."""
        if self.switch is None:
            raise MissingFact("VmSwitch", Unavailable(NatSwitch.resource_type.name))
        return self.switch


def vm_network(facts: HostFacts, name: str, asked: VmNetworkSettings) -> VmNetwork:
    """Raises Refusal, MissingFact."""
    switch = _choose_switch(facts, asked.switch)
    nat = _choose_nat(facts, switch)
    found = _bridged_network(asked, switch) if nat is None else _nat_network(facts, name, asked, nat)
    address = str(IPv4Interface(found.address).ip) if found.address else None
    for adapter in facts.all(NetworkAdapter) if address else ():
        if any(each.address == address for each in adapter.state.addresses):
            raise Refusal(
                "vm.address-taken",
                f"The host itself has the address {address}, on {adapter.state.name}.",
                "Choose another one with --address.",
            )
    return found


def nats_to_make(network: VmNetwork, facts: HostFacts) -> tuple[Mapping[str, Json], ...]:
    """The NAT that winhost makes for this network, also if it has made it already."""
    found = facts.find(NatSwitch, {"name": NAT})
    ours = found is not None and found.made is not False
    return ({"name": NAT, "network": network.nat},) if network.nat and (network.switch is None or ours) else ()


def guest_forwards(
    facts: HostFacts, network: VmNetwork, asked: VmNetworkSettings, endpoint: PublishedEndpoint | None = None
) -> tuple[Mapping[str, Json], ...]:
    """The ports of the host that lead to the guest's SSH, and to what it serves, where it is behind NAT. Raises
    MissingFact.
    """
    if network.nat is None or network.address is None:
        return ()
    allowed = list(map(str, asked.allow)) or list(host_networks(facts))
    target = str(IPv4Interface(network.address).ip)
    named = "as you set it" if asked.allow else "the host's own; others: --set new_vm.allow=[…]"
    who = f"{', '.join(allowed)} ({named})"
    ssh = {"port": str(asked.ssh_port), "target": target, "connect": _SSH, "allowed": allowed, "who": who}
    if endpoint is None:
        return ({**ssh, "what": "SSH"},)
    served = {"port": str(endpoint.port), "target": target, "connect": endpoint.port, "allowed": endpoint.networks}
    return ({**ssh, "what": "SSH"}, {**served, "who": endpoint.who, "what": "the endpoint"})


def _bridged_network(asked: VmNetworkSettings, switch: Instance[VmSwitch] | None) -> VmNetwork:
    assert switch is not None
    dns = tuple(map(str, asked.dns))
    if asked.address == DHCP:
        return VmNetwork(switch.key["switch"], None, None, dns)
    if asked.gateway is None:
        raise Refusal(
            "vm.no-gateway",
            f"The address {asked.address} comes without a gateway.",
            "Name the gateway of its network with --gateway, and its name servers with --dns.",
        )
    return VmNetwork(switch.key["switch"], asked.address, str(asked.gateway), dns)


def _nat_network(facts: HostFacts, name: str, asked: VmNetworkSettings, nat: NatSwitch) -> VmNetwork:
    assert nat.network is not None
    network = IPv4Network(nat.network)
    address = _nat_address(network, name) if asked.address == DHCP else IPv4Interface(asked.address)
    if address.network != network:
        raise Refusal(
            "vm.not-in-nat",
            f"The address {address} is not in the network behind NAT, {network}.",
            f"Choose one of that network, as {_nat_address(network, name)}, or leave --address out.",
        )
    gateway = nat.address or str(network[1])
    dns = tuple(map(str, asked.dns)) or tuple(_host_dns(facts))
    if not dns:
        raise Refusal(
            "vm.no-dns",
            "Behind NAT the guest would have no name server: the host uses none that can be reached from there.",
            "Name some with --dns.",
        )
    return VmNetwork(nat.switch, str(address), gateway, dns, str(network))


def _nat_address(network: IPv4Network, name: str) -> IPv4Interface:
    """Choose an address behind NAT, always the same for a VM of this name."""
    free = network.num_addresses - _FIRST_GUEST - 1
    at = _FIRST_GUEST + int(sha256(name.encode()).hexdigest()[:8], 16) % free if free > 0 else 2
    return IPv4Interface(f"{network[at]}/{network.prefixlen}")


def _host_dns(facts: HostFacts) -> Iterator[str]:
    """Name servers of the adapters that lead out of the host; one on the host itself answers nobody else as a rule."""
    outward = (each.state for each in facts.all(NetworkAdapter) if each.state.gateway is not None)
    servers = dict.fromkeys(server for adapter in outward for server in adapter.dns)
    return (each for each in servers if (found := ip_address(each)).version == 4 and not found.is_loopback)


def _choose_nat(facts: HostFacts, switch: Instance[VmSwitch] | None) -> NatSwitch | None:
    """Find the NAT that the VM will be behind: that of its switch, or one that is still to be made."""
    every = [each.state for each in facts.all(NatSwitch)]
    if switch is not None:
        return next((each for each in every if each.switch == switch.key["switch"] and each.network), None)
    begun = facts.find(NatSwitch, {"name": NAT})
    if begun is not None and begun.made is not False and begun.network:
        return begun
    others = [each for each in facts.all(NatSwitch) if each.key["name"] != NAT]
    if others:
        raise Refusal(
            "vm.other-nat",
            f"The host has the NAT {others[0].key['name']} for {others[0].state.network or 'a network of its own'}, "
            "which has no internal switch, and Windows has one NAT at a time.",
            "Create an external switch by hand (New-VMSwitch -NetAdapterName NAME -AllowManagementOS $true interrupts "
            "the network of that adapter), or name an internal one with --switch, whose network you provide.",
        )
    return NatSwitch(made=False, network=_free_range(facts), address=None, switch=None, vms=0)


def _free_range(facts: HostFacts) -> str:
    """Choose a network that the host is not in itself."""
    taken = [
        IPv4Interface(f"{each.address}/{each.prefix}").network
        for adapter in facts.all(NetworkAdapter)
        for each in adapter.state.addresses
        if ip_address(each.address).version == 4
    ]
    for network in map(IPv4Network, _RANGES):
        if not any(network.overlaps(each) for each in taken):
            return str(network)
    raise Refusal(
        "vm.no-nat-range",
        f"The host is in all of the networks that winhost would take for NAT: {', '.join(_RANGES)}.",
        "Create an internal switch with a NAT by hand, and name it with --switch.",
    )


def _choose_switch(facts: HostFacts, asked: str | None) -> Instance[VmSwitch] | None:
    """Choose the named switch; else the only external one with a link; else that of the host's NAT; None to make one.

    winhost never makes an external one: that could cut the way to the host.
    """
    every = facts.all(VmSwitch)
    if asked is not None:
        found = [each for each in every if each.state.name == asked]
        if len(found) != 1:
            names = ", ".join(each.state.name for each in every) or "none"
            raise Refusal(
                "vm.no-switch",
                f"{len(found) or 'No'} virtual switches of the host are called {asked}; there are: {names}.",
                "Name one of them with --switch, or create it first.",
            )
        return found[0]
    fitting = [each for each in every if each.state.kind == "external" and _has_link(facts, each)]
    if len(fitting) > 1:
        raise Refusal(
            "vm.which-switch",
            f"The host has {len(fitting)} external switches: {', '.join(each.state.name for each in fitting)}.",
            "Name one of them with --switch.",
        )
    natted = [each.state.switch for each in facts.all(NatSwitch) if each.state.network and each.state.address]
    return fitting[0] if fitting else next((each for each in every if each.key["switch"] in natted), None)


def _has_link(facts: HostFacts, switch: Instance[VmSwitch]) -> bool:
    """Tell whether the adapters of the switch are up. Windows does not list a team that only the switch knows: it
    counts as up.
    """
    bound = [each.state for each in facts.all(NetworkAdapter) if each.state.switch == switch.key["switch"]]
    return all(adapter.status == "up" for adapter in bound)
