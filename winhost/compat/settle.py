"""Commands to run on a host to read missing facts: the fewest that settle most reasons."""

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.model.reason import Assessment, Finding, PathVerdict, Severity

MOST = 3
GAP = ".unknown"


@dataclass(frozen=True)
class SettlingCommand:
    """run: what to type on the host; then: what to do with its output; provides: facts, `*` for all of a resource."""

    run: str
    then: str
    provides: tuple[str, ...]


@dataclass(frozen=True)
class Settling:
    """A command to run. settles: missing facts that it provides; reasons: how many wait for them."""

    run: str
    then: str
    settles: tuple[str, ...]
    reasons: int


@once
def commands() -> tuple[SettlingCommand, ...]:
    """In the order of preference among equally good ones; the last one provides everything."""
    read: list[dict[str, Any]] = load_catalogue(files(__package__).joinpath("settle.yaml"))
    return tuple(SettlingCommand(row["run"], row["then"], tuple(row["provides"])) for row in read)


def shopping_list(assessment: Assessment) -> tuple[Settling, ...]:
    """At most three commands: each time the one for which most reasons wait; if the third would leave facts missing,
    the command that provides everything instead.
    """
    open_ = Counter(_awaited(assessment.every_variant))
    *single, everything = commands()
    found: list[Settling] = []
    while open_ and len(found) < MOST:
        best = max(single, key=lambda command: _waiting(command, open_))
        left = {fact for fact in open_ if not _provides(best, fact)}
        if not _waiting(best, open_) or (len(found) == MOST - 1 and left):
            best, left = everything, set()
        settled = tuple(sorted(open_.keys() - left))
        found.append(Settling(best.run, best.then, settled, sum(open_[fact] for fact in settled)))
        open_ = Counter({fact: open_[fact] for fact in left})
    return tuple(found)


def _awaited(variants: Iterable[PathVerdict]) -> Iterable[str]:
    """The missing fact of each reason that waits for one."""
    every = (reason for variant in variants for reason in dict.fromkeys(variant.every_reason))
    return (reason.lacks for reason in every if _waits(reason) and reason.lacks)


def _waits(reason: Finding) -> bool:
    return reason.severity is Severity.UNVERIFIED and reason.code.endswith(GAP)


def _waiting(command: SettlingCommand, open_: Counter[str]) -> int:
    return sum(count for fact, count in open_.items() if _provides(command, fact))


def _provides(command: SettlingCommand, fact: str) -> bool:
    return any(fnmatchcase(fact, pattern) for pattern in command.provides)
