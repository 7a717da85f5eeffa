"""The adapters and switches of a simulated host, and the external switches that winhost makes.

A scheduled task makes such a switch, and removes it again unless the controller reconnects.
"""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import field
from typing import Any

from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.lab.physics.parts import Host, SetCall
from winhost.lab.physics.virtual_machine import get_known
from winhost.lab.physics.windows_errors import CmdletError, refusal, refuse_if
from winhost.lab.physics.windows_files import FOLDER as DATA
from winhost.lab.physics.windows_files import Files
from winhost.resources.windows.read_only import NetworkAdapter

ADDRESSING: tuple[str, ...] = ("addresses", "gateway", "dns", "profile")
# All properties of an adapter, each with the value that replaces one that could not be read.
BLANK: Mapping[str, Any] = {
    **dict.fromkeys(NetworkAdapter.__annotations__),
    **dict.fromkeys(("name", "description"), ""),
    **dict.fromkeys(("addresses", "dns", "filters"), ()),
    "kind": "other",
    "status": "up",
}


@dataclass
class Adapter:
    """A network interface.

    routes: other than the default one, as (destination, gateway); metric: None for Windows' default; switch_vlan: the
    VLAN of a port on a switch (named `vlan`, it would be shown as a property of the adapter); link_at, listed_at: lab
    seconds from which on it has a link, and is listed.
    """

    guid: str
    index: int
    state: dict[str, Any]
    link_at: float = 0.0
    listed_at: float = 0.0
    routes: list[tuple[str, str]] = field(default_factory=list)
    metric: int | None = None
    switch_vlan: int | None = None

    @property
    def addresses(self) -> list[dict[str, Json]]:
        """The addresses in the form of the facts. The list may be changed in place."""
        addresses: list[dict[str, Json]] = self.state["addresses"]
        return addresses

    def static_addresses(self) -> list[dict[str, Json]]:
        """Return the static addresses."""
        return [dict(each) for each in self.addresses if each["origin"] == "manual"]

    def add_address(self, address: str, prefix: int) -> None:
        """Add a static address, and remove addresses of DHCP."""
        if all(each["address"] != address for each in self.addresses):
            self.addresses[:] = [*self.static_addresses(), {"address": address, "prefix": prefix, "origin": "manual"}]

    def add_route(self, destination: str, gateway: str) -> None:
        if destination == "0.0.0.0/0":
            self.state["gateway"] = gateway
        elif (destination, gateway) not in self.routes:
            self.routes.append((destination, gateway))

    def routes_with_default(self) -> list[list[str]]:
        """Return the routes as (destination, gateway), the default one first."""
        default = [["0.0.0.0/0", str(self.state["gateway"])]] if self.state["gateway"] else []
        return [*default, *([destination, gateway] for destination, gateway in self.routes)]

    def name_servers(self) -> list[str]:
        """Return the name servers, if they do not come from DHCP."""
        return list(self.state["dns"]) if self.static_addresses() else []

    def restore_static_settings(self, previous_adapter: "Adapter") -> None:
        """Restore missing static settings, and the profile, from another adapter."""
        families = {":" in str(each["address"]) for each in previous_adapter.static_addresses()}
        for each in previous_adapter.static_addresses():
            self.add_address(str(each["address"]), each["prefix"])
        for destination, gateway in previous_adapter.routes_with_default():
            if (":" in destination) in families:
                self.add_route(destination, gateway)
        self.state["dns"] = previous_adapter.name_servers() or self.state["dns"]
        self.metric = self.metric if previous_adapter.metric is None else previous_adapter.metric
        self.state["profile"] = previous_adapter.state["profile"]


@dataclass
class Switch:
    """A virtual switch. port: the GUID of the host's own interface on it; is_dead: it passes no traffic."""

    guid: str
    state: dict[str, Any]
    adapter_guid: str | None = None
    port: str | None = None
    is_dead: bool = False


def adapter_of(record: Record, index: int) -> Adapter:
    """Make an adapter from its record."""
    state = {name: get_known(record.state, name, blank) for name, blank in BLANK.items()}
    state["addresses"] = [dict(each) for each in state["addresses"]]
    return Adapter(record.key["adapter"], index, state)


def port_name(switch: str) -> str:
    """Return the name of the host's own interface on a switch."""
    return f"vEthernet ({switch})"


TASK = "winhost-switch"
FOLDER = f"{DATA}\\switch"
SWITCHES, COMMIT = f"{FOLDER}\\switches.json", f"{FOLDER}\\commit.json"
SwitchRecord = dict[str, Any]

_UNDONE = ("undone", "failed")
_MIN_TIMEOUT, _DEFAULT_TIMEOUT, _LINK_SECONDS = 60, 300, 60


