"""The adapters and switches of a simulated host, and the external switches that winhost makes: a scheduled task makes
each, and undoes it unless somebody comes back.
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
from winhost.lab.physics.windows_errors import CmdletError, refusal, refuse
from winhost.lab.physics.windows_files import FOLDER as DATA
from winhost.lab.physics.windows_files import Files
from winhost.resources.windows.read_only import NetworkAdapter

ADDRESSING: tuple[str, ...] = ("addresses", "gateway", "dns", "profile")
# Every property, and what stands for one that could not be read.
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

    routes: beside the default one, as (destination, gateway); metric: where it is not Windows' own; tag: of a port on a
    switch, its VLAN there.
    """

    guid: str
    index: int
    state: dict[str, Any]
    up_at: float = 0.0
    shows_at: float = 0.0
    routes: list[tuple[str, str]] = field(default_factory=list)
    metric: int | None = None
    tag: int | None = None

    @property
    def addresses(self) -> list[dict[str, Json]]:
        """The addresses in the shape of the facts; changed in place."""
        found: list[dict[str, Json]] = self.state["addresses"]
        return found

    def manual(self) -> list[dict[str, Json]]:
        """The static addresses."""
        return [dict(each) for each in self.addresses if each["origin"] == "manual"]

    def add_address(self, address: str, prefix: int) -> None:
        """Add a manual address, which ends the lease of DHCP."""
        if all(each["address"] != address for each in self.addresses):
            self.addresses[:] = [*self.manual(), {"address": address, "prefix": prefix, "origin": "manual"}]

    def add_route(self, to: str, by: str) -> None:
        if to == "0.0.0.0/0":
            self.state["gateway"] = by
        elif (to, by) not in self.routes:
            self.routes.append((to, by))

    def all_routes(self) -> list[list[str]]:
        """The routes as (destination, gateway), the default one first."""
        default = [["0.0.0.0/0", str(self.state["gateway"])]] if self.state["gateway"] else []
        return [*default, *([to, by] for to, by in self.routes)]

    def name_servers(self) -> list[str]:
        """The name servers that are not from DHCP: with static addresses, all of them."""
        return list(self.state["dns"]) if self.manual() else []

    def take_fixed(self, before: "Adapter") -> None:
        """Take the static settings of another adapter where they were lost, and its profile."""
        families = {":" in str(each["address"]) for each in before.manual()}
        for each in before.manual():
            self.add_address(str(each["address"]), each["prefix"])
        for to, by in before.all_routes():
            if (":" in to) in families:
                self.add_route(to, by)
        self.state["dns"] = before.name_servers() or self.state["dns"]
        self.metric = self.metric if before.metric is None else before.metric
        self.state["profile"] = before.state["profile"]


@dataclass
class Switch:
    """A virtual switch. bound: the GUID of its adapter; port: that of the host's own interface on it; dead: nothing
    comes through.
    """

    guid: str
    state: dict[str, Any]
    bound: str | None = None
    port: str | None = None
    dead: bool = False


def adapter_of(record: Record, index: int) -> Adapter:
    """Make an adapter from its record."""
    state = {name: get_known(record.state, name, blank) for name, blank in BLANK.items()}
    state["addresses"] = [dict(each) for each in state["addresses"]]
    return Adapter(record.key["adapter"], index, state)


def port_name(switch: str) -> str:
    """The name that Windows gives the host's own interface on a switch."""
    return f"vEthernet ({switch})"


TASK = "winhost-switch"
FOLDER = f"{DATA}\\switch"
SWITCHES, COMMIT = f"{FOLDER}\\switches.json", f"{FOLDER}\\commit.json"
SwitchRecord = dict[str, Any]

_UNDONE = ("undone", "failed")
_LEAST_WITHIN, _WITHIN, _LINK_SECONDS = 60, 300, 60


class SwitchRecords:
    """The records of winhost's switches, in the files of a host."""

    def __init__(self, files: Files) -> None:
        self.files = files

    @property
    def committed(self) -> bool:
        """True once the controller that asked for the switch has reconnected."""
        return self.files.read(COMMIT) is not None

    def commit(self, name: str) -> None:
        self.files.write(COMMIT, json.dumps({"name": name}).encode())

    def all(self) -> list[SwitchRecord]:
        """All records, also where somebody else could have written them."""
        content = self.files.read(SWITCHES)
        records: list[SwitchRecord] = [] if content is None else json.loads(content)["records"]
        return records

    def of(self, name: str) -> SwitchRecord | None:
        """The record of the switch with this name."""
        return next((each for each in self.all() if each["name"].casefold() == name.casefold()), None)

    def believed(self) -> list[SwitchRecord]:
        """The records, but none from a folder in which others could have written."""
        return self.all() if self.files.is_own(DATA) and self.files.is_own(FOLDER) else []

    def save(self, record: Mapping[str, Any]) -> None:
        """Replace the record of this name. A switch that is gone for good is forgotten."""
        others = [each for each in self.all() if each["name"] != record["name"]]
        is_needed = record["phase"] != "settled" or record["make"]
        content = {"records": [*others, *([dict(record)] if is_needed else [])]}
        self.files.write(SWITCHES, json.dumps(content).encode())

    def flying(self) -> SwitchRecord | None:
        """The record that the task works on, or that waits for somebody to come back."""
        return next(filter(in_flight, self.all()), None)


