"""The catalogue of processors by the name that Windows reports: facts that no Windows interface exposes."""

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
    """A row of the catalogue.

    hardware: server, workstation, desktop or mobile; width: physical address bits, None if unknown; kind, source: the
    source by which the width can be checked.
    """

    generation: str
    hardware: str
    width: int | None = None
    kind: Kind | None = None
    source: str = ""


@lru_cache(maxsize=256)
def find_generation(name: str) -> ProcessorGeneration | None:
    """Return a processor's generation by its name; None if the catalogue lacks it."""
    plain = " ".join(_MARKS.sub("", name).split())
    return next((row for expression, row in _rows() if re.fullmatch(expression, plain, re.IGNORECASE)), None)


def narrowest(names: Iterable[str]) -> int | None:
    """Return the physical address bits that all of these processors have; None if one of them is unknown."""
    widths = [row.width if (row := find_generation(name)) else None for name in names]
    known = [width for width in widths if width is not None]
    return min(known) if known and len(known) == len(widths) else None


def address_width(facts: HostFacts) -> int | None:
    """Return the physical address bits that the facts state, else those of the processor model; None if unknown."""
    try:
        return facts.firmware.address_width
    except MissingFact:
        return width_from_catalogue(facts)


def width_from_catalogue(facts: HostFacts) -> int | None:
    """Return the address width that all of the host's processors have according to the catalogue, or None."""
    with suppress(MissingFact):
        return narrowest(processor.state.name for processor in facts.all(Processor))
    return None


def with_address_width(facts: HostFacts, bits: int | None) -> HostFacts:
    """Return the facts with stated physical address bits, such as those in an error of Start-VM."""
    if bits is None:
        return facts
    return HostFacts(facts.document.edited("Firmware", lambda each: with_state(each, {"address_width": bits})))


def generations() -> Sequence[ProcessorGeneration]:
    """Return all rows, for the page that lists them."""
    return tuple(row for _, row in _rows())


@once
def _rows() -> tuple[tuple[str, ProcessorGeneration], ...]:
    """Return each row with its regular expression, which is compiled only when a name is compared with it."""
    read: list[dict[str, Any]] = load_catalogue(files(__package__).joinpath("processors.yaml"))
    return tuple((row.pop("name"), ProcessorGeneration(hardware=row.pop("class"), **row)) for row in read)
