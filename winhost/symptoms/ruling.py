"""What the facts of a host say of a cause: that they show it, that they contradict it, or nothing."""

from typing import Any, Literal, TypeAlias

from winhost.compat.assess import judge
from winhost.core.dataclass import dataclass
from winhost.findings.condition import evaluate
from winhost.model.path import ALL_VARIANTS, PATHS_OF_LINUX, path_of
from winhost.resources.host import HostFacts
from winhost.symptoms.table import KnownCause

Standing: TypeAlias = Literal["shown", "possible", "ruled-out"]


@dataclass(frozen=True)
class Ruling:
    """because: what in the facts says so; nothing where they say nothing."""

    standing: Standing
    because: str = ""


OPEN = Ruling("possible")


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
