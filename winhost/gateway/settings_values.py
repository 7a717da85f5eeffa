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
    """A setting is wrong. The message says which one, and what is expected."""


@dataclass(frozen=True)
class SocketOrPort:
    """An endpoint to listen at or to connect to: a Unix socket, an address and a port, or a Service of the cluster and
    a port.
    """

    socket: str | None = None
    address: str | None = None
    port: int = 0
    service: str | None = None

    @property
    def is_loopback(self) -> bool:
        return self.socket is not None or ipaddress.ip_address(self.address or "").is_loopback

    def __str__(self) -> str:
        if self.socket is not None:
            return self.socket
        if self.service is not None:
            return f"{self.service}:{self.port}"
        return f"[{self.address}]:{self.port}" if ":" in (self.address or "") else f"{self.address}:{self.port}"


def table(value: Any, path: str, required: tuple[str, ...], known: list[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WrongSettings(f"{path}: an object is expected")
    if missing := [name for name in required if name not in value]:
        raise WrongSettings(f"{path}: {', '.join(missing)} is missing")
    if unknown := [name for name in value if name not in (known or required)]:
        raise WrongSettings(f"{path}: {unknown[0]!r} is no setting; there are {', '.join(known or required)}")
    return value


def field_names(settings: type) -> list[str]:
    """Return the names of the settings in a dataclass."""
    return [each.name for each in fields(settings)]


def choice(value: Any, path: str, known: tuple[Any, ...]) -> Any:
    if value not in known or isinstance(value, bool):
        raise WrongSettings(f"{path}: one of {', '.join(map(str, known))} is expected, not {value!r}")
    return value


def matching_text(values: dict[str, Any], path: str, name: str, regex: re.Pattern[str]) -> str:
    value = values[name]
    if not isinstance(value, str) or not regex.fullmatch(value) or ".." in value:
        raise WrongSettings(f"{path}.{name}: {value!r} does not match {regex.pattern}")
    return value


def number(values: dict[str, Any], path: str, name: str, maximum: int, minimum: int = 1) -> int:
    value = values[name]
    if type(value) is not int or not minimum <= value <= maximum:
        raise WrongSettings(f"{path}.{name}: a whole number from {minimum} to {maximum} is expected, not {value!r}")
    return value


def flag(values: dict[str, Any], path: str, name: str) -> bool:
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise WrongSettings(f"{path}.{name}: true or false is expected, not {value!r}")
    return value


def engine_endpoint(value: Any, path: str) -> SocketOrPort:
    """Parse the endpoint of an engine, which may also be a Service."""
    if not (isinstance(value, dict) and "service" in value):
        return endpoint(value, path)
    values = table(value, path, ("service", "port"))
    return SocketOrPort(
        service=matching_text(values, path, "service", SERVICE), port=number(values, path, "port", 65535)
    )


def endpoint(value: Any, path: str) -> SocketOrPort:
    if isinstance(value, dict) and "socket" in value:
        return SocketOrPort(socket=matching_text(table(value, path, ("socket",)), path, "socket", SOCKET))
    values = table(value, path, ("address", "port"))
    try:
        address = ipaddress.ip_address(values["address"] if isinstance(values["address"], str) else "")
    except ValueError:
        raise WrongSettings(f"{path}.address: an IP address is expected, not {values['address']!r}") from None
    return SocketOrPort(address=str(address), port=number(values, path, "port", 65535))
