"""SSH access to the distro."""

import ipaddress
from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import CUTS_THE_WIRE, INSIDE, WHOLE, WITHIN_DISTRO
from winhost.resources.values import FLAG, NETWORKS, Value, texts

# Type, base64, and a name; the scripts have it, too.
PUBLIC_KEY = r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp[0-9]{3}) [A-Za-z0-9+/]+={0,2}( [A-Za-z0-9@._:-]+)?"
NO_ACCESS: Mapping[str, Json] = MappingProxyType(
    {
        "user": None,
        "port": None,
        "listen": None,
        "allowed": None,
        "address": None,
        "host_key": None,
        "authorized": [],
        "active": False,
    }
)


def _port(value: Json) -> bool:
    return value is None or (type(value) is int and 1 <= value <= 65535)


def _address(value: Json) -> bool:
    """Tell whether an address is in its one spelling: what is read back must equal what was desired."""
    if value is None or not isinstance(value, str):
        return value is None
    try:
        return str(ipaddress.ip_address(value)) == value
    except ValueError:
        return False


@resource(
    ResourceType(
        "WslAccess",
        title="SSH access to the distro",
        order=350,
        key=("account", "distro"),
        sets={
            "port": Value("a port, or nothing", _port),
            "listen": Value("an address in its usual spelling, or nothing", _address),
            "allowed": NETWORKS,
            "authorized": texts(PUBLIC_KEY, "a list of public keys"),
            "active": FLAG,
        },
        after=("WslConf",),
        requires="WslDistro",
        absent=NO_ACCESS,
        asks=("network",),
        risks=CUTS_THE_WIRE,
        dependents=INSIDE,
        within=WITHIN_DISTRO,
        undo=WHOLE,
    )
)
class WslAccess(State):
    """sshd in a distro: by key only, at one address, for `user`. From here on the distro is an SSH target.

    allowed: networks (CIDR) that sshd accepts connections from, as from the machine itself; null: from anywhere, as
    behind NAT, where all that comes in comes from Windows. address: its own in the network of a bridge, where it can be
    reached; null elsewhere, and while it does not run. authorized: the keys that winhost put there; those of others are
    left alone and not listed. host_key: what the distro will show, read through Windows and so known before anybody
    connects. active: it listens now, which takes a running distro with systemd, and a network that leads to it. Taking
    the access away removes sshd, unless that was there before.
    """

    user: str | None
    port: int | None
    listen: str | None
    allowed: tuple[str, ...] | None
    address: str | None
    host_key: str | None
    authorized: tuple[str, ...]
    active: bool
