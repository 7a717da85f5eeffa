"""The MMIO windows for the cards of a VM."""

from dataclasses import dataclass
from functools import lru_cache

from winhost.core.answers import MissingFact
from winhost.hardware import allocation, bars, mmio
from winhost.hardware.cards import bars_of
from winhost.paths.dda_selection import Selection
from winhost.resources.host import HostFacts
from winhost.resources.windows.assignable_device.resource import owner


@dataclass(frozen=True)
class MmioWindows:
    """The MMIO windows that a selection needs."""

    high: mmio.HighWindow
    low: mmio.LowWindow


def windows(facts: HostFacts, selection: Selection) -> MmioWindows:
    """The windows for the cards of a selection and those that its VM has already. Raises MmioRefused, MissingFact."""
    cards = {card.location: card for card in selection.cards}
    if selection.vm is not None:
        vm = selection.vm.key["vm"]
        cards |= {card.location: card for card in facts.cards if owner(facts.place(card.gpu)) == vm}
    return _windows(tuple(bars_of(cards[location]) for location in sorted(cards)), address_width(facts))


@lru_cache(maxsize=64)
def _windows(seen: tuple[bars.CardBars, ...], width: int | None) -> MmioWindows:
    """Cached: two rules and the plan ask for the same windows."""
    return MmioWindows(mmio.high_window(seen, address_width=width), mmio.low_window(seen))


def forget() -> None:
    """Empty the caches, so that a benchmark measures a first computation."""
    _windows.cache_clear()
    allocation.forget()


def address_width(facts: HostFacts) -> int | None:
    """Physical address bits; None where the host does not report them, which a rule points out."""
    try:
        return facts.firmware.address_width
    except MissingFact:
        return None
