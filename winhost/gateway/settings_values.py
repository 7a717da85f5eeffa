"""Read values of the gateway's settings, and name the path of one that is wrong."""

import ipaddress
import re
from dataclasses import dataclass, fields
from typing import Any

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}")
SOCKET = re.compile(r"/[A-Za-z0-9._/-]{1,106}")  # a path of a Unix socket has up to 107 bytes
# A Service of Kubernetes: no DNS zone outside the cluster answers for such a name.
SERVICE = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.svc")


class WrongSettings(ValueError):
    """The message says which setting is wrong, and what is expected."""


@dataclass(frozen=True)
class SocketOrPort:
    """An address to listen at or to connect to: a Unix socket, an address and a port, or a Service of the cluster and a
    port.
    """

    socket: str | None = None
    address: str | None = None
    port: int = 0
    service: str | None = None

    @property
    def only_this_machine(self) -> bool:
        return self.socket is not None or ipaddress.ip_address(self.address or "").is_loopback

    def __str__(self) -> str:
        if self.socket is not None:
            return self.socket
        if self.service is not None:
            return f"{self.service}:{self.port}"
        return f"[{self.address}]:{self.port}" if ":" in (self.address or "") else f"{self.address}:{self.port}"


def table(value: Any, where: str, needed: tuple[str, ...], known: list[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WrongSettings(f"{where}: an object is expected")
    if missing := [name for name in needed if name not in value]:
        raise WrongSettings(f"{where}: {', '.join(missing)} is missing")
    if foreign := [name for name in value if name not in (known or needed)]:
        raise WrongSettings(f"{where}: {foreign[0]!r} is no setting; there are {', '.join(known or needed)}")
    return value


def names_of(settings: type) -> list[str]:
    """The names of the settings in a dataclass."""
    return [each.name for each in fields(settings)]


def one_of(value: Any, where: str, known: tuple[Any, ...]) -> Any:
    if value not in known or isinstance(value, bool):
        raise WrongSettings(f"{where}: one of {', '.join(map(str, known))} is expected, not {value!r}")
    return value


def word(given: dict[str, Any], where: str, name: str, form: re.Pattern[str]) -> str:
    value = given[name]
    if not isinstance(value, str) or not form.fullmatch(value) or ".." in value:
        raise WrongSettings(f"{where}.{name}: {value!r} does not match {form.pattern}")
    return value


def number(given: dict[str, Any], where: str, name: str, most: int, least: int = 1) -> int:
    value = given[name]
    if type(value) is not int or not least <= value <= most:
        raise WrongSettings(f"{where}.{name}: a whole number from {least} to {most} is expected, not {value!r}")
    return value


def flag(given: dict[str, Any], where: str, name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise WrongSettings(f"{where}.{name}: true or false is expected, not {value!r}")
    return value


def engine_endpoint(value: Any, where: str) -> SocketOrPort:
    """Parse the address of an engine, which may also be a Service."""
    if not (isinstance(value, dict) and "service" in value):
        return endpoint(value, where)
    given = table(value, where, ("service", "port"))
    return SocketOrPort(service=word(given, where, "service", SERVICE), port=number(given, where, "port", 65535))


def endpoint(value: Any, where: str) -> SocketOrPort:
    if isinstance(value, dict) and "socket" in value:
        return SocketOrPort(socket=word(table(value, where, ("socket",)), where, "socket", SOCKET))
    given = table(value, where, ("address", "port"))
    try:
        address = ipaddress.ip_address(given["address"] if isinstance(given["address"], str) else "")
    except ValueError:
        raise WrongSettings(f"{where}.address: an IP address is expected, not {given['address']!r}") from None
    return SocketOrPort(address=str(address), port=number(given, where, "port", 65535))
