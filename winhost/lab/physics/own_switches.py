"""Adapters and switches of a simulated host as it keeps them, and the external switches that winhost makes: a scheduled
task makes each, and undoes it unless somebody comes back.

A task is a generator: each `yield` is a second in which it sleeps.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.lab.physics.host_state import known_or
from winhost.lab.physics.parts import Host, SetCall
from winhost.lab.physics.windows_errors import (
    CmdletError,
    bad_request,
    not_found,
    own_error,
    refusal,
    refuse,
    wrong_place,
)
from winhost.lab.physics.windows_files import FOLDER as DATA
from winhost.lab.physics.windows_files import Files

ADDRESSING: tuple[str, ...] = ("addresses", "gateway", "dns", "profile")
# Every property, and what stands for one that could not be read.
BLANK: Mapping[str, Any] = {
    "name": "",
    "description": "",
    "mac": None,
    "kind": "other",
    "status": "up",
    "speed": None,
    "vlan": None,
    "addresses": (),
    "gateway": None,
    "dns": (),
    "profile": None,
    "switch": None,
    "management": None,
    "filters": (),
}


@dataclass
class Adapter:
    """A network interface.

    routes: beside the default one, as (destination, gateway); metric: where it is not Windows' own; fixed_dns: its name
    servers are not from DHCP; tag: of a port on a switch, its VLAN there.
    """

    guid: str
    index: int
    state: dict[str, Any]
    up_at: float = 0.0
    shows_at: float = 0.0
    routes: list[tuple[str, str]] = field(default_factory=list)
    metric: int | None = None
    fixed_dns: bool = False
    tag: int | None = None

    @property
    def addresses(self) -> list[dict[str, Json]]:
        """The addresses in the shape of the facts; changed in place."""
        found: list[dict[str, Json]] = self.state["addresses"]
        return found

    def manual(self) -> list[dict[str, Json]]:
        """The addresses that somebody gave it."""
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
        """Those that somebody gave it: where addresses are, so are they."""
        return list(self.state["dns"]) if self.manual() or self.fixed_dns else []


@dataclass
class Switch:
    """bound: the GUID of its adapter, port: that of the host's own interface on it; dead: nothing comes through."""

    guid: str
    state: dict[str, Any]
    bound: str | None = None
    port: str | None = None
    dead: bool = False


def adapter_of(record: Record, index: int) -> Adapter:
    """Make an adapter from its record."""
    state = {name: known_or(record.state, name, blank) for name, blank in BLANK.items()}
    state["addresses"] = [dict(each) for each in state["addresses"]]
    return Adapter(record.key["adapter"], index, state)


def port_name(switch: str) -> str:
    """The name that Windows gives the host's own interface on a switch."""
    return f"vEthernet ({switch})"


TASK = "winhost-switch"
FOLDER = f"{DATA}\\switch"
SWITCHES, COMMIT, SNAPSHOT = (f"{FOLDER}\\{name}.json" for name in ("switches", "commit", "snapshot"))
SwitchRecord = dict[str, Any]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_LEAST_WITHIN, _WITHIN, _SILENT_AFTER = 60, 300, 240
_LINK_SECONDS, _PROFILE_SECONDS = 60, 30


