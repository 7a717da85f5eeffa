"""Planning a path where cards leave the host: which go, what is said of them, and which consents they take."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from winhost.compat.assess import judge
from winhost.engine.order import Id, identity
from winhost.model.facts import Instance, MissingFact
from winhost.model.plan import Wanted, Wish, in_order
from winhost.model.reason import PathVerdict, SubjectVerdict, Verdict
from winhost.paths.dda import Decisions, Selection, choose_cards, choose_vm
from winhost.paths.refusal import Caution
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows import PciDevice, Vm


class DdaPlan:
    """A wish for Discrete Device Assignment on one host."""

    def __init__(self, facts: HostFacts, wish: Wish) -> None:
        self._facts = facts
        self._wish = wish

    @cached_property
    def verdict(self) -> PathVerdict:
        """Of exactly the cards and the VM that are wished for. Raises NoSuchThing, WhichVm, MissingFact."""
        return judge(self._facts, self._wish.path, Selection(self._cards, self._vm))

    @cached_property
    def decisions(self) -> Decisions:
        return Decisions(self._facts, self._wish, self._cards)

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return ()

    def check(self, wanted: Iterable[Wanted]) -> None:
        """Raises MmioRefused."""
        self.decisions.check(wanted)

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """Consents that verdicts on cards ask for, on the steps that take their functions from the host."""
        cards = judge(self._facts, self._wish.path).cards
        risks = {card.key: {risk for reason in card.reasons for risk in reason.risks} for card in cards}
        return {
            identity("AssignableDevice", function.key): in_order(risks.get(card.location, ()))
            for card in self._facts.cards
            for function in card.functions
            if self._on_host(function)
        }

    @cached_property
    def _cards(self) -> tuple[Card, ...]:
        """Those asked for; else every card that can go without taking a display from the host."""
        if self._wish.cards:
            return choose_cards(self._facts, self._wish.cards)
        free = {card.key for card in judge(self._facts, self._wish.path).cards if _goes(card)}
        return tuple(card for card in self._facts.cards if card.location in free)

    @cached_property
    def _vm(self) -> Instance[Vm] | None:
        """None where VMs cannot be read; the rules tell why."""
        try:
            return choose_vm(self._facts, self._wish.vm)
        except MissingFact:
            return None

    def _on_host(self, function: Instance[PciDevice]) -> bool:
        try:
            return self._facts.place(function).startswith("host-")
        except MissingFact:
            return False


def _goes(card: SubjectVerdict) -> bool:
    return card.verdict is not Verdict.UNSUPPORTED and not any("headless" in reason.risks for reason in card.reasons)
