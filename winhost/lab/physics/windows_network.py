"""The network of a simulated host: adapters and switches, the settings that move between them, and its reachability."""

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
    is_pending,
    port_name,
    set_switch,
    switch_task,
)
from winhost.lab.physics.parts import Change, Host, as_cmdlet
from winhost.lab.physics.virtual_machine import get_known, unexposed_property
from winhost.lab.physics.windows_errors import WindowsObject, windows_object
from winhost.lab.physics.windows_firewall import Firewalls, is_within, rule_name
from winhost.resources.windows.read_only import VIRTUAL

FIRST_INDEX = 4
PORT_DELAY = 2.0  # lab seconds until the host's port on a new switch is listed
LINK_DELAY = 5.0  # lab seconds without a link, after the binding of an adapter changed


class Network(Firewalls):
    """The network of a host. now: its lab seconds since the start; epoch: changes each time that connections break."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.now = 0.0
        self.ready_at = 0.0  # until then Windows is starting, and does not list switches
        self.epoch = 1
        self._created_switches = 0
        self.switch_records = SwitchRecords(host.files)
        self.previous_adapter: Adapter | None = None  # the adapter with the addresses before the task's change
        self._task: Iterator[None] | None = None
        self._lock = threading.RLock()
        records = enumerate(host.instances("NetworkAdapter"), FIRST_INDEX)
        self.adapters = {record.key["adapter"]: adapter_of(record, index) for index, record in records}
        self.switches = [self._load_switch(record) for record in host.instances("VmSwitch")]
        self.management_adapter = next((a.guid for a in self.adapters.values() if a.state["management"] is True), None)
        for record in host.instances("ExternalSwitch"):
            if record.state["phase"] != "none":
                self._load_own_switch(record)
        self.controllers = [
            str(peer) for record in host.instances("Session") for peer in get_known(record.state, "peers", ())
        ]
        host.session["peers"] = self.peers
        host.registry_keys.append(self._registry_keys)
        host.cim_classes["Win32_NetworkAdapterConfiguration"] = self._configurations

    def _load_own_switch(self, record: Record) -> None:
        """Write winhost's record of a switch from the facts. A task that was running then counts as undone."""
        guid = next((each.guid for each in self.external_switches() if each.state["name"] == record.key["name"]), "")
        settings = {"name": record.key["name"], "adapter": record.state["adapter"] or "", "make": True, "switch": guid}
        phase = "undone" if record.state["phase"] in ("pending", "awaiting") else record.state["phase"]
        state = {"seconds": 300, "begun": True, "told": True, "phase": phase, "detail": record.state["detail"]}
        self.switch_records.save({**settings, **state})

    def _load_switch(self, record: Record) -> Switch:
        adapters = [a.guid for a in self.adapters.values() if a.state["description"] == record.state["adapter"]]
        ports = [a.guid for a in self.adapters.values() if a.state["name"] == port_name(str(record.state["name"]))]
        bound_adapters = adapters if record.state["kind"] == "external" else []
        return Switch(
            record.key["switch"], dict(record.state), next(iter(bound_adapters), None), next(iter(ports), None)
        )

    # ---- as resources

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {
            "NetworkAdapter": self._adapters,
            "VmSwitch": lambda: (Record(dict(each.state), {"switch": each.guid}) for each in self.switches),
            "ExternalSwitch": lambda: (
                Record(self.switch_state(name), {"name": name}) for name in self._switch_names()
            ),
            **super().records(),
        }

    def changes(self) -> Mapping[str, Change]:
        return {**super().changes(), "ExternalSwitch": partial(set_switch, self)}

    def _adapters(self) -> Iterator[Record]:
        for each in self.visible_adapters():
            switch = next((s.guid for s in self.external_switches() if s.adapter_guid == each.guid), None)
            yield Record(
                {
                    **each.state,
                    "addresses": [dict(address) for address in each.addresses],
                    "status": self.status(each),
                    "switch": switch if self.host.manages_vms else None,
                    "management": unexposed_property()
                    if self.management_adapter is None
                    else self.is_management_adapter(each),
                },
                {"adapter": each.guid},
            )

    def visible_adapters(self) -> list[Adapter]:
        """Return the listed adapters. Without Hyper-V, an adapter replaces its switch's port and has its settings."""
        hidden_ports = {self._hidden_port(guid): guid for guid in self.adapters}
        listed = [each for each in self.adapters.values() if each.listed_at <= self.now]
        return [self._with_port_settings(each) for each in listed if each.guid not in hidden_ports]

    def is_management_adapter(self, adapter: Adapter) -> bool:
        """Tell whether the controller manages the host over this adapter."""
        return self.management_adapter is not None and self.management_adapter in (
            adapter.guid,
            self._hidden_port(adapter.guid),
        )

    def _hidden_port(self, guid: str) -> str | None:
        if self.host.manages_vms:
            return None
        return next((each.port for each in self.external_switches() if each.adapter_guid == guid), None)

    def _with_port_settings(self, adapter: Adapter) -> Adapter:
        port = self._hidden_port(adapter.guid)
        if port is None:
            return adapter
        settings = {name: self.adapters[port].state[name] for name in ADDRESSING}
        return replace(adapter, state={**adapter.state, **settings}, routes=self.adapters[port].routes)

    def external_switches(self) -> list[Switch]:
        """Return the external switches."""
        return [each for each in self.switches if each.state["kind"] == "external"]

    def _switch_names(self) -> list[str]:
        switch_records = [str(record["name"]) for record in self.switch_records.trusted_records()]
        names = [*(str(each.state["name"]) for each in self.external_switches()), *switch_records]
        return list({name.casefold(): name for name in reversed(names)}.values())[::-1]

    def switch_state(self, name: str) -> dict[str, Json]:
        """Return the state of resource ExternalSwitch with this name."""
        state: dict[str, Json] = {"adapter": None, "management_os": False, "vms": 0, "phase": "none", "detail": None}
        record = next(
            (each for each in self.switch_records.trusted_records() if each["name"].casefold() == name.casefold()), None
        )
        switch = next(
            (each for each in self.external_switches() if each.state["name"].casefold() == name.casefold()), None
        )
        if switch is not None:
            state |= {
                "adapter": switch.adapter_guid,
                "management_os": switch.state["management_os"],
                "vms": self.users(switch),
            }
            if record is not None and record["switch"] != switch.guid:
                return state
        if record is not None and (record["phase"] != "settled" or state["adapter"] is not None):
            state |= {"phase": record["phase"], "detail": record["detail"]}
        if record is not None and is_pending(record):
            state["adapter"] = None if record["make"] else record["adapter"]
        return state

    def users(self, switch: Switch) -> int:
        """Return the number of VM adapters that are connected to a switch."""
        return self.initial_users(switch) + [vm.switch for vm in self.host.vms.values()].count(switch.guid)

    def initial_users(self, switch: Switch) -> int:
        """Return the number of connected adapters of VMs that the facts have."""
        found: int = self.host.lab.switch_vms.get(str(switch.state["name"]), 0)
        return found

    def on_restart(self) -> bool:
        """Start a task again that the restart ended. It then undoes its change."""
        self._task = None
        if self.switch_records.active_record():
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
            for family, is_in_family in (
                ("Tcpip", lambda server: ":" not in server),
                ("Tcpip6", lambda server: ":" in server),
            ):
                path = f"{services}\\{family}\\Parameters\\Interfaces\\{{{each.guid}}}"
                yield path, {"NameServer": ",".join(filter(is_in_family, each.name_servers()))}

    # ---- time, and the scheduled task

    def start(self) -> None:
        """Start the scheduled task."""
        self._task = switch_task(self)
        if self.host.clock.scale:
            threading.Thread(
                target=self._run, args=(self._task,), name=f"switch of {self.host.name}", daemon=True
            ).start()

    def _run(self, task: Iterator[None]) -> None:
        # The task ends when the host goes down.
        with suppress(HostDown):
            while self._task is task:
                self.host.clock.sleep(1.0)
                self._pass_second(task)

    @property
    def is_busy(self) -> bool:
        """Tell whether the scheduled task runs."""
        return self._task is not None

    def pass_time(self, seconds: float) -> None:
        """Advance the time by this many lab seconds, without waiting."""
        for _ in range(int(seconds)):
            self._pass_second(self._task)

    def wait(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Sleep on this host. If lab time takes no real time (`scale` 0), only advance the time."""
        if self.host.clock.scale:
            self.host.clock.sleep(seconds, stop)
        else:
            self.pass_time(seconds)

    def _pass_second(self, task: Iterator[None] | None) -> None:
        with self._lock:
            self.now += 1.0
            if task is not None and self._task is task:
                try:
                    next(task)
                except StopIteration:
                    self._task = None

    def status(self, adapter: Adapter) -> str:
        """Return the status, as in resource NetworkAdapter."""
        return "disconnected" if adapter.link_at > self.now else str(adapter.state["status"])

    def is_up(self, adapter: Adapter) -> bool:
        """Tell whether an adapter has a link."""
        return self.status(adapter) == "up"

    # ---- reachability

    @property
    def is_reachable(self) -> bool:
        """Tell whether the controller can reach this host."""
        if self.management_adapter is None:
            return True
        adapter = self.adapters[self.management_adapter]
        is_dead = any(each.is_dead for each in self.switches if each.port == adapter.guid)
        return adapter.link_at <= self.now and bool(adapter.addresses) and not is_dead

    def peers(self) -> list[str]:
        """Return the addresses of the controllers that manage this host."""
        managed = any(self.is_management_adapter(each) and each.addresses for each in self.visible_adapters())
        return list(self.controllers) if managed else []

    def allows_peers(self, port: int) -> bool:
        """Tell whether winhost's firewall rules for a port of a VM admit the controllers of this host."""
        forwards = [rule_name(listening) for listening, to in self.proxies.items() if to.endswith(f"/{port}")]
        remote = [self.rules[name] for name in forwards if name in self.rules]
        if self.inbound != "allow" and port in self.vm_rules:
            remote.append(self.vm_rules[port])
        return all(is_within(peer, each) for peer in self.peers() for each in remote)

    def physics(self, adapter: str) -> AdapterPhysics:
        """Return the hidden physics of an adapter, by its GUID."""
        found: AdapterPhysics = self.host.lab.adapters.get(adapter, AdapterPhysics())
        return found

    # ---- cmdlets

    @as_cmdlet("New-VMSwitch")
    def new_vm_switch(self, name: str, adapter_name: str) -> Switch:
        """Make an external switch. Its port takes over the settings of the adapter."""
        adapter = next((a for a in self.visible_adapters() if a.state["name"] == adapter_name), None)
        is_bound = adapter is not None and any(each.adapter_guid == adapter.guid for each in self.external_switches())
        if adapter is None or is_bound or self.physics(adapter.guid).refuses:
            raise self.host.windows_error("switch-not-made", "New-VMSwitch", switch=name)
        switch = self._new_switch(name, adapter, f"switch {adapter.guid} {self._created_switches}")
        port = self.adapters[str(switch.port)]
        self._move_settings(adapter, port)
        physics = self.physics(adapter.guid)
        if physics.loses_static and port.static_addresses():
            port.addresses[:] = []
            port.routes, port.metric = [], None
            port.state |= {"gateway": None, "dns": []}
        if physics.loses_link:
            port.link_at = float("inf")
        if physics.lease and not port.static_addresses():
            port.addresses[:] = [{"address": physics.lease, "prefix": 24, "origin": "dhcp"}]
        return switch

    @as_cmdlet("New-VMSwitch")
    def new_internal_vm_switch(self, name: str) -> Switch:
        """Make an internal switch. The host's port has no address yet."""
        return self._new_switch(name, None, f"switch {self.host.name} {name} {self._created_switches}")

    def _new_switch(self, name: str, adapter: Adapter | None, seed: str) -> Switch:
        guid = str(uuid.uuid5(uuid.NAMESPACE_OID, seed))
        adapter_guid = None if adapter is None else adapter.guid
        base = adapter or Adapter(guid, 0, {**BLANK})
        port = Adapter(
            guid=str(uuid.uuid5(uuid.NAMESPACE_OID, f"port {base.guid} {name}")),
            index=max(each.index for each in self.adapters.values()) + 1,
            state={**base.state, "addresses": [], "gateway": None, "dns": [], "profile": None, "kind": VIRTUAL},
            listed_at=self.now + PORT_DELAY,
        )
        port.state |= {"name": port_name(name), "description": "Hyper-V Virtual Ethernet Adapter"}
        port.state |= {"vlan": None, "filters": [], "management": False}
        self.adapters[port.guid] = port
        state: dict[str, Any] = {"name": name, "kind": "external" if adapter else "internal", "management_os": True}
        state["adapter"] = None if adapter is None else adapter.state["description"]
        is_dead = adapter_guid is not None and not self.physics(adapter_guid).comes_back
        switch = Switch(guid, state, adapter_guid, port.guid, is_dead)
        self.switches.append(switch)
        self._created_switches += 1
        return switch

    @as_cmdlet("Remove-VMSwitch", "!Force", guid="VMSwitch[].Id")
    def remove_vm_switch(self, guid: str) -> None:
        """Remove a switch. Its adapter gets the settings of its port."""
        switch = next(each for each in self.switches if each.guid == guid)
        self.switches.remove(switch)
        if switch.port is not None:
            port = self.adapters.pop(switch.port)
            if switch.adapter_guid is not None:
                self._move_settings(port, self.adapters[switch.adapter_guid])

    @as_cmdlet("New-NetIPAddress", index="InterfaceIndex", address="IPAddress", prefix="PrefixLength")
    def new_net_ip_address(self, index: int, address: str, prefix: int) -> None:
        self._find_by_index(index).add_address(address, prefix)

    @as_cmdlet(
        "New-NetRoute", "RouteMetric", index="InterfaceIndex", destination="DestinationPrefix", gateway="NextHop"
    )
    def new_net_route(self, index: int, destination: str, gateway: str) -> None:
        self._find_by_index(index).add_route(destination, gateway)

    @as_cmdlet("Set-DnsClientServerAddress", index="InterfaceIndex[]", servers="ServerAddresses")
    def set_dns_client_server_address(self, index: int, servers: list[str]) -> None:
        self._find_by_index(index).state["dns"] = list(servers)

    @as_cmdlet("Set-NetIPInterface", "AddressFamily", index="InterfaceIndex[]", metric="InterfaceMetric")
    def set_net_ip_interface(self, index: int, metric: int) -> None:
        self._find_by_index(index).metric = metric

    @as_cmdlet("Set-NetConnectionProfile", index="InterfaceIndex[]", category="NetworkCategory:word")
    def set_net_connection_profile(self, index: int, category: str) -> None:
        self._find_by_index(index).state["profile"] = category

    @as_cmdlet("Set-VMNetworkAdapterVlan")
    def set_vm_network_adapter_vlan(self, port: str, vlan: int) -> None:
        self.adapters[port].switch_vlan = vlan

    def _find_by_index(self, index: int) -> Adapter:
        return next(each for each in self.adapters.values() if each.index == index)

    def _move_settings(self, source: Adapter, target: Adapter) -> None:
        for name in ADDRESSING:
            target.state[name], source.state[name] = source.state[name], [] if name in ("addresses", "dns") else None
        target.routes, source.routes = source.routes, []
        target.metric, source.metric = source.metric, None
        target.link_at = self.now + LINK_DELAY
        # Windows treats a network that it sees over another interface as a new one.
        if target.state["profile"] == "private":
            target.state["profile"] = "public"
        if self.management_adapter == source.guid:
            self.management_adapter = target.guid
            self.epoch += 1
