"""What the scheduled task of an external switch does on a host: the same as its script, one lab second at a time.

A task is a generator: each `yield` is a second in which it sleeps.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from winhost.lab.physics.network_adapters import Adapter
from winhost.lab.physics.switch_records import COMMIT, SNAPSHOT, in_flight
from winhost.lab.physics.windows_errors import CmdletError, not_found, own_error
from winhost.lab.physics.windows_network import TASK, Network

_LINK_SECONDS, _PROFILE_SECONDS = 60, 30
_CATEGORIES = ("private", "public")

Sleeping = Iterator[None]


def switch_task(network: Network) -> Sleeping:
    """Every record in flight, to its end; then the task is gone."""
    records = network.ours
    for record in records.all():
        if not in_flight(record):
            continue
        why = yield from _change(network, record)
        record["phase"] = "settled" if why is None else "undone"
        if why is not None:
            try:
                yield from _move(network, record, make=not record["make"])
            except CmdletError as error:
                record["phase"], why = "failed", f"{why} {error.message}"
        record["detail"] = why
        records.save(record)
    network.host.tasks.pop(TASK, None)


def _change(network: Network, record: dict[str, Any]) -> Any:
    """Nothing, or why it has to be undone."""
    if record["begun"]:
        yield
        while network.now < network.ready_at:
            yield
        return "The host restarted before anybody came back."
    record["begun"] = True
    network.ours.save(record)
    try:
        network.ours.write(SNAPSHOT, _snapshot(network, _end(network, record, made=not record["make"])))
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


def _move(network: Network, record: dict[str, Any], *, make: bool) -> Sleeping:
    if make:
        _add(network, record)
    else:
        _remove(network, record)
    snapshot = network.ours.read(SNAPSHOT)
    if snapshot is not None:
        yield from _restore(network, record, snapshot, made=make)


def _add(network: Network, record: dict[str, Any]) -> None:
    if any(switch.guid == record["switch"] for switch in network.external()):
        return
    adapter = _adapter(network, record["adapter"])
    switch = network.new_vm_switch(record["name"], str(adapter.state["name"]))
    record["switch"] = switch.guid
    network.ours.save(record)
    if switch.port is not None and adapter.state["vlan"]:
        network.set_vm_network_adapter_vlan(switch.port, adapter.state["vlan"])


def _remove(network: Network, record: dict[str, Any]) -> None:
    for switch in network.external():
        half = record["make"] and switch.state["name"] == record["name"] and switch.bound == record["adapter"]
        if switch.guid == record["switch"] or half:
            network.remove_vm_switch(switch.guid)


def _end(network: Network, record: dict[str, Any], *, made: bool) -> Adapter:
    if not made:
        return _adapter(network, record["adapter"])
    for switch in network.switches:
        if switch.guid == record["switch"] and switch.port is not None:
            return _adapter(network, switch.port)
    raise not_found(f"The host has no port on switch {record['name']}.")


def _adapter(network: Network, guid: str) -> Adapter:
    found = network.adapters.get(guid)
    if found is None:
        raise not_found(f"There is no network adapter {guid}.")
    return found


def _snapshot(network: Network, end: Adapter) -> dict[str, Any]:
    manual = [{"address": each["address"], "prefix": each["prefix"]} for each in end.manual()]
    return {
        "link": network.is_up(end),
        "addresses": manual,
        "routes": [route for route in end.all_routes() if any((":" in route[0]) is _is_v6(each) for each in manual)],
        "dns": end.name_servers(),
        "metric": end.metric,
        "network": end.state["profile"],
    }


def _is_v6(address: Mapping[str, Any]) -> bool:
    return ":" in address["address"]


def _restore(network: Network, record: dict[str, Any], snapshot: dict[str, Any], *, made: bool) -> Sleeping:
    for _ in range(_LINK_SECONDS):
        yield
        end = _end(network, record, made=made)
        if end.shows_at <= network.now and (network.is_up(end) or not snapshot["link"]):
            break
    else:
        raise own_error("NoLink", "OperationTimeout", f"{end.state['name']} has no link.")
    now = _snapshot(network, end)
    present = [each["address"] for each in now["addresses"]]
    for each in snapshot["addresses"]:
        if each["address"] not in present:
            network.new_net_ip_address(end.index, each["address"], each["prefix"])
    for to, by in (route for route in snapshot["routes"] if route not in now["routes"]):
        network.new_net_route(end.index, to, by)
    if snapshot["dns"] and snapshot["dns"] != now["dns"]:
        network.set_dns_client_server_address(end.index, snapshot["dns"])
    if snapshot["metric"] is not None and snapshot["metric"] != now["metric"]:
        network.set_net_ip_interface(end.index, snapshot["metric"])
    yield from _restore_profile(network, end, snapshot["network"])


def _restore_profile(network: Network, end: Adapter, desired: str | None) -> Sleeping:
    if desired not in _CATEGORIES:
        return
    for _ in range(_PROFILE_SECONDS):
        if end.state["profile"] is not None:
            if end.state["profile"] != desired:
                network.set_net_connection_profile(end.index, desired)
            return
        yield
