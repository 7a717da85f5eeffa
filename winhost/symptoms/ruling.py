"""What the same text and the facts of a host say of a cause: that they show it, that they contradict it, or nothing."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from winhost.compat.assess import judge
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.findings.condition import evaluate
from winhost.model.path import ALL_VARIANTS, PATHS_OF_LINUX, path_of
from winhost.resources.host import HostFacts
from winhost.resources.windows.operating_system import OsFamily
from winhost.symptoms.table import LAYERS, MACHINES, PLACES, KnownCause, marks

Standing: TypeAlias = Literal["shown", "possible", "ruled-out"]
By: TypeAlias = Literal["text", "facts"]


@dataclass(frozen=True)
class Ruling:
    """because: what says so, in the facts or in the text; nothing where neither says anything. here: the cause belongs
    to the place that the text comes from.
    """

    standing: Standing
    because: str = ""
    by: By = "facts"
    here: bool = False


OPEN = Ruling("possible")


class TextRulings:
    """Rulings by what else the same text shows, and by where it comes from.

    seen: marks of the text, each with its line. A host whose facts are known narrows the places of a text that says
    nothing of them.
    """

    def __init__(self, seen: Mapping[str, str], facts: HostFacts | None = None) -> None:
        self._seen = seen
        told = [set(marks()[name].places) for name in seen if marks()[name].places]
        self._places = {*MACHINES}.intersection(*(each for each in told if not each.isdisjoint(MACHINES)))
        self._layers = {*LAYERS}.intersection(*(each for each in told if not each.isdisjoint(LAYERS)))
        self._by: By = "text"
        if len(self._places) in (0, len(MACHINES)) and facts is not None:
            self._places, self._by = _places_of(facts), "facts"

    def of(self, cause: KnownCause) -> Ruling:
        """A line that contradicts a cause outweighs one that shows it."""
        for name in cause.unless:
            if name in self._seen:
                return Ruling("ruled-out", marks()[name].shows, "text")
        for at, known, by in ((self._places, MACHINES, self._by), (self._layers, LAYERS, "text")):
            where = {place for place in cause.where if place in known}
            if where and at and at.isdisjoint(where):
                return Ruling("ruled-out", f"it is {_either(at)}", by)
        here = any(
            at.intersection(cause.where) and len(at) < len(known)
            for at, known in ((self._places, MACHINES), (self._layers, LAYERS))
        )
        for name in cause.beside:
            if name in self._seen:
                return Ruling("shown", marks()[name].shows, "text", here)
        return Ruling("possible", here=here)


def _places_of(facts: HostFacts) -> set[str]:
    """Where a text about this host may come from: none where its facts do not say what it is."""
    try:
        if facts.is_linux:
            in_wsl = facts.ask("LinuxSystem.wsl") == (True,)
            return {"wsl", "docker-desktop"} if in_wsl else {"metal", "dda", "gpu-pv"}
        family = facts.os.family
    except MissingFact:
        return set()
    on_every = {"windows", "wsl", "docker-desktop", "gpu-pv"}
    return on_every if family is OsFamily.CLIENT else on_every | {"dda"}


def _either(places: set[str]) -> str:
    named = places - {"docker-desktop"} if "wsl" in places else places  # which is WSL as well
    return " or ".join(words for place, words in PLACES.items() if place in named)


class HostRulings:
    """Rulings by the facts of one host."""

    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts
        self._reasons: dict[str, dict[str, str]] = {}

    def of(self, cause: KnownCause) -> Ruling:
        """A fact that the cause needs and the host contradicts outweighs everything else."""
        needed = evaluate(cause.when, self._facts.ask, whole=True)
        because = "; ".join(f"{fact} is {_listed(values)}" for fact, values in needed.seen.items())
        if needed.holds is False:
            return Ruling("ruled-out", because)
        if cause.reason and (seen := self._seen(cause.reason)) is not None:
            return Ruling("shown", seen)
        return Ruling("possible", because) if cause.when and needed.holds else OPEN

    def _seen(self, code: str) -> str | None:
        """What a rule found on this host; None where it found nothing, or the reason is not one of a path."""
        path = path_of(code.partition(".")[0])
        if path not in self._reasons:
            of_path = [variant for variant in (*ALL_VARIANTS, *PATHS_OF_LINUX) if path_of(variant) == path]
            if self._facts.is_linux != (path in PATHS_OF_LINUX):
                of_path = []
            reasons = (reason for variant in of_path for reason in judge(self._facts, variant).every_reason)
            self._reasons[path] = {reason.code: reason.observed for reason in reasons}
        return self._reasons[path].get(code)


def _listed(values: tuple[Any, ...]) -> str:
    return " and ".join(dict.fromkeys(map(_shown, values))) or "not there"


def _shown(value: Any) -> str:
    """As facts files have it."""
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)
