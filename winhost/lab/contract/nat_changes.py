"""What the script of networks behind NAT does, on a simulated host."""

import re
from ipaddress import IPv4Network

from winhost.core.answers import Json
from winhost.lab.contract.set_call import SetCall
from winhost.lab.physics.network_adapters import Adapter, Switch
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import bad_request, own_error, wrong_place
from winhost.resources.windows.own_vm import NAME

_LISTED_WITHIN = 60


def set_nat(machine: Machine, asked: SetCall) -> None:
    """Made with an internal switch, or taken away with it. Raises CmdletError."""
    name = asked.key["name"]
    if not re.fullmatch(NAME, name):
        raise bad_request("The name of a NAT has lower-case letters, digits and dashes between them.")
    if "made" not in asked.desired:
        raise wrong_place("A NAT keeps its network: take it away first.")
    if not asked.desired["made"]:
        _remove(machine, name)
        return
    network = asked.desired.get("network")
    if network is None:
        raise bad_request("network is an IPv4 network with room for hosts.")
    _make(machine, name, str(network))


def _make(machine: Machine, name: str, network: str) -> None:
    nats, record = machine.nats, machine.nats.read(name)
    for other, prefix in nats.prefixes.items():
        if record is None or other.casefold() != name:
            said = f"The host has the NAT {other} for {prefix} already, and Windows has one at a time."
            raise own_error("OtherNat", "ResourceExists", said)
    mine: dict[str, Json] = {"network": network, "switch": record and record["switch"], "complete": False, "name": name}
    switch = _named(machine, name)
    if switch is not None and (record is None or mine["switch"] not in (None, switch.guid)):
        raise own_error("NameTaken", "ResourceExists", f"There is a switch {name} already, which winhost did not make.")
    nats.write(name, mine)
    switch = switch or machine.network.new_internal_vm_switch(name)
    mine["switch"] = switch.guid
    nats.write(name, mine)
    _give_address(machine, switch, IPv4Network(network))
    if not nats.prefixes:
        nats.new_net_nat(name, network)
    nats.write(name, {**mine, "complete": True})


def _named(machine: Machine, name: str) -> Switch | None:
    return next((each for each in machine.network.switches if str(each.state["name"]).casefold() == name), None)


def _give_address(machine: Machine, switch: Switch, network: IPv4Network) -> None:
    port, address = _listed(machine, switch), str(network[1])
    if all(each["address"] != address for each in port.addresses):
        machine.network.new_net_ip_address(port.index, address, network.prefixlen)


def _listed(machine: Machine, switch: Switch) -> Adapter:
    """The host's port on a new switch does not show at once."""
    for _ in range(_LISTED_WITHIN):
        machine.network.wait(1.0)
        if found := [each for each in machine.network.visible_adapters() if each.guid == switch.port]:
            return found[0]
    raise own_error("NotFound", "ObjectNotFound", f"The host has no port on switch {switch.state['name']}.")


def _remove(machine: Machine, name: str) -> None:
    nats, record = machine.nats, machine.nats.read(name)
    if record is None:
        return
    if nats.users(record["switch"]):
        raise wrong_place("VMs are connected to it.")
    for each in [other for other in nats.prefixes if other.casefold() == name]:
        nats.remove_net_nat(each)
    for switch in list(machine.network.switches):
        named = record["switch"] is None and str(switch.state["name"]).casefold() == name
        if named or switch.guid == record["switch"]:
            machine.network.remove_vm_switch(switch.guid)
    nats.write(name, None)
