"""What the scripts of the network's resources do to change a host, on a simulated one."""

import re
from typing import TypeGuard

from winhost.lab.contract.set_call import SetCall, Setter
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.switch_records import COMMIT, FOLDER, SNAPSHOT, Records, in_flight
from winhost.lab.physics.windows_errors import CmdletError, own_error
from winhost.lab.physics.windows_files import FOLDER as DATA
from winhost.lab.physics.windows_network import ANY, TASK, Network, Switch, rule_name
from winhost.model.facts import Json
from winhost.resources.values import NETWORKS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_BYTE = r"(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_ADDRESS = re.compile(rf"{_BYTE}(\.{_BYTE}){{3}}")
_LEAST_WITHIN, _WITHIN = 60, 300
_SILENT_AFTER = 240

Record = dict[str, Json]


def _set_switch(machine: Machine, call: SetCall) -> bool:
    records = machine.network.ours
    record = _desired(call)
    machine.files.make_folders(DATA, FOLDER)
    name = str(record["name"])
    _tell_once(machine, records.of(name))
    flying = [each for each in records.all() if in_flight(each)]
    committed = False
    if not flying:
        _begin(machine, record)
    elif flying[0]["name"].casefold() != name.casefold() or flying[0]["make"] != record["make"]:
        message = f"Another change is under way: of switch {flying[0]['name']}."
        raise own_error("WrongPlace", "InvalidOperation", message)
    elif flying[0]["phase"] == "awaiting":
        records.write(COMMIT, {"name": name})
        committed = True
    ended = _wait(machine, call, name, committed=committed)
    if in_flight(ended):
        message = "It stands, and is undone unless you come back: ask again in a new session."
        raise own_error("ComeBack", "OperationStopped", message)
    if _undone(ended):
        raise _told(ended)
    _clear(records)
    return False


def _clear(records: Records) -> None:
    if not records.all():
        records.files.remove_folder(FOLDER)
    for path in (COMMIT, SNAPSHOT):
        records.files.remove(path)


def _desired(call: SetCall) -> Record:
    name, adapter = call.key["name"], call.desired["adapter"]
    if not _NAME.fullmatch(name):
        message = "The name of a switch has 1 to 32 letters, digits, - and _."
        raise own_error("BadRequest", "InvalidArgument", message)
    if adapter is not None and not (isinstance(adapter, str) and _GUID.fullmatch(adapter)):
        raise own_error("BadRequest", "InvalidArgument", "The adapter is the GUID of an interface.")
    seconds = int(call.within) if call.within >= _LEAST_WITHIN else _WITHIN
    made = {"name": name, "adapter": adapter or "", "make": adapter is not None, "seconds": seconds}
    return {**made, "switch": "", "begun": False, "told": False, "phase": "pending", "detail": None}


def _begin(machine: Machine, record: Record) -> None:
    if record["make"]:
        _check_free(machine, record)
    else:
        _take_ours(machine, record)
    records = machine.network.ours
    for path in (COMMIT, SNAPSHOT):
        records.files.remove(path)
    records.save(record)
    machine.tasks[TASK] = {}
    machine.network.start()


def _check_free(machine: Machine, record: Record) -> None:
    adapter = machine.network.adapters.get(str(record["adapter"]))
    if adapter is None:
        raise own_error("NotFound", "ObjectNotFound", f"There is no network adapter {record['adapter']}.")
    if not machine.network.is_up(adapter):
        raise own_error("WrongPlace", "InvalidOperation", f"{adapter.state['name']} has no link.")
    for switch in machine.network.switches:
        if str(switch.state["name"]).casefold() == str(record["name"]).casefold():
            message = f"There is a switch {switch.state['name']} already."
            raise own_error("WrongPlace", "InvalidOperation", message)
        if switch.bound == record["adapter"]:
            message = f"Switch {switch.state['name']} has this adapter."
            raise own_error("WrongPlace", "InvalidOperation", message)


def _take_ours(machine: Machine, record: Record) -> None:
    known = machine.network.ours.of(str(record["name"]))
    found: list[Switch] = [s for s in machine.network.external() if known is not None and s.guid == known["switch"]]
    if known is None or not found:
        raise own_error("WrongPlace", "InvalidOperation", "winhost removes only switches that it made.")
    if machine.network.users(found[0]):
        raise own_error("WrongPlace", "InvalidOperation", "VMs are connected to it.")
    record |= {"adapter": known["adapter"], "switch": known["switch"]}


def _tell_once(machine: Machine, record: Record | None) -> None:
    if record is not None and _undone(record) and not record["told"]:
        machine.network.ours.save({**record, "told": True})
        raise _told(record)


def _undone(record: Record | None) -> TypeGuard[Record]:
    return record is not None and record["phase"] in ("undone", "failed")


def _told(record: Record) -> CmdletError:
    return own_error("SwitchUndone", "OperationStopped", f"{record['phase']}: {record['detail']}")


