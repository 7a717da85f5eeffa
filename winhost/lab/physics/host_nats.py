"""NATs of a simulated host (WinNAT), and the internal switches before which they stand.

What it rests on: the reference of modules NetNat and Hyper-V; that a second NAT is refused with "the parameter is
incorrect" is reported, and that Windows supports one is Microsoft's word.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from winhost.core.answers import Json, Record
from winhost.lab.physics.host_protocol import WindowsHost
from winhost.lab.physics.windows_network import Network
from winhost.lab.physics.windows_software import Software
from winhost.resources.windows.nat_switch import NO_NAT

_ENTRY = "nat "


class HostNats:
    """prefixes: of the NATs of a host, by their names."""

    def __init__(
        self, host: WindowsHost, network: Network, software: Software, initial: Mapping[str, Sequence[Record]]
    ) -> None:
        self._host, self._network, self._software = host, network, software
        found = {record.key["name"]: record.state["network"] for record in initial.get("NatSwitch", ())}
        self.prefixes = {name: str(prefix) for name, prefix in {**found, **host.lab.nats}.items() if prefix}

    def records(self) -> Mapping[str, Callable[[], Iterator[Record]]]:
        """The calls that list the instances."""
        return {"NatSwitch": self._listed}

    def restarted(self) -> bool:
        """They outlive restarts, and none is waiting for one."""
        return False

    # ---- what winhost notes

    def read(self, name: str) -> dict[str, Any] | None:
        text = self._software.record.get(f"{_ENTRY}{name}")
        return None if text is None else json.loads(text)

    def write(self, name: str, record: dict[str, Any] | None) -> None:
        """None takes it away."""
        self._software.write_registry(f"{_ENTRY}{name}", None if record is None else json.dumps(record))

    # ---- as a resource

    def _listed(self) -> Iterator[Record]:
        ours = [entry.removeprefix(_ENTRY) for entry in sorted(self._software.record) if entry.startswith(_ENTRY)]
        for name in ours:
            record = self.read(name) or {}
            state: dict[str, Json] = {**NO_NAT, **self._seen(self.prefixes.get(name)), "made": None}
            state["switch"] = next((s.guid for s in self._network.switches if s.guid == record["switch"]), None)
            whole = record["complete"] and state["switch"] and state["address"]
            state["made"] = True if whole and state["network"] == record["network"] else None
            yield Record({**state, "vms": self.users(state["switch"])}, {"name": name})
        for name, prefix in self.prefixes.items():
            if name.casefold() not in ours:
                seen = self._seen(prefix)
                yield Record({**NO_NAT, **seen, "vms": self.users(seen.get("switch"))}, {"name": name})

    def _seen(self, prefix: str | None) -> dict[str, Json]:
        """Where the host has an address in it."""
        if prefix is None:
            return {}
        found: dict[str, Json] = {"network": prefix}
        for each in self._network.visible_adapters():
            for address in each.addresses:
                if ip_address(str(address["address"])) in ip_network(prefix):
                    found["address"] = address["address"]
                    found["switch"] = next((s.guid for s in self._network.switches if s.port == each.guid), None)
        return found

    def users(self, switch: Json) -> int:
        """Adapters of VMs on a switch."""
        return sum(self._network.users(each) for each in self._network.switches if each.guid == switch)

    # ---- cmdlets

    def new_net_nat(self, name: str, prefix: str) -> None:
        with self._host.changing("New-NetNat"):
            if self.prefixes:
                raise self._host.fail("nat-refused", "New-NetNat")
            self.prefixes[name] = prefix

    def remove_net_nat(self, name: str) -> None:
        with self._host.changing("Remove-NetNat"):
            del self.prefixes[name]
