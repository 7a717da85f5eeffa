"""NATs of a simulated host (WinNAT), and their internal switches.

Sources: the reference of modules NetNat and Hyper-V. Microsoft documents that Windows supports one NAT; by reports it
refuses a second one with "the parameter is incorrect".
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

from winhost.core.answers import Json, Record
from winhost.lab.physics.parts import Change, Host, ManagedKind, Part, StoredRecord, as_cmdlet
from winhost.lab.physics.windows_errors import refusal
from winhost.lab.physics.windows_network import PORT_DELAY, Network
from winhost.resources.windows.network import NO_NAT


class HostNats(Part):
    """The NATs of a host. prefixes: their networks, by the NAT's name."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._network: Network = host.network
        recorded = {record.key["name"]: record.state["network"] for record in host.initial.get("NatSwitch", ())}
        self.prefixes = {name: str(prefix) for name, prefix in {**recorded, **host.lab.nats}.items() if prefix}

    def records(self) -> Mapping[str, Callable[[], Iterator[Record]]]:
        return {"NatSwitch": self._list_nats}

    # ---- as a resource

    def changes(self) -> Mapping[str, Change]:
        return {"NatSwitch": partial(self.set_managed, ManagedKind("nat", self._make, self._remove))}

    def _make(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        network = desired["network"]
        for other, prefix in self.prefixes.items():
            if record is None or other.casefold() != name:
                raise refusal("OtherNat", other=other, prefix=prefix)
        new_record: StoredRecord = {
            "network": network,
            "switch": record and record["switch"],
            "complete": False,
            "name": name,
        }
        switches = (each for each in self._network.switches if str(each.state["name"]).casefold() == name)
        switch = next(switches, None)
        if switch is not None and (record is None or new_record["switch"] not in (None, switch.guid)):
            raise refusal("NameTaken", what="switch", name=name)
        switch = switch or self._network.new_internal_vm_switch(name)
        port, subnet = self._network.adapters[str(switch.port)], ip_network(network)
        self._network.wait(PORT_DELAY)
        port.add_address(str(subnet[1]), subnet.prefixlen)
        if not self.prefixes:
            self.new_net_nat(name, network)
        self.store_record("nat", name, {**new_record, "switch": switch.guid, "complete": True})

    def _remove(self, name: str, record: StoredRecord) -> None:
        for each in [other for other in self.prefixes if other.casefold() == name]:
            self.remove_net_nat(each)
        for switch in list(self._network.switches):
            if switch.guid == record["switch"]:
                self._network.remove_vm_switch(switch.guid)

    def _list_nats(self) -> Iterator[Record]:
        records = dict(self.stored_records("nat"))
        for name, record in records.items():
            state: dict[str, Json] = {**NO_NAT, **self._network_state(self.prefixes.get(name)), "made": None}
            state["switch"] = next((s.guid for s in self._network.switches if s.guid == record["switch"]), None)
            is_complete = record["complete"] and state["switch"] and state["address"]
            state["made"] = True if is_complete and state["network"] == record["network"] else None
            yield Record({**state, "vms": self.users(state["switch"])}, {"name": name})
        for name, prefix in self.prefixes.items():
            if name.casefold() not in records:
                state = self._network_state(prefix)
                yield Record({**NO_NAT, **state, "vms": self.users(state.get("switch"))}, {"name": name})

    def _network_state(self, prefix: str | None) -> dict[str, Json]:
        """Return the properties of a network: the host's address in it, and the switch of that address."""
        if prefix is None:
            return {}
        state: dict[str, Json] = {"network": prefix}
        for each in self._network.visible_adapters():
            for address in each.addresses:
                if ip_address(str(address["address"])) in ip_network(prefix):
                    state["address"] = address["address"]
                    state["switch"] = next((s.guid for s in self._network.switches if s.port == each.guid), None)
        return state

    def users(self, switch: Json) -> int:
        """Return the number of VM adapters on a switch."""
        return sum(self._network.users(each) for each in self._network.switches if each.guid == switch)

    # ---- cmdlets

    @as_cmdlet("New-NetNat", name="Name", prefix="InternalIPInterfaceAddressPrefix")
    def new_net_nat(self, name: str, prefix: str) -> None:
        self.prefixes[name] = prefix

    @as_cmdlet("Remove-NetNat", name="InputObject[].DeviceID")
    def remove_net_nat(self, name: str) -> None:
        del self.prefixes[name]
