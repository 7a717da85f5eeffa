"""The values to which a property can be set. They are checked before anything is sent to a host."""

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes, size


@dataclass(frozen=True)
class Value:
    """The allowed values of a property. expected: completes a sentence that begins with `should be`."""

    expected: str
    fits: Callable[[Json], bool]


_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)

FLAG = Value("true or false", lambda value: isinstance(value, bool))
CLEARED = Value("false", lambda value: value is False)  # for flags of pending work, which can only be cleared
AWAITED = Value("true: it is only waited for", lambda value: value is True)


def is_device_name(name: str) -> bool:
    """Tell whether a file name is a reserved device name in Windows, as CON and com1.txt are in every folder."""
    return _DEVICE.fullmatch(name) is not None


def one_of(*words: str) -> Value:
    """Allow one of these words."""
    return Value(f"one of: {', '.join(words)}", lambda value: value in words)


def text(pattern: str, expected: str) -> Value:
    """Allow text that matches the whole pattern."""
    return Value(expected, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def texts(pattern: str, expected: str) -> Value:
    """Allow a list of texts that each match the pattern. The list may be empty."""
    item = text(pattern, expected)
    return Value(expected, lambda value: isinstance(value, list | tuple) and all(map(item.fits, value)))


def sizes(step: Bytes) -> Value:
    """Allow a positive number of bytes that is a multiple of `step`."""
    expected = f"a size in bytes, in steps of {size(step)}"
    return Value(expected, lambda value: type(value) is int and value > 0 and value % step == 0)


def or_nothing(value: Value) -> Value:
    """Allow null, or what `value` allows."""
    return Value(f"{value.expected}, or nothing", lambda item: item is None or value.fits(item))


def secret_reference(secret: str) -> Value:
    """Allow a reference by which the controller finds a secret, never the secret itself. secret: for the message."""

    def fits(value: Json) -> bool:
        try:
            return bool(SecretRef.parse(value))
        except ValueError:
            return False

    return Value(f"a secret reference to {secret} (env:NAME, file:/PATH …)", fits)


def is_canonical(parse: Callable[[str], object]) -> Callable[[Json], bool]:
    """Return a check that text is in canonical form: parsing and formatting it returns the same text.

    What is read back from a host must equal what was desired. parse: raises ValueError.
    """

    def fits(value: Json) -> bool:
        try:
            return isinstance(value, str) and str(parse(value)) == value
        except ValueError:
            return False

    return fits


GUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
UUID = text(GUID, "a UUID, as uuidgen makes one, in lower case")
SHA256_OR_NOTHING = or_nothing(text(r"[0-9a-f]{64}", "a SHA-256"))


INTERFACE = Value("an address with its network, as 192.0.2.10/24", is_canonical(ipaddress.ip_interface))


def _are_networks(value: Json) -> bool:
    """Tell whether it is a non-empty list of networks without zones: fe80::%1 has no meaning on another machine."""
    fits = is_canonical(ipaddress.ip_network)
    return isinstance(value, list) and bool(value) and all(fits(each) and "%" not in each for each in value)


def _are_ordered(value: Any) -> bool:
    """Tell whether networks are in the order in which a firewall lists them, so that they are equal when read again."""
    return value == [] or (_are_networks(value) and order_networks(value) == list(value))


def order_networks(texts: Iterable[str]) -> list[str]:
    """Sort networks, IPv4 first, and merge those that contain or adjoin one another. Raises ValueError."""
    networks = [ipaddress.ip_network(each) for each in texts]
    ipv4 = ipaddress.collapse_addresses(each for each in networks if isinstance(each, ipaddress.IPv4Network))
    ipv6 = ipaddress.collapse_addresses(each for each in networks if isinstance(each, ipaddress.IPv6Network))
    return [str(each) for each in (*ipv4, *ipv6)]


NETWORKS = Value("networks (CIDR), or nothing", lambda v: v is None or _are_networks(v))

ORDERED_NETWORKS = Value("a list of networks (CIDR), those of IPv4 first, in order, none within another", _are_ordered)


def is_port(value: Json) -> bool:
    """Tell whether a JSON value is the number of a TCP port."""
    return type(value) is int and 0 < value < 65536


def lines(pattern: str, expected: str) -> Value:
    """Allow a non-empty list of texts that each match the pattern."""
    form = re.compile(pattern)
    return Value(
        expected, lambda v: isinstance(v, list | tuple) and bool(v) and all(form.fullmatch(str(each)) for each in v)
    )


_SLOWEST = 4_000_000  # bytes per second


def download_seconds(files: Json) -> float:
    """Return the seconds that a slow download of files takes. files: lines of `HASH SIZE PATH`."""
    return sum(int(str(each).split(" ")[1]) for each in files or ()) / _SLOWEST