def _wait(machine: Machine, call: SetCall, name: str, *, committed: bool) -> Record | None:
    for _ in range(_SILENT_AFTER):
        machine.network.wait(1.0, call.stop)
        record = machine.network.ours.of(name)
        if record is None or not in_flight(record) or (record["phase"] == "awaiting" and not committed):
            return record
    message = "The scheduled task does not come to an end."
    raise own_error("SwitchSilent", "OperationTimeout", message)


# ---- forwards and firewalls


def _set_forward(machine: Machine, call: SetCall) -> bool:
    if not machine.lab.administrator:
        raise own_error("NotAdministrator", "PermissionDenied", "Ports are forwarded by administrators.")
    network = machine.network
    port = _port(call.key["port"])
    name = rule_name(port)
    desired = _forward(machine, call, port)
    if name not in network.rules and port in network.proxies:
        message = f"Port {port} is forwarded already, and not by winhost."
        raise own_error("WrongPlace", "InvalidOperation", message)
    if name in network.rules:
        network.set_net_firewall_rule(name, [])
    if desired is None:
        if port in network.proxies:
            _netsh(machine, ["delete", "v4tov4", "listenaddress=0.0.0.0", f"listenport={port}"])
        if name in network.rules:
            network.remove_net_firewall_rule(name)
        return False
    target, connect, allowed = desired
    if name not in network.rules:
        network.new_net_firewall_rule(name)
    ends = [f"listenport={port}", f"connectaddress={target}", f"connectport={connect}"]
    _netsh(machine, ["set", "v4tov4", "listenaddress=0.0.0.0", *ends])
    network.set_net_firewall_rule(name, allowed)
    return False


def _forward(machine: Machine, call: SetCall, port: str) -> tuple[str, str, list[str]] | None:
    before = next((r.state for r in machine.there("PortForward") if r.key["port"] == port), {})
    target, connect, allowed = ({**before, **call.desired}.get(n) for n in ("target", "connect_port", "allowed"))
    missing = [each for each in (target, connect, allowed or None) if each is None]
    if len(missing) == 3:
        return None
    if missing:
        message = "A forward has target, connect_port and allowed, or none of them."
        raise own_error("BadRequest", "InvalidArgument", message)
    if not _ADDRESS.fullmatch(str(target)):
        raise own_error("BadRequest", "InvalidArgument", f"{target} is no IPv4 address.")
    inner = _port(connect)
    networks = [str(each) for each in (allowed if isinstance(allowed, list | tuple) else [allowed])]
    _check_networks(networks)
    return str(target), inner, networks


def _check_networks(networks: list[str]) -> None:
    if networks and not NETWORKS.fits(networks):
        message = "A network is an address and the length of its prefix, and has no bits beyond that."
        raise own_error("BadRequest", "InvalidArgument", message)


def _port(value: Json) -> str:
    if not _PORT.fullmatch(str(value)) or int(str(value)) > 65535:
        raise own_error("BadRequest", "InvalidArgument", "A port is a number from 1 to 65535.")
    return str(value)


def _netsh(machine: Machine, words: list[str]) -> None:
    code, output = machine.network.run_netsh(words)
    if code:
        raise own_error("NetshFailed", "InvalidResult", f"netsh: {code} {output}")


def _set_firewall(machine: Machine, call: SetCall) -> bool:
    network = machine.network
    rules = _openings(network, call)
    if "inbound" in call.desired:
        if call.desired["inbound"] not in ("allow", "block", "not-configured"):
            message = f"{call.desired['inbound']} is none of Allow, Block, NotConfigured."
            raise own_error("BadRequest", "InvalidArgument", message)
        network.set_net_firewall_hyper_v_vm_setting(str(call.desired["inbound"]))
    if rules is not None:
        for port in list(network.vm_rules):
            network.remove_net_firewall_hyper_v_rule(port)
        for port in rules[0]:
            network.new_net_firewall_hyper_v_rule(port, rules[1])
    return False


def _openings(network: Network, call: SetCall) -> tuple[list[int], list[str]] | None:
    """Ports, and who may come to them; None where nothing of that is wanted."""
    if not call.desired.keys() & {"ports", "allowed"}:
        return None
    ports, allowed = list(network.vm_rules), network.vm_allowed() or []
    if "ports" in call.desired:
        ports = [int(_port(each)) for each in call.desired["ports"]]
    if "allowed" in call.desired:
        given = call.desired["allowed"]
        allowed = [] if given is None else [str(each) for each in (given if isinstance(given, list) else [given])]
        _check_networks(allowed)
        if given is not None and not (ports and allowed):
            message = "Networks are allowed to come to a port, and everybody by null."
            raise own_error("BadRequest", "InvalidArgument", message)
    return ports, allowed or [ANY]


NETWORK: dict[str, Setter] = {
    "ExternalSwitch": _set_switch,
    "PortForward": _set_forward,
    "HyperVFirewall": _set_firewall,
}
