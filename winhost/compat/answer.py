"""What `assess` and `diff` answer to programs: documents of a published shape (`winhost schema`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packaging.version import Version

from winhost.compat.compare import Comparison, Difference, VerdictChange, compare
from winhost.compat.marked import marked
from winhost.compat.needs import Fit, Nearest, Needs, fits, nearest
from winhost.compat.remedy import Mended, assess_as_if, cheapest
from winhost.compat.settle import Settling, shopping_list
from winhost.model.facts import Facts
from winhost.model.path import path_of
from winhost.model.reason import Assessment, Remedy
from winhost.model.workload import Workload
from winhost.resources.stated import Statement, stated


@dataclass(frozen=True)
class Wish:
    """What a host is held against. path: the only one that will do; remedies: judged as if they were done; assumed:
    facts that are stated where nothing was read.
    """

    needs: Needs = field(default_factory=Needs)
    path: str | None = None
    workload: Workload | None = None
    remedies: Sequence[Remedy] = ()
    assumed: Sequence[Statement] = ()

    @property
    def stated(self) -> Mapping[str, Version]:
        return self.workload.versions if self.workload else {}


@dataclass(frozen=True)
class Judged:
    """A host. fits: each path by the best of its ways, the best first; changes: the cheapest that make the wish work,
    none where there is nothing to change; null where winhost knows of none; nearest: the smallest change of the
    workload that a way would carry, null where it is carried as it is, or winhost knows of none; settle: what to run
    there to settle what verdicts wait for.
    """

    host: str
    assessment: Assessment
    fits: tuple[Fit, ...]
    changes: Mended | None
    nearest: Nearest | None = None
    settle: tuple[Settling, ...] = ()


@dataclass(frozen=True)
class Reading:
    """Where facts come from: see Facts."""

    host: str
    origin: str
    read_at: str
    winhost: str


@dataclass(frozen=True)
class Diff:
    """The answer to `diff --json`; recommended: before and after."""

    before: Reading
    after: Reading
    differences: tuple[Difference, ...]
    verdicts: tuple[VerdictChange, ...]
    recommended: tuple[str | None, str | None]


def judge(facts: Facts, wish: Wish) -> Judged:
    """All that is said of a host. Pure. Raises Contradicted, NobodyThere."""
    known, facts = facts, stated(facts, wish.assumed)
    judged = assess_as_if(facts, wish.remedies, wish.stated)
    if wish.assumed:
        judged = marked(judged, {each.word: _without(known, each, wish) for each in wish.assumed})
    changes = cheapest(facts, wish.needs, wish.path, wish.workload)
    found = fits(judged, wish.needs, wish.workload)
    return Judged(facts.host, judged, found, changes, _nearest(judged, found, wish), shopping_list(judged))


def _without(facts: Facts, left_out: Statement, wish: Wish) -> Assessment:
    others = [each for each in wish.assumed if each is not left_out]
    return assess_as_if(stated(facts, others), wish.remedies, wish.stated)


def _nearest(judged: Assessment, found: Sequence[Fit], wish: Wish) -> Nearest | None:
    if wish.workload is None:
        return None
    paths = [path for path in judged.paths if wish.path in (None, path.path)]
    best = next(fit for fit in found if wish.path in (None, path_of(fit.way)))
    return nearest([way for path in paths for way in path.ways], wish.needs, wish.workload, best)


def difference(before: Facts, after: Facts) -> tuple[Comparison, Diff]:
    """What changed, to look at and to print. Raises WrongState."""
    found = compare(before, after)
    document = Diff(_reading(before), _reading(after), found.differences, found.verdicts, found.recommended)
    return found, document


def _reading(facts: Facts) -> Reading:
    return Reading(facts.host, facts.origin, facts.read_at, facts.winhost)