class SwitchRecords:
    """winhost's records of its switches, in files on the host."""

    def __init__(self, files: Files) -> None:
        self.files = files

    @property
    def committed(self) -> bool:
        """True once the controller that requested the switch has reconnected."""
        return self.files.read(COMMIT) is not None

    def commit(self, name: str) -> None:
        self.files.write(COMMIT, json.dumps({"name": name}).encode())

    def read_records(self) -> list[SwitchRecord]:
        """Return all records, even from a folder that other users can write to."""
        content = self.files.read(SWITCHES)
        records: list[SwitchRecord] = [] if content is None else json.loads(content)["records"]
        return records

    def find(self, name: str) -> SwitchRecord | None:
        """Return the record of the switch with this name, or None."""
        return next((each for each in self.read_records() if each["name"].casefold() == name.casefold()), None)

    def trusted_records(self) -> list[SwitchRecord]:
        """Return the records, or none if other users can write to their folder."""
        return self.read_records() if self.files.is_owned(DATA) and self.files.is_owned(FOLDER) else []

    def save(self, record: Mapping[str, Any]) -> None:
        """Replace the record of this name. The record of a switch that was removed for good is deleted."""
        others = [each for each in self.read_records() if each["name"] != record["name"]]
        is_needed = record["phase"] != "settled" or record["make"]
        content = {"records": [*others, *([dict(record)] if is_needed else [])]}
        self.files.write(SWITCHES, json.dumps(content).encode())

    def active_record(self) -> SwitchRecord | None:
        """Return the record that the task works on, or that waits for the controller to reconnect; else None."""
        return next(filter(is_pending, self.read_records()), None)


def is_pending(record: Mapping[str, Any] | None) -> bool:
    return record is not None and record["phase"] in ("pending", "awaiting")


def set_switch(network: Host, call: SetCall) -> None:
    """Start or continue the task for a switch, and wait for its result. Raises CmdletError."""
    name, adapter, switch_records = call.key["name"], call.desired["adapter"], network.switch_records
    switch_records.files.make_folders(DATA, FOLDER)
    last, active_record = switch_records.find(name), switch_records.active_record()
    if last is not None and last["phase"] in _UNDONE and not last["told"]:
        switch_records.save({**last, "told": True})
        _check_result(last)
    if active_record is None:
        known = {"adapter": adapter, "switch": ""} if adapter is not None else switch_records.find(name)
        record = {**known, "name": name, "make": adapter is not None}
        record |= {"seconds": int(call.timeout) if call.timeout >= _MIN_TIMEOUT else _DEFAULT_TIMEOUT, "detail": None}
        switch_records.files.remove(COMMIT)
        switch_records.save({**record, "begun": False, "told": False, "phase": "pending"})
        network.previous_adapter = None
        network.start()
    elif active_record["phase"] == "awaiting":
        switch_records.commit(name)
    while is_pending(current := switch_records.find(name)):
        refuse_if(call.stop.is_set() or (current["phase"] == "awaiting" and not switch_records.committed), "ComeBack")
        network.wait(1.0, call.stop)
    _check_result(current)
    switch_records.files.remove(COMMIT)
    if not switch_records.read_records():
        switch_records.files.remove_folder(FOLDER)


def _check_result(record: SwitchRecord | None) -> None:
    if record is not None and record["phase"] in _UNDONE:
        raise refusal("SwitchUndone", why=f"{record['phase']}: {record['detail']}")


# ---- the task


def switch_task(network: Host) -> Iterator[None]:
    """Apply the active record, and undo that unless the controller reconnects. Each `yield` is one second of sleep."""
    if (record := network.switch_records.active_record()) is not None:
        phase, detail = "settled", None
        try:
            yield from _change(network, record)
        except CmdletError as failure:
            phase, detail = "undone", failure.message
            try:
                yield from _apply(network, record, make=not record["make"])
            except CmdletError as error:
                phase, detail = "failed", f"{failure.message} {error.message}"
        network.switch_records.save({**record, "phase": phase, "detail": detail})
    network.host.tasks.pop(TASK, None)


def _change(network: Host, record: SwitchRecord) -> Iterator[None]:
    """Apply a record, and wait for the controller. Raises CmdletError if the change has to be undone."""
    if record["begun"]:
        yield
        raise refusal("SwitchUndone", why="The host restarted before anybody came back.")
    record["begun"] = True
    network.previous_adapter = deepcopy(_managed_adapter(network, record, made=not record["make"]))
    yield from _apply(network, record, make=record["make"])
    record["phase"] = "awaiting"
    network.switch_records.save(record)
    for _ in range(record["seconds"]):
        yield
        if network.switch_records.committed:
            return
    raise refusal("SwitchUndone", why=f"Nobody came back within {record['seconds']} s.")


def _apply(network: Host, record: SwitchRecord, *, make: bool) -> Iterator[None]:
    """Make or remove the switch, and restore the static settings of its adapter. Raises CmdletError."""
    exists = any(each.guid == record["switch"] for each in network.external_switches())
    if make and not exists:
        adapter = network.adapters[record["adapter"]]
        switch = network.new_vm_switch(record["name"], str(adapter.state["name"]))
        record["switch"] = switch.guid
        network.adapters[switch.port].switch_vlan = adapter.state["vlan"] or None
    elif exists and not make:
        network.remove_vm_switch(record["switch"])
    network.switch_records.save(record)
    if (previous_adapter := network.previous_adapter) is None:
        return
    for _ in range(_LINK_SECONDS):
        yield
        managed = _managed_adapter(network, record, made=make)
        if managed.listed_at <= network.now and (network.is_up(managed) or previous_adapter.state["status"] != "up"):
            managed.restore_static_settings(previous_adapter)
            return
    raise refusal("SwitchUndone", why=f"{managed.state['name']} has no link.")


def _managed_adapter(network: Host, record: SwitchRecord, *, made: bool) -> Adapter:
    """Return the host's own port on the switch, or without a switch the adapter."""
    port = next((each.port for each in network.switches if each.guid == record["switch"]), None)
    adapter: Adapter = network.adapters[port if made else record["adapter"]]
    return adapter
