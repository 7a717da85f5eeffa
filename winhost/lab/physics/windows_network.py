"""The network of a simulated host: what moves between its adapters and switches."""

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from winhost.core.answers import Json, Record
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.lab_section import AdapterPhysics
from winhost.lab.physics.own_switches import (
    ADDRESSING,
    BLANK,
    Adapter,
    Switch,
    SwitchRecords,
    adapter_of,
    in_flight,
    port_name,
    set_switch,
    switch_task,
)
from winhost.lab.physics.parts import Change, Host, as_cmdlet
from winhost.lab.physics.virtual_machine import get_known, not_exposed
from winhost.lab.physics.windows_errors import WindowsObject, windows_object
from winhost.lab.physics.windows_firewall import Firewalls, rule_name, within
from winhost.resources.windows.read_only import VIRTUAL

FIRST_INDEX = 4
APPEARS = 2.0  # lab seconds until the host's port on a new switch is listed
BOUNCE = 5.0  # lab seconds without a link, after the binding of an adapter changed


class Network(Firewalls):
    """The network of a host, in the facts' words. `now` counts its lab seconds from the start."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.now = 0.0
        self.ready_at = 0.0  # until then Windows is starting, and tells nothing of switches
        self.wire = 1
        self._made = 0
        self.ours = SwitchRecords(host.files)
        self.before: Adapter | None = None  # what carried the addresses before the change that the task makes
        self._task: Iterator[None] | None = None
        self._lock = threading.RLock()
        records = enumerate(host.instances("NetworkAdapter"), FIRST_INDEX)
        self.adapters = {record.key["adapter"]: adapter_of(record, index) for index, record in records}
        self.switches = [self._make_switch(record) for record in host.instances("VmSwitch")]
        self.carrier = next((a.guid for a in self.adapters.values() if a.state["management"] is True), None)
        for record in host.instances("ExternalSwitch"):
            if record.state["phase"] != "none":
                self._take_over_switch(record)
        self.controllers = [
            str(peer) for record in host.instances("Session") for peer in get_known(record.state, "peers", ())
        ]
        host.session["peers"] = self.peers
        host.registry_keys.append(self._registry_keys)
        host.cim_classes["Win32_NetworkAdapterConfiguration"] = self._configurations

    def _take_over_switch(self, record: Record) -> None:
        """Keep the record of a switch that was read as winhost's own, but end a task that nobody can go on with."""
        guid = next((each.guid for each in self.external() if each.state["name"] == record.key["name"]), "")
        settings = {
            "name": record.key["name"],
            "adapter": record.state["adapter"] or "",
            "make": True,
            "switch": guid,
        }
        phase = "undone" if record.state["phase"] in ("pending", "awaiting") else record.state["phase"]
        state = {"seconds": 300, "begun": True, "told": True, "phase": phase, "detail": record.state["detail"]}
        self.ours.save({**settings, **state})

    def _make_switch(self, record: Record) -> Switch:
        bound = [a.guid for a in self.adapters.values() if a.state["description"] == record.state["adapter"]]
        port = [a.guid for a in self.adapters.values() if a.state["name"] == port_name(str(record.state["name"]))]
        ends = bound if record.state["kind"] == "external" else []
        return Switch(record.key["switch"], dict(record.state), next(iter(ends), None), next(iter(port), None))

    # ---- as resources

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {
            "NetworkAdapter": self._adapters,
            "VmSwitch": lambda: (Record(dict(each.state), {"switch": each.guid}) for each in self.switches),
            "ExternalSwitch": lambda: (Record(self.switch_state(name), {"name": name}) for name in self._names()),
            **super().records(),
        }

    def changes(self) -> Mapping[str, Change]:
        return {**super().changes(), "ExternalSwitch": partial(set_switch, self)}

    def _adapters(self) -> Iterator[Record]:
        for each in self.visible_adapters():
            switch = next((s.guid for s in self.external() if s.bound == each.guid), None)
            yield Record(
                {
                    **each.state,
                    "addresses": [dict(address) for address in each.addresses],
                    "status": self.status(each),
                    "switch": switch if self.host.manages_vms else None,
                    "management": not_exposed() if self.carrier is None else self.carries(each),
                },
                {"adapter": each.guid},
            )

    def visible_adapters(self) -> list[Adapter]:
        """The adapters that exist. Without Hyper-V, switches have no ports, and adapters have their addresses back."""
        hidden = {self._hidden_port(guid): guid for guid in self.adapters}
        listed = [each for each in self.adapters.values() if each.shows_at <= self.now]
        return [self._whole(each) for each in listed if each.guid not in hidden]

    def carries(self, adapter: Adapter) -> bool:
        """Tell whether somebody manages the host over this adapter."""
        return self.carrier is not None and self.carrier in (adapter.guid, self._hidden_port(adapter.guid))

    def _hidden_port(self, guid: str) -> str | None:
        if self.host.manages_vms:
            return None
        return next((each.port for each in self.external() if each.bound == guid), None)

    def _whole(self, adapter: Adapter) -> Adapter:
        port = self._hidden_port(adapter.guid)
        if port is None:
            return adapter
        carried = {name: self.adapters[port].state[name] for name in ADDRESSING}
        return replace(adapter, state={**adapter.state, **carried}, routes=self.adapters[port].routes)

    def external(self) -> list[Switch]:
        """The switches that have an adapter."""
        return [each for each in self.switches if each.state["kind"] == "external"]

    def _names(self) -> list[str]:
        ours = [str(record["name"]) for record in self.ours.believed()]
        every = [*(str(each.state["name"]) for each in self.external()), *ours]
        return list({name.casefold(): name for name in reversed(every)}.values())[::-1]

    def switch_state(self, name: str) -> dict[str, Json]:
        """The state of resource ExternalSwitch of this name."""
        state: dict[str, Json] = {"adapter": None, "management_os": False, "vms": 0, "phase": "none", "detail": None}
        record = next((each for each in self.ours.believed() if each["name"].casefold() == name.casefold()), None)
        switch = next((each for each in self.external() if each.state["name"].casefold() == name.casefold()), None)
        if switch is not None:
            state |= {
                "adapter": switch.bound,
                "management_os": switch.state["management_os"],
                "vms": self.users(switch),
            }
            if record is not None and record["switch"] != switch.guid:
                return state
        if record is not None and (record["phase"] != "settled" or state["adapter"] is not None):
            state |= {"phase": record["phase"], "detail": record["detail"]}
        if record is not None and in_flight(record):
            state["adapter"] = None if record["make"] else record["adapter"]
        return state

    def users(self, switch: Switch) -> int:
        """The number of VM adapters that are connected to a switch."""
        return self.found_users(switch) + [vm.switch for vm in self.host.vms.values()].count(switch.guid)

    def found_users(self, switch: Switch) -> int:
        """The connected adapters of VMs that were there from the beginning."""
        given: int = self.host.lab.switch_vms.get(str(switch.state["name"]), 0)
        return given

    def on_restart(self) -> bool:
        """Start a task again that the restart cut off, which then finds that it was."""
        self._task = None
        if self.ours.flying():
            self.start()
        return False

    def _configurations(self) -> Iterator[WindowsObject]:
        for each in self.visible_adapters():
            yield windows_object(
                "Win32_NetworkAdapterConfiguration",
                InterfaceIndex=each.index,
                DNSServerSearchOrder=each.state["dns"] or None,
                ServiceName=each.state["service"],
            )

    def _registry_keys(self) -> Iterator[tuple[str, Mapping[str, Json]]]:
        services = "SYSTEM\\CurrentControlSet\\Services"
        for each in self.visible_adapters():
            for family, of_it in (
                ("Tcpip", lambda server: ":" not in server),
                ("Tcpip6", lambda server: ":" in server),
            ):
                path = f"{services}\\{family}\\Parameters\\Interfaces\\{{{each.guid}}}"
                yield path, {"NameServer": ",".join(filter(of_it, each.name_servers()))}

    # ---- time, and the task that is at work

    def start(self) -> None:
        """Start the scheduled task."""
        self._task = switch_task(self)
        if self.host.clock.scale:
            threading.Thread(
                target=self._run, args=(self._task,), name=f"switch of {self.host.name}", daemon=True
            ).start()

    def _run(self, task: Iterator[None]) -> None:
        # With the host goes the task.
        with suppress(HostDown):
            while self._task is task:
                self.host.clock.sleep(1.0)
                self._second(task)

    @property
    def busy(self) -> bool:
        """Tell whether the scheduled task is at work."""
        return self._task is not None

    def pass_time(self, seconds: float) -> None:
        """Let this many lab seconds pass at once."""
        for _ in range(int(seconds)):
            self._second(self._task)

    def wait(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Sleep on this host. Where the clock stands still, the seconds pass by this."""
        if self.host.clock.scale:
            self.host.clock.sleep(seconds, stop)
        else:
            self.pass_time(seconds)

    def _second(self, task: Iterator[None] | None) -> None:
        with self._lock:
            self.now += 1.0
            if task is not None and self._task is task:
                try:
                    next(task)
                except StopIteration:
                    self._task = None

    def status(self, adapter: Adapter) -> str:
        """The status in the words of resource NetworkAdapter."""
        return "disconnected" if adapter.up_at > self.now else str(adapter.state["status"])

    def is_up(self, adapter: Adapter) -> bool:
        """Tell whether an adapter has a link."""
        return self.status(adapter) == "up"

    # ---- the wire

    @property
    def reachable(self) -> bool:
        """Tell whether those who manage this host can reach it."""
        if self.carrier is None:
            return True
        end = self.adapters[self.carrier]
        dead = any(each.dead for each in self.switches if each.port == end.guid)
        return end.up_at <= self.now and bool(end.addresses) and not dead

    def peers(self) -> list[str]:
        """The addresses of those who manage this host."""
        return (
            list(self.controllers)
            if any(self.carries(each) and each.addresses for each in self.visible_adapters())
            else []
        )

    def lets_through(self, port: int) -> bool:
        """Tell whether winhost's rules for a port of a VM also admit those who manage this host."""
        forwards = [rule_name(listening) for listening, to in self.proxies.items() if to.endswith(f"/{port}")]
        remote = [self.rules[name] for name in forwards if name in self.rules]
        if self.inbound != "allow" and port in self.vm_rules:
            remote.append(self.vm_rules[port])
        return all(within(peer, each) for peer in self.peers() for each in remote)

    def physics(self, adapter: str) -> AdapterPhysics:
        """The hidden physics of an adapter, which facts do not tell."""
        given: AdapterPhysics = self.host.lab.adapters.get(adapter, AdapterPhysics())
        return given

    # ---- cmdlets

    @as_cmdlet("New-VMSwitch")
    def new_vm_switch(self, name: str, adapter_name: str) -> Switch:
        """Make an external switch, whose port takes over what the adapter had."""
        adapter = next((a for a in self.visible_adapters() if a.state["name"] == adapter_name), None)
        bound = adapter is not None and any(each.bound == adapter.guid for each in self.external())
        if adapter is None or bound or self.physics(adapter.guid).refuses:
            raise self.host.fail("switch-not-made", "New-VMSwitch", switch=name)
        made = self._new_switch(name, adapter, f"switch {adapter.guid} {self._made}")
        port = self.adapters[str(made.port)]
        self._move(adapter, port)
        physics = self.physics(adapter.guid)
        if physics.loses_static and port.manual():
            port.addresses[:] = []
            port.routes, port.metric = [], None
            port.state |= {"gateway": None, "dns": []}
        if physics.loses_link:
            port.up_at = float("inf")
        if physics.lease and not port.manual():
            port.addresses[:] = [{"address": physics.lease, "prefix": 24, "origin": "dhcp"}]
        return made

    @as_cmdlet("New-VMSwitch")
    def new_internal_vm_switch(self, name: str) -> Switch:
        """Make a switch of which the host's port has no address yet."""
        return self._new_switch(name, None, f"switch {self.host.name} {name} {self._made}")

    def _new_switch(self, name: str, adapter: Adapter | None, seed: str) -> Switch:
        guid, bound = str(uuid.uuid5(uuid.NAMESPACE_OID, seed)), None if adapter is None else adapter.guid
        under = adapter or Adapter(guid, 0, {**BLANK})
        port = Adapter(
            guid=str(uuid.uuid5(uuid.NAMESPACE_OID, f"port {under.guid} {name}")),
            index=max(each.index for each in self.adapters.values()) + 1,
            state={**under.state, "addresses": [], "gateway": None, "dns": [], "profile": None, "kind": VIRTUAL},
            shows_at=self.now + APPEARS,
        )
        port.state |= {"name": port_name(name), "description": "Hyper-V Virtual Ethernet Adapter"}
        port.state |= {"vlan": None, "filters": [], "management": False}
        self.adapters[port.guid] = port
        state: dict[str, Any] = {"name": name, "kind": "external" if adapter else "internal", "management_os": True}
        state["adapter"] = None if adapter is None else adapter.state["description"]
        made = Switch(guid, state, bound, port.guid, dead=bound is not None and not self.physics(bound).comes_back)
        self.switches.append(made)
        self._made += 1
        return made

    @as_cmdlet("Remove-VMSwitch", "!Force", guid="VMSwitch[].Id")
    def remove_vm_switch(self, guid: str) -> None:
        """Remove a switch; the adapter gets the settings of its port."""
        switch = next(each for each in self.switches if each.guid == guid)
        self.switches.remove(switch)
        if switch.port is not None:
            port = self.adapters.pop(switch.port)
            if switch.bound is not None:
                self._move(port, self.adapters[switch.bound])

    @as_cmdlet("New-NetIPAddress", index="InterfaceIndex", address="IPAddress", prefix="PrefixLength")
    def new_net_ip_address(self, index: int, address: str, prefix: int) -> None:
        self._by_index(index).add_address(address, prefix)

    @as_cmdlet("New-NetRoute", "RouteMetric", index="InterfaceIndex", to="DestinationPrefix", by="NextHop")
    def new_net_route(self, index: int, to: str, by: str) -> None:
        self._by_index(index).add_route(to, by)

    @as_cmdlet("Set-DnsClientServerAddress", index="InterfaceIndex[]", servers="ServerAddresses")
    def set_dns_client_server_address(self, index: int, servers: list[str]) -> None:
        self._by_index(index).state["dns"] = list(servers)

    @as_cmdlet("Set-NetIPInterface", "AddressFamily", index="InterfaceIndex[]", metric="InterfaceMetric")
    def set_net_ip_interface(self, index: int, metric: int) -> None:
        self._by_index(index).metric = metric

    @as_cmdlet("Set-NetConnectionProfile", index="InterfaceIndex[]", category="NetworkCategory:word")
    def set_net_connection_profile(self, index: int, category: str) -> None:
        self._by_index(index).state["profile"] = category

    @as_cmdlet("Set-VMNetworkAdapterVlan")
    def set_vm_network_adapter_vlan(self, port: str, vlan: int) -> None:
        self.adapters[port].tag = vlan

    def _by_index(self, index: int) -> Adapter:
        return next(each for each in self.adapters.values() if each.index == index)

    def _move(self, giver: Adapter, taker: Adapter) -> None:
        for name in ADDRESSING:
            taker.state[name], giver.state[name] = giver.state[name], [] if name in ("addresses", "dns") else None
        taker.routes, giver.routes = giver.routes, []
        taker.metric, giver.metric = giver.metric, None
        taker.up_at = self.now + BOUNCE
        # Windows takes a network that it sees over another interface for a new one.
        if taker.state["profile"] == "private":
            taker.state["profile"] = "public"
        if self.carrier == giver.guid:
            self.carrier = taker.guid
            self.wire += 1