def in_flight(record: Mapping[str, Any] | None) -> bool:
    return record is not None and record["phase"] in ("pending", "awaiting")


def set_switch(network: Host, asked: SetCall) -> None:
    """Begin, or go on with, the task for a switch. Raises CmdletError."""
    name, adapter, ours = asked.key["name"], asked.desired["adapter"], network.ours
    ours.files.make_folders(DATA, FOLDER)
    last, flying = ours.of(name), ours.flying()
    if last is not None and last["phase"] in _UNDONE and not last["told"]:
        ours.save({**last, "told": True})
        _check_stands(last)
    if flying is None:
        known = {"adapter": adapter, "switch": ""} if adapter is not None else ours.of(name)
        begun = {**known, "name": name, "make": adapter is not None}
        begun |= {"seconds": int(asked.within) if asked.within >= _LEAST_WITHIN else _WITHIN, "detail": None}
        ours.files.remove(COMMIT)
        ours.save({**begun, "begun": False, "told": False, "phase": "pending"})
        network.before = None
        network.start()
    elif flying["phase"] == "awaiting":
        ours.commit(name)
    while in_flight(ended := ours.of(name)):
        refuse(asked.stop.is_set() or (ended["phase"] == "awaiting" and not ours.committed), "ComeBack")
        network.wait(1.0, asked.stop)
    _check_stands(ended)
    ours.files.remove(COMMIT)
    if not ours.all():
        ours.files.remove_folder(FOLDER)


def _check_stands(record: SwitchRecord | None) -> None:
    if record is not None and record["phase"] in _UNDONE:
        raise refusal("SwitchUndone", why=f"{record['phase']}: {record['detail']}")


# ---- the task


def switch_task(network: Host) -> Iterator[None]:
    """Change what the record in flight asks for, and undo that unless somebody comes back. Each `yield` is a second in
    which the task sleeps.
    """
    if (record := network.ours.flying()) is not None:
        phase, detail = "settled", None
        try:
            yield from _change(network, record)
        except CmdletError as why:
            phase, detail = "undone", why.message
            try:
                yield from _move(network, record, make=not record["make"])
            except CmdletError as error:
                phase, detail = "failed", f"{why.message} {error.message}"
        network.ours.save({**record, "phase": phase, "detail": detail})
    network.host.tasks.pop(TASK, None)


def _change(network: Host, record: SwitchRecord) -> Iterator[None]:
    """Raises CmdletError, which tells why the change has to be undone."""
    if record["begun"]:
        yield
        raise refusal("SwitchUndone", why="The host restarted before anybody came back.")
    record["begun"] = True
    network.before = deepcopy(_end(network, record, made=not record["make"]))
    yield from _move(network, record, make=record["make"])
    record["phase"] = "awaiting"
    network.ours.save(record)
    for _ in range(record["seconds"]):
        yield
        if network.ours.committed:
            return
    raise refusal("SwitchUndone", why=f"Nobody came back within {record['seconds']} s.")


def _move(network: Host, record: SwitchRecord, *, make: bool) -> Iterator[None]:
    """Make or remove the switch, and give its end the addressing of before. Raises CmdletError."""
    there = any(each.guid == record["switch"] for each in network.external())
    if make and not there:
        adapter = network.adapters[record["adapter"]]
        switch = network.new_vm_switch(record["name"], str(adapter.state["name"]))
        record["switch"] = switch.guid
        network.adapters[switch.port].tag = adapter.state["vlan"] or None
    elif there and not make:
        network.remove_vm_switch(record["switch"])
    network.ours.save(record)
    if (before := network.before) is None:
        return
    for _ in range(_LINK_SECONDS):
        yield
        end = _end(network, record, made=make)
        if end.shows_at <= network.now and (network.is_up(end) or before.state["status"] != "up"):
            end.take_fixed(before)
            return
    raise refusal("SwitchUndone", why=f"{end.state['name']} has no link.")


def _end(network: Host, record: SwitchRecord, *, made: bool) -> Adapter:
    """The adapter, or the host's own port on the switch."""
    port = next((each.port for each in network.switches if each.guid == record["switch"]), None)
    found: Adapter = network.adapters[port if made else record["adapter"]]
    return found
