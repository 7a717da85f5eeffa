"""Ports in the firewall of a simulated Linux, whose nftables nobody else uses."""

import re
from collections.abc import Iterator, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux, State
from winhost.resources.values import NETWORKS_IN_ORDER


class PortRules:
    """rules: by port, as the facts of the machine have them, or as they were made since."""

    def __init__(self, linux: Linux) -> None:
        self.rules: dict[str, State] = {each.key["port"]: dict(each.state) for each in linux.found("FirewallPort")}


def firewall_ports(linux: Linux, key: Key | None) -> Iterator[Record]:
    rules = linux.part(PortRules).rules
    for port in [_port(key["port"])] if key else sorted(rules, key=int):
        yield Record(rules.get(port, {"allowed": None, "by": None, "others": []}), {"port": port})


def set_firewall_port(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    rules, port, allowed = linux.part(PortRules).rules, key["port"], desired["allowed"]
    if allowed is None:
        rules.pop(port, None)
        return
    if not NETWORKS_IN_ORDER.fits(allowed):
        raise refused("BadRequest", "InvalidArgument", f"{allowed!r} is not {NETWORKS_IN_ORDER.expected}.")
    if port == str(linux.distro.port):
        raise refused("PortOfSsh", "InvalidOperation", f"sshd listens on port {port}.", "sshd")
    rules[port] = {"allowed": list(allowed), "by": "nftables", "others": []}


def _port(port: str) -> str:
    if re.fullmatch(r"[1-9][0-9]{0,4}", port) is None or int(port) > 65535:
        raise refused("BadRequest", "InvalidArgument", f"{port!r} is not a TCP port.")
    return port
