"""Forwarded ports."""

import ipaddress

from winhost.core.answers import Json
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import CUTS_THE_WIRE, WAYS_IN
from winhost.resources.values import NETWORKS, Value, port


def _ipv4(value: Json) -> bool:
    try:
        return isinstance(value, str) and str(ipaddress.IPv4Address(value)) == value
    except ValueError:
        return False


@resource(
    ResourceType(
        "PortForward",
        title="forwarded ports",
        order=370,
        key=("port",),
        sets={
            "target": Value("an IPv4 address, or nothing", lambda v: v is None or _ipv4(v)),
            "connect_port": Value("a port, or nothing", lambda v: v is None or port(v)),
            "allowed": NETWORKS,
        },
        absent={"target": None, "connect_port": None, "allowed": None},
        asks=("network",),
        risks=CUTS_THE_WIRE,
        dependents=WAYS_IN,
    )
)
class PortForward(State):
    """A TCP port of Windows that leads to an address behind it (netsh portproxy), and who may come in (`allowed`:
    CIDR).

    For WSL in NAT mode. TCP only: portproxy knows no UDP. That address changes with each start of WSL's VM, so a
    forward holds until the next one and `verify` reports one that leads nowhere. All three are set and taken back
    together. `allowed` is empty while nobody may come in: setting it failed half-way, or somebody turned our rule off.
    """

    target: str | None
    connect_port: int | None
    allowed: tuple[str, ...] | None
