"""What rows ask about a host, a GPU or a VM, besides properties of resources. docs/conditions.md lists it."""

from collections.abc import Callable, Mapping
from typing import Any

from packaging.version import Version

from winhost.compat.common import gpus
from winhost.compat.target import driver_branch
from winhost.findings.condition import holds
from winhost.hardware.cards import card_label, paravirtual, partitions, runs_cuda, serves, shows
from winhost.hardware.gpus import known
from winhost.knowledge.catalogue import CatalogueEntry
from winhost.model.facts import Instance
from winhost.resources.host import Card, HostFacts
from winhost.resources.registry import RESOURCE_TYPES
from winhost.resources.windows.assignable_device import owner
from winhost.resources.windows.vm import Vm
from winhost.resources.windows.wsl import Wsl
from winhost.resources.windows.wsl_policy import WslPolicy

MODES = {0: "none", 1: "NAT", 3: "mirrored", 4: "VirtioProxy"}  # microsoft/WSL intune/WSL.admx, DefaultNetworkingMode
NAT = 1


def wsl_version(facts: HostFacts) -> Version | None:
    """None where WSL records no version. A version stated in the workload counts as installed."""
    wsl = facts.the(Wsl)
    return Version(wsl.version) if wsl.version else None


def driven(facts: HostFacts) -> list[Card]:
    """NVIDIA's GPUs that its Windows driver runs."""
    return [card for card in gpus(facts) if runs_cuda(card) and card.gpu.state.driver_model]


def windows_driver(facts: HostFacts) -> Version | None:
    """NVIDIA's number of the oldest driver of these GPUs; None where none reports it."""
    versions = (driver_branch(card.gpu.state.driver_version) for card in driven(facts))
    return min(filter(None, versions), default=None)


def _fixed_mode(facts: HostFacts) -> str:
    """The network mode that a policy sets for WSL."""
    number = facts.the(WslPolicy).default_networking
    return MODES[NAT] if number is None else MODES.get(number, str(number))


OF_HOST: Mapping[str, Callable[[HostFacts], Any]] = {
    "wsl": wsl_version,
    "driver": windows_driver,
    "driven": lambda facts: len(driven(facts)),
    "fixed_mode": _fixed_mode,
}
OF_CARD: Mapping[str, Callable[[HostFacts, Card], Any]] = {
    "gpu": lambda facts, card: card.gpu.state,
    "listed": lambda facts, card: known(card.gpu.key["device"]),
    "device": lambda facts, card: card.gpu.key["device"],
    "label": lambda facts, card: card_label(card),
    "serves": lambda facts, card: serves(card),
    "cuda": lambda facts, card: runs_cuda(card),
    "shows": lambda facts, card: shows(card),
    "ladder": lambda facts, card: facts.place(card.gpu),
    "owner": lambda facts, card: owner(facts.place(card.gpu)),
    "parts": partitions,
    "paravirtual": paravirtual,
}
OF_VM: Mapping[str, Callable[[HostFacts, Instance[Vm]], Any]] = {"vm": lambda facts, vm: vm.state}
_ABOUT: Mapping[str, Mapping[str, Callable[[HostFacts, Any], Any]]] = {"card": OF_CARD, "vm": OF_VM, "host": {}}


class OneOf:
    """Answers of one of several: by its key, else by its properties."""

    def __init__(self, state: Any, key: Mapping[str, Any] | None = None) -> None:
        self._state, self._key = state, key or {}

    def __getitem__(self, name: str) -> Any:
        return self._key[name] if name in self._key else getattr(self._state, name)

    def ask(self, question: str) -> tuple[Any, ...]:
        return (self[question],)


class Asked:
    """Answers to a row that is asked of facts, with the GPU or VM that is its subject."""

    def __init__(self, facts: HostFacts, each: str, subject: Any = None) -> None:
        self._facts, self._each, self._subject = facts, each, subject

    def ask(self, question: str) -> tuple[Any, ...]:
        """Raises MissingFact. `listed.name` of a GPU that is not listed is None."""
        name, _, attribute = question.partition(".")
        if name in RESOURCE_TYPES:
            return self._facts.ask(question)
        answer = self[name]
        return (getattr(answer, attribute) if attribute and answer is not None else answer,)

    def __getitem__(self, name: str) -> Any:
        """For sentences, too."""
        if name in _ABOUT[self._each]:
            return _ABOUT[self._each][name](self._facts, self._subject)
        return OF_HOST[name](self._facts) if name in OF_HOST else self._facts[name]

    def chosen(self, row: CatalogueEntry) -> str:
        """Those of `among` that are as a row wants them, named for people."""
        named = row.named or "{label}"
        if row.among == "gpus":
            asked = [Asked(self._facts, "card", card) for card in gpus(self._facts)]
            return ", ".join(named.format_map(each) for each in asked if holds(row.which, each.ask))
        found = [OneOf(each.state, each.key) for each in self._facts.all(RESOURCE_TYPES[row.among].state)]
        return ", ".join(named.format_map(each) for each in found if holds(row.which, each.ask))
