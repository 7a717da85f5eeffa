"""What the scripts of the network's resources do to change a host, on a simulated one."""

import re
from typing import TypeGuard

from winhost.core.answers import Json
from winhost.lab.contract.set_call import SetCall
from winhost.lab.physics.network_adapters import Switch
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.switch_records import COMMIT, FOLDER, SNAPSHOT, Records, in_flight
from winhost.lab.physics.windows_errors import CmdletError, bad_request, not_found, own_error, wrong_place
from winhost.lab.physics.windows_files import FOLDER as DATA
from winhost.lab.physics.windows_firewall import ANY, rule_name
from winhost.lab.physics.windows_network import TASK, Network

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_LEAST_WITHIN, _WITHIN = 60, 300
_SILENT_AFTER = 240

Record = dict[str, Json]


def set_switch(machine: Machine, asked: SetCall) -> None:
    """By a record and a scheduled task, which goes on when the wire is cut. Raises CmdletError."""
    records = machine.network.ours
    record = _new_record(asked)
    machine.files.make_folders(DATA, FOLDER)
    name = str(record["name"])
    _report_once(machine, records.of(name))
    flying = [each for each in records.all() if in_flight(each)]
    committed = False
    if not flying:
        _begin(machine, record)
    elif flying[0]["name"].casefold() != name.casefold() or flying[0]["make"] != record["make"]:
        raise wrong_place(f"Another change is under way: of switch {flying[0]['name']}.")
    elif flying[0]["phase"] == "awaiting":
        records.write(COMMIT, {"name": name})
        committed = True
    ended = _wait(machine, asked, name, committed=committed)
    if in_flight(ended):
        message = "It stands, and is undone unless you come back: ask again in a new session."
        raise own_error("ComeBack", "OperationStopped", message)
    if _undone(ended):
        raise _undone_error(ended)
    _clear(records)


def _clear(records: Records) -> None:
    if not records.all():
        records.files.remove_folder(FOLDER)
    for path in (COMMIT, SNAPSHOT):
        records.files.remove(path)


def _new_record(asked: SetCall) -> Record:
    name, adapter = asked.key["name"], asked.desired["adapter"]
    if not _NAME.fullmatch(name):
        raise bad_request("The name of a switch has 1 to 32 letters, digits, - and _.")
    seconds = int(asked.within) if asked.within >= _LEAST_WITHIN else _WITHIN
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
        raise not_found(f"There is no network adapter {record['adapter']}.")
    if not machine.network.is_up(adapter):
        raise wrong_place(f"{adapter.state['name']} has no link.")
    for switch in machine.network.switches:
        if str(switch.state["name"]).casefold() == str(record["name"]).casefold():
            raise wrong_place(f"There is a switch {switch.state['name']} already.")
        if switch.bound == record["adapter"]:
            raise wrong_place(f"Switch {switch.state['name']} has this adapter.")


def _take_ours(machine: Machine, record: Record) -> None:
    known = machine.network.ours.of(str(record["name"]))
    found: list[Switch] = [s for s in machine.network.external() if known is not None and s.guid == known["switch"]]
    if known is None or not found:
        raise wrong_place("winhost removes only switches that it made.")
    if machine.network.users(found[0]):
        raise wrong_place("VMs are connected to it.")
    record |= {"adapter": known["adapter"], "switch": known["switch"]}


def _report_once(machine: Machine, record: Record | None) -> None:
    if record is not None and _undone(record) and not record["told"]:
        machine.network.ours.save({**record, "told": True})
        raise _undone_error(record)


def _undone(record: Record | None) -> TypeGuard[Record]:
    return record is not None and record["phase"] in ("undone", "failed")


def _undone_error(record: Record) -> CmdletError:
    return own_error("SwitchUndone", "OperationStopped", f"{record['phase']}: {record['detail']}")


def _wait(machine: Machine, asked: SetCall, name: str, *, committed: bool) -> Record | None:
    for _ in range(_SILENT_AFTER):
        machine.network.wait(1.0, asked.stop)
        record = machine.network.ours.of(name)
        if record is None or not in_flight(record) or (record["phase"] == "awaiting" and not committed):
            return record
    raise own_error("SwitchSilent", "OperationTimeout", "The scheduled task does not come to an end.")


# ---- forwards and firewalls


def set_forward(machine: Machine, asked: SetCall) -> None:
    """With the firewall rule that goes with it. Raises CmdletError."""
    network = machine.network
    port = _port(asked.key["port"])
    name = rule_name(port)
    desired = _forward(machine, asked, port)
    if name not in network.rules and port in network.proxies:
        raise wrong_place(f"Port {port} is forwarded already, and not by winhost.")
    if name in network.rules:
        network.set_net_firewall_rule(name, [])
    if desired is None:
        if port in network.proxies:
            _netsh(machine, ["delete", "v4tov4", "listenaddress=0.0.0.0", f"listenport={port}"])
        if name in network.rules:
            network.remove_net_firewall_rule(name)
        return
    target, connect, allowed = desired
    if name not in network.rules:
        network.new_net_firewall_rule(name)
    ends = [f"listenport={port}", f"connectaddress={target}", f"connectport={connect}"]
    _netsh(machine, ["set", "v4tov4", "listenaddress=0.0.0.0", *ends])
    network.set_net_firewall_rule(name, allowed)


def _port(text: str) -> str:
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise bad_request("A port is a number from 1 to 65535.")
    return text


def _forward(machine: Machine, asked: SetCall, port: str) -> tuple[str, str, list[str]] | None:
    before = next((r.state for r in machine.instances("PortForward") if r.key["port"] == port), {})
    target, connect, allowed = ({**before, **asked.desired}.get(n) for n in ("target", "connect_port", "allowed"))
    missing = [each for each in (target, connect, allowed or None) if each is None]
    if len(missing) == 3:
        return None
    if missing:
        raise bad_request("A forward has target, connect_port and allowed, or none of them.")
    return str(target), str(connect), list(allowed or ())


def _netsh(machine: Machine, words: list[str]) -> None:
    code, output = machine.network.run_netsh(words)
    if code:
        raise own_error("NetshFailed", "InvalidResult", f"netsh: {code} {output}")


def set_firewall(machine: Machine, asked: SetCall) -> None:
    """For VMs of WSL. Raises CmdletError."""
    network = machine.network
    rules = _openings(network, asked)
    if "inbound" in asked.desired:
        network.set_net_firewall_hyper_v_vm_setting(str(asked.desired["inbound"]))
    if rules is not None:
        for port in list(network.vm_rules):
            network.remove_net_firewall_hyper_v_rule(port)
        for port in rules[0]:
            network.new_net_firewall_hyper_v_rule(port, rules[1])


def _openings(network: Network, asked: SetCall) -> tuple[list[int], list[str]] | None:
    """Ports, and who may come to them; None where nothing of that is wanted."""
    if not asked.desired.keys() & {"ports", "allowed"}:
        return None
    ports, allowed = list(network.vm_rules), network.vm_allowed() or []
    if "ports" in asked.desired:
        ports = list(asked.desired["ports"])
    if "allowed" in asked.desired:
        given = asked.desired["allowed"]
        allowed = list(given or ())
        if given is not None and not (ports and allowed):
            raise bad_request("Networks are allowed to come to a port, and everybody by null.")
    return ports, allowed or [ANY]
