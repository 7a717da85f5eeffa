"""Decisions of Discrete Device Assignment: which cards, which VM, which windows."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from winhost.hardware import allocation, bars, mmio
from winhost.hardware.cards import as_mmio_sees, card_name
from winhost.model.errors import UsageError, visible
from winhost.model.facts import Instance, MissingFact, RemoteFault, Unknown
from winhost.model.no_such_thing import NoSuchThing, listed
from winhost.model.plan import DesiredResource, PlanRequest
from winhost.model.units import Bytes, mib, size
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows.assignable_device.resource import DISMOUNTED, assigned, owner
from winhost.resources.windows.pci_device.resource import PciDevice
from winhost.resources.windows.vm.resource import Vm
from winhost.resources.windows.vm_mmio.resource import VmMmio
from winhost.resources.windows.vm_power.resource import VmPower


@dataclass(frozen=True)
class Selection:
    """The cards that go, and the VM that gets them; None where no VM was chosen."""

    cards: tuple[Card, ...]
    vm: Instance[Vm] | None = None


@dataclass(frozen=True)
class MmioWindows:
    """The MMIO windows that a selection needs."""

    high: mmio.HighWindow
    low: mmio.LowWindow


@dataclass(eq=False)
class WhichVm(UsageError):
    """The path needs a VM and the user named none. verdicts: what is said of each, where that was asked."""

    host: str
    known: Mapping[str, str]
    verdicts: Mapping[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        return f"{self.host} has {len(self.known)} VMs: say which one gets the cards"

    @property
    def hint(self) -> str | None:
        if not self.known:
            return "winhost adopts a VM and never makes one: create it on the host (generation 2), then plan again."
        said = {vm: f" ({verdict})" for vm, verdict in self.verdicts.items()}
        return (
            f"Add --vm with a name or id:\n{listed({vm: name + said.get(vm, '') for vm, name in self.known.items()})}"
        )


def choose_vm(facts: HostFacts, asked: str | None) -> Instance[Vm]:
    """By GUID or exact name; the only one where none is asked for. Raises NoSuchThing, WhichVm, MissingFact."""
    known = {vm.key["vm"]: vm.state.name for vm in facts.vms}
    if asked is None:
        if len(known) != 1:
            raise WhichVm(facts.host, known)
        return facts.vms[0]
    found = [vm for vm in facts.vms if vm.key["vm"] == asked.strip("{}").lower()]
    found = found or [vm for vm in facts.vms if vm.state.name == asked]
    if len(found) != 1:
        raise NoSuchThing(facts.host, "VM", asked, known, several=bool(found))
    return found[0]


def choose_cards(facts: HostFacts, asked: tuple[str, ...]) -> tuple[Card, ...]:
    """By location path or exact name. Raises NoSuchThing."""
    known = {card.location: card.gpu.state.name for card in facts.cards}
    chosen: dict[str, Card] = {}
    for word in asked:
        found = [c for c in facts.cards if word in (c.location, c.gpu.key["location"])]
        found = found or [c for c in facts.cards if c.gpu.state.name.casefold() == word.casefold()]
        if len(found) != 1:
            raise NoSuchThing(facts.host, "card", word, known, several=bool(found))
        chosen[found[0].location] = found[0]
    return tuple(chosen[location] for location in sorted(chosen))


def windows(facts: HostFacts, selection: Selection) -> MmioWindows:
    """The windows for the cards of a selection and those that its VM has already. Raises MmioRefused, MissingFact."""
    cards = {card.location: card for card in selection.cards}
    if selection.vm is not None:
        vm = selection.vm.key["vm"]
        cards |= {card.location: card for card in facts.cards if owner(facts.place(card.gpu)) == vm}
    return _windows(tuple(as_mmio_sees(cards[location]) for location in sorted(cards)), address_width(facts))


@lru_cache(maxsize=64)
def _windows(seen: tuple[bars.CardBars, ...], width: int | None) -> MmioWindows:
    """Two rules and the plan ask for the same ones."""
    return MmioWindows(mmio.high_window(seen, address_width=width), mmio.low_window(seen))


def forget() -> None:
    """Drop the windows that were worked out before: for measuring what a first one costs."""
    _windows.cache_clear()
    allocation.forget()


def address_width(facts: HostFacts) -> int | None:
    """Physical address bits, where the host could tell; not knowing limits nothing here, and a rule says so."""
    try:
        return facts.firmware.address_width
    except MissingFact:
        return None


@dataclass(frozen=True)
class Chosen:
    """The windows that are set, with the reasons."""

    high: Bytes
    low: Bytes
    why: str


@dataclass(frozen=True)
class CardFunction:
    """A PCI function as the playbook names it."""

    location: str
    device: str
    name: str


class DdaDecisions:
    """What the playbook of this path may refer to. Each is made when it is asked for: before the Hyper-V role is
    there, `vm` cannot be, and the entries that ask for it wait for the next stage.
    """

    def __init__(self, facts: HostFacts, wish: PlanRequest, cards: tuple[Card, ...]) -> None:
        self._facts = facts
        self._wish = wish
        self._cards = cards

    @cached_property
    def selection(self) -> Selection:
        return Selection(self._cards, choose_vm(self._facts, self._wish.vm))

    @cached_property
    def vm(self) -> Mapping[str, str]:
        vm = self.selection.vm
        assert vm is not None
        return {"id": vm.key["vm"], "name": visible(vm.state.name)}

    @cached_property
    def mmio(self) -> Chosen:
        """Ours, or the user's. Raises MmioRefused where nothing fits; `check` tells whether the user's does."""
        needed = self._windows
        high = needed.high.size if self._wish.high is None else self._wish.high
        low = needed.low.size if self._wish.low is None else self._wish.low
        why = f"High window {size(high)}, nothing below {mib(needed.high.floor)} works. {needed.high.why}"
        return Chosen(high, low, " ".join((why, *needed.high.doubts)))

    @cached_property
    def _windows(self) -> MmioWindows:
        return windows(self._facts, self.selection)

    def check(self, wanted: Iterable[DesiredResource]) -> None:
        """Whether windows that are wanted hold the cards, whoever wrote them and where. Raises MmioRefused."""
        with suppress(MissingFact):
            self._check_asked()
        for each in wanted:
            if each.noun == VmMmio.noun.name and each.key["vm"] == self.vm["id"]:
                if "high" in each.want:
                    mmio.check_high(each.want["high"], self._windows.high)
                if "low" in each.want:
                    mmio.check_low(each.want["low"], self._windows.low)

    def _check_asked(self) -> None:
        """Before the VM can be looked at: what the cards need is needed whatever the VM has beside them."""
        if self._wish.high is not None:
            mmio.check_high(self._wish.high, windows(self._facts, Selection(self._cards, None)).high)
        if self._wish.low is not None:
            mmio.check_low(self._wish.low, windows(self._facts, Selection(self._cards, None)).low)

    @cached_property
    def place(self) -> Mapping[str, str]:
        return {"assigned": assigned(self.vm["id"]), "dismounted": DISMOUNTED}

    @cached_property
    def gpus(self) -> tuple[CardFunction, ...]:
        return tuple(_function(card.gpu, card_name(card)) for card in self._cards)

    @cached_property
    def companions(self) -> tuple[CardFunction, ...]:
        cards = ((card, other) for card in self._cards for other in card.companions)
        return tuple(_function(other, f"{card_name(card)}, its {other.state.kind} function") for card, other in cards)

    @cached_property
    def power(self) -> str:
        """The power state after the run: as found, unless the user asks for another."""
        if self._wish.power != "as-found":
            return self._wish.power
        found = self._facts.of(VmPower, {"vm": self.vm["id"]})
        if found is None:
            gone = RemoteFault("ObjectNotFound", message=f"nothing is told of the VM {self.vm['name']}")
            raise MissingFact("VmPower", Unknown(gone))
        return found.state


def _function(device: Instance[PciDevice], name: str) -> CardFunction:
    return CardFunction(device.key["location"], device.key["device"], name)