class SwitchRecords:
    """The records of switches by name; `files` are the host's."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def read(self, path: str) -> Any:
        """Parsed, or None where there is no such file."""
        content = self.files.read(path)
        return None if content is None else json.loads(content)

    def write(self, path: str, content: Mapping[str, Any]) -> None:
        self.files.write(path, json.dumps(content).encode())

    def all(self) -> list[SwitchRecord]:
        """Whoever wrote them."""
        records: list[SwitchRecord] = (self.read(SWITCHES) or {"records": []})["records"]
        return records

    def of(self, name: str) -> SwitchRecord | None:
        """The one of this switch."""
        return next((each for each in self.all() if each["name"].casefold() == name.casefold()), None)

    def believed(self) -> list[SwitchRecord]:
        """None where others could have put them."""
        return self.all() if self.files.is_own(DATA) and self.files.is_own(FOLDER) else []

    def save(self, record: Mapping[str, Any]) -> None:
        """Replace the record of this name. A switch that is gone for good is forgotten."""
        others = [each for each in self.all() if each["name"] != record["name"]]
        kept = record["phase"] != "settled" or record["make"]
        self.write(SWITCHES, {"records": [*others, *([dict(record)] if kept else [])]})

    def flying(self) -> SwitchRecord | None:
        """The one that a task is at, or that waits to hear whether it may stay."""
        return next(filter(in_flight, self.all()), None)


def in_flight(record: Mapping[str, Any] | None) -> bool:
    return record is not None and record["phase"] in ("pending", "awaiting")


# ---- a set


def set_switch(network: Host, asked: SetCall) -> None:
    """Begin, or go on with, the task for a switch. Raises CmdletError."""
    name, adapter, ours = asked.key["name"], asked.desired["adapter"], network.ours
    if not _NAME.fullmatch(name):
        raise bad_request("The name of a switch has 1 to 32 letters, digits, - and _.")
    ours.files.make_folders(DATA, FOLDER)
    last, flying = ours.of(name), ours.flying()
    if last is not None and _undone(last) and not last["told"]:
        ours.save({**last, "told": True})
        raise _undone_error(last)
    committed = False
    if flying is None:
        _begin(network, asked, name, adapter)
    elif flying["name"].casefold() != name.casefold() or flying["make"] != (adapter is not None):
        raise wrong_place(f"Another change is under way: of switch {flying['name']}.")
    elif flying["phase"] == "awaiting":
        ours.write(COMMIT, {"name": name})
        committed = True
    ended = _wait(network, asked, name, committed=committed)
    refuse(in_flight(ended), "ComeBack")
    if ended is not None and _undone(ended):
        raise _undone_error(ended)
    _forget(ours, *([] if ours.all() else [FOLDER]))


def _begin(network: Host, asked: SetCall, name: str, adapter: Json) -> None:
    seconds = int(asked.within) if asked.within >= _LEAST_WITHIN else _WITHIN
    record: SwitchRecord = {"name": name, "adapter": adapter or "", "make": adapter is not None, "seconds": seconds}
    record |= {"switch": "", "begun": False, "told": False, "phase": "pending", "detail": None}
    if adapter is not None:
        _check_free(network, name, str(adapter))
    else:
        record |= _made_by_us(network, name)
    _forget(network.ours)
    network.ours.save(record)
    network.host.tasks[TASK] = {}
    network.start()


def _forget(ours: SwitchRecords, *folders: str) -> None:
    for folder in folders:
        ours.files.remove_folder(folder)
    for path in (COMMIT, SNAPSHOT):
        ours.files.remove(path)


def _check_free(network: Host, name: str, guid: str) -> None:
    adapter = _adapter(network, guid)
    if not network.is_up(adapter):
        raise wrong_place(f"{adapter.state['name']} has no link.")
    for switch in network.switches:
        if str(switch.state["name"]).casefold() == name.casefold():
            raise wrong_place(f"There is a switch {switch.state['name']} already.")
        if switch.bound == guid:
            raise wrong_place(f"Switch {switch.state['name']} has this adapter.")


def _made_by_us(network: Host, name: str) -> SwitchRecord:
    known = network.ours.of(name)
    found = next((each for each in network.external() if known and each.guid == known["switch"]), None)
    if known is None or found is None:
        raise wrong_place("winhost removes only switches that it made.")
    if network.users(found):
        raise wrong_place("VMs are connected to it.")
    return {"adapter": known["adapter"], "switch": known["switch"]}


def _undone(record: SwitchRecord) -> bool:
    return record["phase"] in ("undone", "failed")


def _undone_error(record: SwitchRecord) -> CmdletError:
    return own_error("SwitchUndone", "OperationStopped", f"{record['phase']}: {record['detail']}")


def _wait(network: Host, asked: SetCall, name: str, *, committed: bool) -> SwitchRecord | None:
    for _ in range(_SILENT_AFTER):
        network.wait(1.0, asked.stop)
        record = network.ours.of(name)
        if record is None or not in_flight(record) or (record["phase"] == "awaiting" and not committed):
            given: dict[str, Any] | None = record
            return given
    raise refusal("SwitchSilent")


# ---- the task


def switch_task(network: Host) -> Iterator[None]:
    """Every record in flight, to its end; then the task is gone."""
    for record in filter(in_flight, network.ours.all()):
        why = yield from _change(network, record)
        record["phase"] = "settled" if why is None else "undone"
        if why is not None:
            try:
                yield from _move(network, record, make=not record["make"])
            except CmdletError as error:
                record["phase"], why = "failed", f"{why} {error.message}"
        record["detail"] = why
        network.ours.save(record)
    network.host.tasks.pop(TASK, None)


def _change(network: Host, record: SwitchRecord) -> Any:
    """Nothing, or why it has to be undone."""
    if record["begun"]:
        yield
        while network.now < network.ready_at:
            yield
        return "The host restarted before anybody came back."
    record["begun"] = True
    network.ours.save(record)
    try:
        network.ours.write(SNAPSHOT, _addressing(network, _end(network, record, made=not record["make"])))
        yield from _move(network, record, make=record["make"])
    except CmdletError as error:
        return error.message
    record["phase"] = "awaiting"
    network.ours.save(record)
    for _ in range(record["seconds"]):
        yield
        if network.ours.read(COMMIT) is not None:
            return None
    return f"Nobody came back within {record['seconds']} s."


def _move(network: Host, record: SwitchRecord, *, make: bool) -> Iterator[None]:
    """The switch comes or goes, and its end gets the addressing of before. Raises CmdletError."""
    there = [each for each in network.external() if each.guid == record["switch"]]
    if make and not there:
        adapter = _adapter(network, record["adapter"])
        switch = network.new_vm_switch(record["name"], str(adapter.state["name"]))
        record["switch"] = switch.guid
        network.ours.save(record)
        if switch.port is not None and adapter.state["vlan"]:
            network.set_vm_network_adapter_vlan(switch.port, adapter.state["vlan"])
    for switch in [] if make else network.external():
        half = record["make"] and switch.state["name"] == record["name"] and switch.bound == record["adapter"]
        if switch in there or half:
            network.remove_vm_switch(switch.guid)
    kept = network.ours.read(SNAPSHOT)
    if kept is not None:
        end = yield from _linked(network, record, kept, made=make)
        _give(end, kept)
        yield from _give_profile(end, kept["network"])


def _linked(network: Host, record: SwitchRecord, kept: Mapping[str, Any], *, made: bool) -> Any:
    """The adapter or the host's port, once it has a link. Raises CmdletError."""
    for _ in range(_LINK_SECONDS):
        yield
        end = _end(network, record, made=made)
        if end.shows_at <= network.now and (network.is_up(end) or not kept["link"]):
            return end
    raise refusal("NoLink", name=end.state["name"])


