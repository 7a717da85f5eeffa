"""What one file tells of a machine: values with their worth, and why a value is not there."""

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum
from typing import TypeAlias

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass


class Worth(IntEnum):
    """How good a value is: of two that differ the better one counts, and two of equal worth must not differ.

    ROUNDED: to a few digits; ROUGH: less, or worded by the tool that shows it; DRIVER: in the words of the card's
    driver; EXACT: as Windows or the device itself says it.
    """

    ROUNDED = -1
    ROUGH = 0
    DRIVER = 1
    EXACT = 2


@dataclass(frozen=True)
class Observation:
    """A value, JSON as it stands in facts."""

    value: Json
    worth: Worth = Worth.EXACT


@dataclass(frozen=True)
class Unreported:
    """This file cannot tell it, and why."""

    why: str


Value: TypeAlias = Observation | Unreported
State: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True)
class PciAddress:
    """Where the bus has a function. Firmware and systems number buses, so it is no location path."""

    domain: int
    bus: int
    device: int
    function: int

    @property
    def location(self) -> str:
        """In the place of a location path: it groups the functions of a card alike, and cannot be taken for one."""
        return f"PCIBUS({self.domain:04X}:{self.bus:02X})#PCI({self.device:02X}{self.function:02X})"

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function:x}"


@dataclass(frozen=True)
class SeenFunction:
    """A PCI function of a graphics card. ids: `VEN_10DE&DEV_2684&SUBSYS_889619DA`, empty where the file has none."""

    ids: str
    state: State
    location: str | None = None
    address: PciAddress | None = None

    @property
    def name(self) -> str:
        """What the file calls it."""
        value = self.state.get("name")
        return str(value.value) if isinstance(value, Observation) else ""

    @property
    def place(self) -> str | None:
        """Where it is, as the file tells it."""
        return self.location or (self.address.location if self.address else None)


@dataclass(frozen=True)
class FileObservations:
    """Everything that one file tells.

    host: the machine's name; resources: states by resource and the value of its key, empty for resources without
    one; functions:
    the graphics cards it lists, None where it is not about cards; every_function: it lists all that the machine has;
    advice: what would tell more than this file.
    """

    host: str | None = None
    resources: Mapping[str, Mapping[str, State]] = field(default_factory=dict)
    functions: tuple[SeenFunction, ...] | None = None
    every_function: bool = False
    advice: str | None = None


class Misread(Exception):
    """The file is of this kind, but cannot be read. The sentence goes on after the file's name."""
