"""The catalogue of processors by the name that Windows reports: what no interface of Windows tells of them."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.resources import files
from typing import Any

from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.facts import with_state
from winhost.model.once import once
from winhost.model.reason import Kind
from winhost.resources.host import HostFacts
from winhost.resources.windows.read_only import Processor

SERVER, WORKSTATION, DESKTOP, MOBILE = "server", "workstation", "desktop", "mobile"
_MARKS = re.compile(r"\((?:R|TM)\)", re.IGNORECASE)


@dataclass(frozen=True)
class ProcessorGeneration:
    """A row of the catalogue. hardware: server, workstation, desktop or mobile; width: physical address bits, None
    where they are not known; kind, source: of the width, by which anyone can check it.
    """

    generation: str
    hardware: str
    width: int | None = None
    kind: Kind | None = None
    source: str = ""


@lru_cache(maxsize=256)
def find_generation(name: str) -> ProcessorGeneration | None:
    """The generation by the processor's name; None for one that is not in the catalogue."""
    plain = " ".join(_MARKS.sub("", name).split())
    return next((row for expression, row in _rows() if re.fullmatch(expression, plain, re.IGNORECASE)), None)


def narrowest(names: Iterable[str]) -> int | None:
    """The physical address bits that all of these processors have; None where one of them is not known to have any."""
    widths = [found.width if (found := find_generation(name)) else None for name in names]
    known = [width for width in widths if width is not None]
    return min(known) if known and len(known) == len(widths) else None


def address_width(facts: HostFacts) -> int | None:
    """Physical address bits: as the host or somebody says, else by the model of its processors; None where neither is
    known, which a rule points out.
    """
    try:
        return facts.firmware.address_width
    except MissingFact:
        return width_from_catalogue(facts)


def width_from_catalogue(facts: HostFacts) -> int | None:
    """The address width that all of the host's processors have by the catalogue."""
    with suppress(MissingFact):
        return narrowest(processor.state.name for processor in facts.all(Processor))
    return None


def with_address_width(facts: HostFacts, bits: int | None) -> HostFacts:
    """The host with the physical address bits that somebody was told, by Start-VM for one."""
    if bits is None:
        return facts
    return HostFacts(facts.document.edited("Firmware", lambda each: with_state(each, {"address_width": bits})))


def generations() -> Sequence[ProcessorGeneration]:
    """All rows, for the page that lists what is known."""
    return tuple(row for _, row in _rows())


@once
def _rows() -> tuple[tuple[str, ProcessorGeneration], ...]:
    """Each with its regular expression, which is compiled when a name is compared with it."""
    read: list[dict[str, Any]] = load_catalogue(files(__package__).joinpath("processors.yaml"))
    return tuple((row.pop("name"), ProcessorGeneration(hardware=row.pop("class"), **row)) for row in read)
