"""What the facts of a host say of a cause: that they show it, that they contradict it, or nothing."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from winhost.compat.assess import judge
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.model.path import ALL_VARIANTS, PATHS_OF_LINUX, path_of
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES
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
        needed = list(self._needed(cause.needs))
        wrong = [because for holds, because in needed if holds is False]
        if wrong:
            return Ruling("ruled-out", "; ".join(wrong))
        if cause.reason and (seen := self._seen(cause.reason)) is not None:
            return Ruling("shown", seen)
        if needed and all(holds for holds, _ in needed):
            return Ruling("possible", "; ".join(because for _, because in needed))
        return OPEN

    def _needed(self, needs: Mapping[str, Any]) -> Iterator[tuple[bool | None, str]]:
        for fact, wanted in needs.items():
            resource, _, name = fact.partition(".")
            try:
                values = [getattr(instance.state, name) for instance in self._facts.all(RESOURCE_TYPES[resource].state)]
            except MissingFact:
                yield None, ""
                continue
            yield any(fits(value, wanted) for value in values), f"{fact} is {_listed(values)}"

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


def fits(value: Any, wanted: Any) -> bool:
    """wanted: a value, one of several, or a range of numbers or versions such as `>=2.0, <2.5`."""
    if isinstance(wanted, list):
        return any(fits(value, each) for each in wanted)
    if isinstance(wanted, str) and wanted[:1] in "<>=!" and (specifiers := _range(wanted)) is not None:
        try:
            return value is not None and Version(str(value)) in specifiers
        except InvalidVersion:
            return False
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _range(wanted: str) -> SpecifierSet | None:
    try:
        return SpecifierSet(wanted, prereleases=True)
    except InvalidSpecifier:
        return None


def _listed(values: list[Any]) -> str:
    return " and ".join(dict.fromkeys(map(_shown, values))) or "not there"


def _shown(value: Any) -> str:
    """As facts files have it."""
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)
