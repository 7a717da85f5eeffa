"""What a property that can be set may be set to: said in a plan's refusal, and checked before a host is asked."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from winhost.model.facts import Json
from winhost.model.units import Bytes, size


@dataclass(frozen=True)
class Value:
    """says: for people, as in `should be …`."""

    says: str
    fits: Callable[[Json], bool]


_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)

FLAG = Value("true or false", lambda value: isinstance(value, bool))


def is_device(name: str) -> bool:
    """Whether Windows takes it for a device, wherever it stands and whatever follows its first dot."""
    return _DEVICE.fullmatch(name) is not None


def one_of(*words: str) -> Value:
    """One of the words of the wire."""
    return Value(f"one of: {', '.join(words)}", lambda value: value in words)


def text(pattern: str, says: str) -> Value:
    """Text that matches as a whole."""
    return Value(says, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def sizes(step: Bytes) -> Value:
    """Bytes, more than none, in whole steps."""
    said = f"a size in bytes, in steps of {size(step)}"
    return Value(said, lambda value: type(value) is int and value > 0 and value % step == 0)