def _end(network: Host, record: SwitchRecord, *, made: bool) -> Adapter:
    if not made:
        return _adapter(network, record["adapter"])
    for switch in network.switches:
        if switch.guid == record["switch"] and switch.port is not None:
            return _adapter(network, switch.port)
    raise not_found(f"The host has no port on switch {record['name']}.")


def _adapter(network: Host, guid: str) -> Adapter:
    found = network.adapters.get(guid)
    if found is None:
        raise not_found(f"There is no network adapter {guid}.")
    given: Adapter = found
    return given


def _addressing(network: Host, end: Adapter) -> dict[str, Any]:
    """The manual settings of an adapter, and its profile."""
    manual = [{"address": each["address"], "prefix": each["prefix"]} for each in end.manual()]
    families = {":" in str(each["address"]) for each in manual}
    return {
        "link": network.is_up(end),
        "addresses": manual,
        "routes": [route for route in end.all_routes() if (":" in route[0]) in families],
        "dns": end.name_servers(),
        "metric": end.metric,
        "network": end.state["profile"],
    }


def _give(end: Adapter, kept: Mapping[str, Any]) -> None:
    for each in kept["addresses"]:
        end.add_address(each["address"], each["prefix"])
    for to, by in kept["routes"]:
        end.add_route(to, by)
    end.state["dns"] = kept["dns"] or end.state["dns"]
    end.metric = end.metric if kept["metric"] is None else kept["metric"]


def _give_profile(end: Adapter, profile: str | None) -> Iterator[None]:
    for _ in range(_PROFILE_SECONDS if profile in ("private", "public") else 0):
        if end.state["profile"] is not None:
            end.state["profile"] = profile
            return
        yield
