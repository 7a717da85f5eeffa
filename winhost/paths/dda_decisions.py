"""Decisions of Discrete Device Assignment: which cards, which VM, which windows."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from winhost.core.answers import Json, MissingFact, RemoteFault, Unknown
from winhost.core.steps import DesiredResource
from winhost.hardware import mmio
from winhost.hardware.cards import card_name
from winhost.model.errors import visible
from winhost.model.facts import Instance
from winhost.model.plan import PlanRequest
from winhost.model.units import Bytes, mib, size
from winhost.paths.dda_mmio import MmioWindows, windows
from winhost.paths.dda_selection import Selection, choose_vm
from winhost.paths.dda_settings import DdaSettings
from winhost.paths.never_sleep import power_plans
from winhost.paths.new_vm import ComingVm, desired_vm, made_vm, staged, the_made_vm
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows.assignable_device.resource import DISMOUNTED, assigned
from winhost.resources.windows.pci_device.resource import PciDevice
from winhost.resources.windows.vm_mmio.resource import VmMmio
from winhost.resources.windows.vm_power.resource import RUNNING, VmPower


@dataclass(frozen=True)
class Chosen:
    """The sizes of the windows to set in bytes, with the reasons."""

    high: Bytes
    low: Bytes
    why: str


@dataclass(frozen=True)
class CardFunction:
    """A PCI function of a card."""

    location: str
    device: str
    name: str


class DdaDecisions:
    """What the playbook of this path may refer to. Each is computed when it is read: before the Hyper-V role is
    there, `vm` cannot be, and the entries that ask for it wait for the next stage.
    """

    def __init__(self, facts: HostFacts, request: PlanRequest, settings: DdaSettings, cards: tuple[Card, ...]) -> None:
        self._facts = facts
        self._settings = settings
        self._request = request
        self._cards = cards

    @cached_property
    def selection(self) -> Selection:
        new = self._settings.new_vm
        vm = choose_vm(self._facts, self._request.vm) if new is None else the_made_vm(self._facts, new)
        return Selection(self._cards, vm)

    @cached_property
    def new_vms(self) -> tuple[Mapping[str, Json], ...]:
        """The one that is to be made, if one is."""
        new = self._settings.new_vm
        return () if new is None else (desired_vm(self._facts, new),)

    @cached_property
    def new_images(self) -> tuple[Mapping[str, str], ...]:
        new = self._settings.new_vm
        return () if new is None else (staged(new),)

    @cached_property
    def vm(self) -> Mapping[str, str]:
        new = self._settings.new_vm
        if new is not None and made_vm(self._facts, new) is None:
            return ComingVm(name=new.name)
        vm = self.selection.vm
        assert vm is not None
        return {"id": vm.key["vm"], "name": visible(vm.state.name)}

    @cached_property
    def mmio(self) -> Chosen:
        """The computed windows, or the user's, which `check` checks. Raises MmioRefused where none hold the cards."""
        needed = self._windows
        high = needed.high.size if self._request.high is None else self._request.high
        low = needed.low.size if self._request.low is None else self._request.low
        why = f"High window {size(high)}, nothing below {mib(needed.high.floor)} works. {needed.high.why}"
        return Chosen(high, low, " ".join((why, *needed.high.doubts)))

    @cached_property
    def _windows(self) -> MmioWindows:
        return windows(self._facts, self.selection)

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """Check that the desired windows hold the cards, whatever their source. Raises MmioRefused."""
        with suppress(MissingFact):
            self._check_asked()
        for each in desired:
            if each.resource == VmMmio.resource_type.name and each.key["vm"] == self.vm["id"]:
                if "high" in each.desired:
                    mmio.check_high(each.desired["high"], self._windows.high)
                if "low" in each.desired:
                    mmio.check_low(each.desired["low"], self._windows.low)

    def _check_asked(self) -> None:
        """Before the VM can be read: the chosen cards' need is a minimum, whatever else the VM has."""
        if self._request.high is not None:
            mmio.check_high(self._request.high, windows(self._facts, Selection(self._cards, None)).high)
        if self._request.low is not None:
            mmio.check_low(self._request.low, windows(self._facts, Selection(self._cards, None)).low)

    @cached_property
    def place(self) -> Mapping[str, str]:
        return {"assigned": assigned(self.vm["id"]), "dismounted": DISMOUNTED}

    @cached_property
    def power_plans(self) -> tuple[Mapping[str, str], ...]:
        return power_plans(self._facts, self._settings.never_sleep)

    @cached_property
    def gpus(self) -> tuple[CardFunction, ...]:
        return tuple(_function(card.gpu, card_name(card)) for card in self._cards)

    @cached_property
    def companions(self) -> tuple[CardFunction, ...]:
        cards = ((card, other) for card in self._cards for other in card.companions)
        return tuple(_function(other, f"{card_name(card)}, its {other.state.kind} function") for card, other in cards)

    @cached_property
    def power(self) -> str:
        """The power state after the run: as found, unless the user asks for another; one that was made runs."""
        if self._request.power != "as-found":
            return self._request.power
        if self._settings.new_vm is not None:
            _ = self.vm["id"]
            return RUNNING
        found = self._facts.of(VmPower, {"vm": self.vm["id"]})
        if found is None:
            gone = RemoteFault("ObjectNotFound", message=f"nothing is told of the VM {self.vm['name']}")
            raise MissingFact("VmPower", Unknown(gone))
        return found.state


def _function(device: Instance[PciDevice], name: str) -> CardFunction:
    return CardFunction(device.key["location"], device.key["device"], name)
