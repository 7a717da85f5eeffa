"""The adapters and switches of a simulated host, and the external switches that winhost makes: a scheduled task makes
each, and undoes it unless somebody comes back.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.lab.physics.host_state import known_or
from winhost.lab.physics.parts import Host, SetCall
from winhost.lab.physics.windows_errors import CmdletError, not_found, refusal, refuse, wrong_place
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
SWITCHES, COMMIT = f"{FOLDER}\\switches.json", f"{FOLDER}\\commit.json"
SwitchRecord = dict[str, Any]

_LEAST_WITHIN, _WITHIN, _SILENT_AFTER = 60, 300, 240
_LINK_SECONDS = 60


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
        kept = record["phase"] != "settled" or record["make"]
        content = {"records": [*others, *([dict(record)] if kept else [])]}
        self.files.write(SWITCHES, json.dumps(content).encode())

    def flying(self) -> SwitchRecord | None:
        """The record that the task works on, or that waits for somebody to come back."""
        return next(filter(in_flight, self.all()), None)


def in_flight(record: Mapping[str, Any] | None) -> bool:
    return record is not None and record["phase"] in ("pending", "awaiting")


# ---- a set


def set_switch(network: Host, asked: SetCall) -> None:
    """Begin, or go on with, the task for a switch. Raises CmdletError."""
    name, adapter, ours = asked.key["name"], asked.desired["adapter"], network.ours
    ours.files.make_folders(DATA, FOLDER)
    last, flying = ours.of(name), ours.flying()
    if last is not None and _undone(last) and not last["told"]:
        ours.save({**last, "told": True})
        raise _undone_error(last)
    if flying is None:
        _begin(network, asked, name, adapter)
    elif flying["name"].casefold() != name.casefold() or flying["make"] != (adapter is not None):
        raise wrong_place(f"Another change is under way: of switch {flying['name']}.")
    elif flying["phase"] == "awaiting":
        ours.commit(name)
    ended = _wait(network, asked, name)
    refuse(in_flight(ended), "ComeBack")
    if ended is not None and _undone(ended):
        raise _undone_error(ended)
    ours.files.remove(COMMIT)
    if not ours.all():
        ours.files.remove_folder(FOLDER)


def _undone(record: SwitchRecord) -> bool:
    return record["phase"] in ("undone", "failed")


def _undone_error(record: SwitchRecord) -> CmdletError:
    return refusal("SwitchUndone", why=f"{record['phase']}: {record['detail']}")


def _begin(network: Host, asked: SetCall, name: str, adapter: Json) -> None:
    seconds = int(asked.within) if asked.within >= _LEAST_WITHIN else _WITHIN
    end = _free_adapter(network, name, str(adapter)) if adapter is not None else _made_by_us(network, name)
    record = {"name": name, "make": adapter is not None, "seconds": seconds, "begun": False, "told": False}
    network.ours.files.remove(COMMIT)
    network.ours.save({**record, **end, "phase": "pending", "detail": None})
    network.before = None
    network.host.tasks[TASK] = {}
    network.start()


def _free_adapter(network: Host, name: str, guid: str) -> SwitchRecord:
    adapter = _adapter(network, guid)
    if not network.is_up(adapter):
        raise wrong_place(f"{adapter.state['name']} has no link.")
    for switch in network.switches:
        if str(switch.state["name"]).casefold() == name.casefold():
            raise wrong_place(f"There is a switch {switch.state['name']} already.")
        if switch.bound == guid:
            raise wrong_place(f"Switch {switch.state['name']} has this adapter.")
    return {"adapter": guid, "switch": ""}


def _made_by_us(network: Host, name: str) -> SwitchRecord:
    known = network.ours.of(name)
    found = next((each for each in network.external() if known and each.guid == known["switch"]), None)
    if known is None or found is None:
        raise wrong_place("winhost removes only switches that it made.")
    if network.users(found):
        raise wrong_place("VMs are connected to it.")
    return {"adapter": known["adapter"], "switch": known["switch"]}


def _wait(network: Host, asked: SetCall, name: str) -> SwitchRecord | None:
    """Return the record of the switch once its change has ended, or waits for somebody to come back."""
    for _ in range(_SILENT_AFTER):
        network.wait(1.0, asked.stop)
        record: SwitchRecord | None = network.ours.of(name)
        if record is None or not in_flight(record) or (record["phase"] == "awaiting" and not network.ours.committed):
            return record
    raise refusal("SwitchSilent")


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
        while network.now < network.ready_at:
            yield
        raise refusal("SwitchUndone", why="The host restarted before anybody came back.")
    record["begun"] = True
    network.before = _addressing(network, _end(network, record, made=not record["make"]))
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
        adapter = _adapter(network, record["adapter"])
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
        if end.shows_at <= network.now and (network.is_up(end) or not before["link"]):
            _give(end, before)
            return
    raise refusal("NoLink", name=end.state["name"])


def _end(network: Host, record: SwitchRecord, *, made: bool) -> Adapter:
    """The adapter, or the host's own port on the switch."""
    ports = [each.port for each in network.switches if each.guid == record["switch"]] if made else [record["adapter"]]
    return _adapter(network, next(filter(None, ports), f"on switch {record['name']}"))


def _adapter(network: Host, guid: str) -> Adapter:
    found: Adapter | None = network.adapters.get(guid)
    if found is None:
        raise not_found(f"There is no network adapter {guid}.")
    return found


def _addressing(network: Host, end: Adapter) -> dict[str, Any]:
    """The manual settings of an adapter, and its profile."""
    families = {":" in str(each["address"]) for each in end.manual()}
    return {
        "link": network.is_up(end),
        "addresses": end.manual(),
        "routes": [route for route in end.all_routes() if (":" in route[0]) in families],
        "dns": end.name_servers(),
        "metric": end.metric,
        "profile": end.state["profile"],
    }


def _give(end: Adapter, before: Mapping[str, Any]) -> None:
    """Give an adapter the settings that it lost."""
    for each in before["addresses"]:
        end.add_address(each["address"], each["prefix"])
    for to, by in before["routes"]:
        end.add_route(to, by)
    end.state["dns"] = before["dns"] or end.state["dns"]
    end.metric = end.metric if before["metric"] is None else before["metric"]
    end.state["profile"] = before["profile"]
