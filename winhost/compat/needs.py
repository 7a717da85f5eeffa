"""What is wanted against what each way offers: which ways meet it, and what they lack."""

from collections.abc import Iterable
from dataclasses import dataclass

from winhost.model.capability import CAPABILITIES
from winhost.model.errors import UsageFault, did_you_mean, visible
from winhost.model.reason import Assessment, CapabilityVerdict, PathVerdict, Verdict


@dataclass(frozen=True)
class Needs:
    """Capabilities by name: those that a way must offer, and those that are welcome."""

    must: tuple[str, ...] = ()
    nice: tuple[str, ...] = ()


@dataclass(eq=False)
class UnknownCapability(UsageFault):
    """There is no such capability."""

    asked: str

    @property
    def what(self) -> str:
        return f"there is no capability '{visible(self.asked)}'{did_you_mean(self.asked, CAPABILITIES)}"

    @property
    def hint(self) -> str:
        return f"There are: {', '.join(CAPABILITIES)}"


@dataclass(frozen=True)
class Fit:
    """One way against the needs. verdict: the worst of the way's own and of what must be; lacking: what must be and is
    not supported; missed: what would be welcome and is not supported.
    """

    way: str
    verdict: Verdict
    lacking: tuple[CapabilityVerdict, ...]
    missed: tuple[CapabilityVerdict, ...]


def check(needs: Iterable[str]) -> None:
    """Raises UnknownCapability."""
    for name in needs:
        if name not in CAPABILITIES:
            raise UnknownCapability(name)


def fits(assessment: Assessment, needs: Needs) -> tuple[Fit, ...]:
    """Each path by the best of its ways, the best fit first; equally good ones in the order of PATHS."""
    best = [min((fit_of(way, needs) for way in path.ways), key=_rank) for path in assessment.paths]
    return tuple(sorted(best, key=_rank))


def fit_of(way: PathVerdict, needs: Needs) -> Fit:
    """One way against the needs."""
    must, nice = ([way.offers(name) for name in names] for names in (needs.must, needs.nice))
    verdict = Verdict.worst([way.verdict, *(offered.verdict for offered in must)])
    return Fit(
        way.path, verdict, *(tuple(o for o in each if o.verdict is not Verdict.SUPPORTED) for each in (must, nice))
    )


def _rank(fit: Fit) -> tuple[int, int]:
    return fit.verdict.rank, sum(offered.verdict.rank for offered in fit.missed)
