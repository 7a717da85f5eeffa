"""The values that a property can be set to: checked before a host is asked, and named where a plan is refused."""

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
    """expected: for people, the rest of a sentence that begins `should be`."""

    expected: str
    fits: Callable[[Json], bool]


_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)

FLAG = Value("true or false", lambda value: isinstance(value, bool))
DONE = Value("false", lambda value: value is False)  # of what is still to be done
AWAITED = Value("true: it is only waited for", lambda value: value is True)


def is_device(name: str) -> bool:
    """Tell whether Windows takes a name for a device, wherever it stands and whatever follows its first dot."""
    return _DEVICE.fullmatch(name) is not None


def one_of(*words: str) -> Value:
    """One of the words of the wire."""
    return Value(f"one of: {', '.join(words)}", lambda value: value in words)


def text(pattern: str, expected: str) -> Value:
    """Text that matches as a whole."""
    return Value(expected, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def texts(pattern: str, expected: str) -> Value:
    """A list, each of it a text of this form."""
    one = text(pattern, expected)
    return Value(expected, lambda value: isinstance(value, list | tuple) and all(map(one.fits, value)))


def sizes(step: Bytes) -> Value:
    """Bytes, more than none, in whole steps."""
    expected = f"a size in bytes, in steps of {size(step)}"
    return Value(expected, lambda value: type(value) is int and value > 0 and value % step == 0)


def or_nothing(value: Value) -> Value:
    """Make a value that may also be null."""
    return Value(f"{value.expected}, or nothing", lambda given: given is None or value.fits(given))


def secret_reference(of: str) -> Value:
    """A reference by which the controller finds a secret, never the secret."""

    def fits(value: Json) -> bool:
        try:
            return bool(SecretRef.parse(value))
        except ValueError:
            return False

    return Value(f"a secret reference to {of} (env:NAME, file:/PATH …)", fits)


def spelled(parse: Callable[[str], object]) -> Callable[[Json], bool]:
    """Make the check of text in its one spelling, as parsing writes it: what is read back must equal what was desired.
    parse: raises ValueError.
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


INTERFACE = Value("an address with its network, as 192.0.2.10/24", spelled(ipaddress.ip_interface))


def _networks(value: Json) -> bool:
    """A list of networks, not empty. A zone, as in fe80::%1, has no meaning on another machine."""
    fits = spelled(ipaddress.ip_network)
    return isinstance(value, list) and bool(value) and all(fits(each) and "%" not in each for each in value)


def _in_order(value: Any) -> bool:
    """Tell whether networks are ordered as a firewall lists them, so that they compare equal when read again."""
    return value == [] or (_networks(value) and networks_in_order(value) == list(value))


def networks_in_order(texts: Iterable[str]) -> list[str]:
    """Order networks: those of IPv4 first, none within another. Raises ValueError."""
    found = [ipaddress.ip_network(each) for each in texts]
    fours = ipaddress.collapse_addresses(each for each in found if isinstance(each, ipaddress.IPv4Network))
    sixes = ipaddress.collapse_addresses(each for each in found if isinstance(each, ipaddress.IPv6Network))
    return [str(each) for each in (*fours, *sixes)]


NETWORKS = Value("networks (CIDR), or nothing", lambda v: v is None or _networks(v))

NETWORKS_IN_ORDER = Value("a list of networks (CIDR), those of IPv4 first, in order, none within another", _in_order)


def port(value: Json) -> bool:
    """A number of a TCP port, as JSON has it."""
    return type(value) is int and 0 < value < 65536


def lines(pattern: str, says: str) -> Value:
    """A list of texts of one form, and not an empty one."""
    form = re.compile(pattern)
    return Value(
        says, lambda v: isinstance(v, list | tuple) and bool(v) and all(form.fullmatch(str(each)) for each in v)
    )


_SLOWEST = 4_000_000  # bytes a second


def seconds_of_download(sized: Json) -> float:
    """The seconds that a download takes, for files whose lines are `HASH SIZE PATH`."""
    return sum(int(str(each).split(" ")[1]) for each in sized or ()) / _SLOWEST
