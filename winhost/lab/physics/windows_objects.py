"""Objects as cmdlets of a simulated Windows give them."""

from collections.abc import Mapping
from typing import Any

from winhost.core.dataclass import dataclass

Properties = Mapping[str, Any]


@dataclass(frozen=True)
class WindowsObject:
    """An object as a cmdlet gives it: a class of types.yaml, or a plain table where there is none."""

    type: str | None
    properties: Properties


@dataclass(frozen=True)
class FileTime:
    """A moment, in steps of 100 ns since 1601."""

    ticks: int


def of_type(type_name: str, **properties: Any) -> WindowsObject:
    """Make an object without the properties that are None, which Windows would leave null."""
    return WindowsObject(type_name, {name: value for name, value in properties.items() if value is not None})
