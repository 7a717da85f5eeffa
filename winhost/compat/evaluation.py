"""What is found of a host for the requirements of a user: its options by fit, and what would change them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import field

from packaging.version import Version

from winhost.compat.marked import marked
from winhost.compat.needs import Fit, Nearest, Needs, fits, nearest
from winhost.compat.remedy import Mended, assess_as_if, cheapest
from winhost.compat.settle import Settling, shopping_list
from winhost.compat.stated import Statement, stated
from winhost.core.dataclass import dataclass
from winhost.model.facts import Facts
from winhost.model.path import PATHS_OF_LINUX, is_meant
from winhost.model.reason import Assessment, Remedy
from winhost.model.workload import Workload
from winhost.resources.host import HostFacts, of_other_system
from winhost.resources.registry import is_linux


@dataclass(frozen=True)
class Supposed:
    """The hypothetical part of an answer. what_if: remedies evaluated as if they were done; needs: capabilities that a
    target must offer; assumed: facts that were stated, not read.
    """

    what_if: tuple[str, ...]
    needs: tuple[str, ...]
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Requirements:
    """What a host is evaluated against. path: only this path or variant counts; remedies: evaluated as if they were
    done; assumed: facts stated by the user where none were read; asked: capabilities named on the command line, in
    addition to those that a workload needs.
    """

    needs: Needs = field(default_factory=Needs)
    path: str | None = None
    workload: Workload | None = None
    remedies: Sequence[Remedy] = ()
    assumed: Sequence[Statement] = ()
    asked: tuple[str, ...] = ()

    @property
    def supposed(self) -> Supposed | None:
        """The hypothetical part: remedies, named capabilities and stated facts; None where there is none."""
        what_if = tuple(remedy.id for remedy in self.remedies)
        words = tuple(each.word for each in self.assumed)
        return Supposed(what_if, self.asked, words) if what_if or self.asked or words else None

    @property
    def stated(self) -> Mapping[str, Version]:
        return self.workload.versions if self.workload else {}


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a host. fits: each path by its best variant, best first; changes: the cheapest remedies after
    which it works, empty where nothing has to change, None where none are known; nearest: the smallest change of the
    workload that makes it fit, None where it fits as it is or no change is known; settle: commands that provide missing
    facts.
    """

    host: str
    assessment: Assessment
    fits: tuple[Fit, ...]
    changes: Mended | None
    nearest: Nearest | None = None
    settle: tuple[Settling, ...] = ()


def evaluate(facts: Facts, asked: Requirements) -> Evaluation:
    """Evaluate a host. Pure. Raises UsageError: Contradicted, NobodyThere, OtherSystem."""
    if is_linux(facts) != (asked.path in PATHS_OF_LINUX) and asked.path:
        raise of_other_system(HostFacts(facts), f"the path {asked.path}")
    known = HostFacts(stated(facts, asked.assumed))
    assessment = assess_as_if(known, asked.remedies, asked.stated)
    if asked.assumed:
        assessment = marked(assessment, {each.word: _without(facts, each, asked) for each in asked.assumed})
    changes = cheapest(known, asked.needs, asked.path, asked.workload)
    found = fits(assessment, asked.needs, asked.workload, asked.path)
    return Evaluation(
        facts.host, assessment, found, changes, _nearest(assessment, found, asked), shopping_list(assessment)
    )


def _without(facts: Facts, left_out: Statement, asked: Requirements) -> Assessment:
    others = [each for each in asked.assumed if each is not left_out]
    return assess_as_if(HostFacts(stated(facts, others)), asked.remedies, asked.stated)


def _nearest(assessment: Assessment, found: Sequence[Fit], asked: Requirements) -> Nearest | None:
    if asked.workload is None:
        return None
    best = next(fit for fit in found if is_meant(asked.path, fit.variant))
    variants = [variant for variant in assessment.every_variant if is_meant(asked.path, variant.path)]
    return nearest(variants, asked.needs, asked.workload, best)
