"""The matrix of capabilities: a row for each, a cell for each variant, and the reasons."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from winhost.compat.needs import Needs
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.model.capabilities import CAPABILITIES
from winhost.model.path import EVERY_VARIANT, path_of
from winhost.model.reason import CapabilityVerdict, Finding, PathVerdict, Verdict

K = TypeVar("K", bound=Hashable)
Offered: TypeAlias = Sequence[tuple[str, CapabilityVerdict]]


@dataclass(frozen=True)
class Cell:
    """A capability on a variant. moot: the variant is unsupported, so its capabilities do not matter."""

    variant: str
    verdict: Verdict
    moot: bool


@dataclass(frozen=True)
class VariantGroup:
    """Variants with the same verdict and the same measure."""

    variants: tuple[str, ...]
    verdict: Verdict
    measure: str | None


@dataclass(frozen=True)
class ObservedReason:
    """A reason and the variants to which it applies. observed: empty where it only names the variant."""

    variants: tuple[str, ...]
    reason: Finding
    observed: str


@dataclass(frozen=True)
class Ground:
    """Evidence that it works, and the variants for which it holds."""

    variants: tuple[str, ...]
    key: str


@dataclass(frozen=True)
class MatrixRow:
    """wanted: must, nice, or nothing."""

    capability: str
    title: str
    means: str
    wanted: str
    cells: tuple[Cell, ...]
    groups: tuple[VariantGroup, ...]
    reasons: tuple[ObservedReason, ...]
    grounds: tuple[Ground, ...]


def matrix(variants: Sequence[PathVerdict], needs: Needs) -> tuple[MatrixRow, ...]:
    """Required capabilities first, the others in the order of the catalogue."""
    rows = [_row(name, variants, needs) for name in CAPABILITIES]
    return tuple(sorted(rows, key=lambda row: ("must", "nice", "").index(row.wanted)))


def _row(name: str, variants: Sequence[PathVerdict], needs: Needs) -> MatrixRow:
    """Reasons are those of variants that are not unsupported."""
    offered = [(each.path, each.offers(name)) for each in variants if each.verdict is not Verdict.UNSUPPORTED]
    topic = catalogue.topics()[name]
    alike = _variants_by((variant, (offer.verdict, offer.measure)) for variant, offer in offered)
    grounds = _variants_by((variant, key) for variant, offer in offered for key in offer.grounds)
    return MatrixRow(
        capability=name,
        title=topic.title,
        means=topic.means,
        wanted="must" if name in needs.must else "nice" if name in needs.nice else "",
        cells=tuple(
            Cell(each.path, each.offers(name).verdict, each.verdict is Verdict.UNSUPPORTED) for each in variants
        ),
        groups=tuple(VariantGroup(variants, verdict, measure) for (verdict, measure), variants in alike.items()),
        reasons=_observed_reasons(offered),
        grounds=tuple(Ground(variants, key) for key, variants in grounds.items()),
    )


def named(variants: Sequence[str]) -> str:
    """Name variants for people; a path stands for all of its variants."""
    lacking = {path_of(variant) for variant in EVERY_VARIANT if variant not in variants}
    return ", ".join(dict.fromkeys(each if path_of(each) in lacking else path_of(each) for each in variants))


def _observed_reasons(offered: Offered) -> tuple[ObservedReason, ...]:
    """The reasons with the variants to which each applies, the heaviest first."""
    every = []
    for variant, offer in offered:
        names = (f"on {variant}", f"on {path_of(variant)}")
        every += [(variant, each, "" if each.observed in names else each.observed) for each in offer.reasons]
    found = _variants_by((variant, (reason.code, reason.severity, observed)) for variant, reason, observed in every)
    firsts = {(reason.code, reason.severity, observed): reason for _, reason, observed in reversed(every)}
    reasons = [ObservedReason(variants, firsts[key], key[2]) for key, variants in found.items()]
    return tuple(sorted(reasons, key=lambda each: -each.reason.severity.rank))


def _variants_by(pairs: Iterable[tuple[str, K]]) -> dict[K, tuple[str, ...]]:
    """The variants of each thing, in the order of their first one."""
    variants: dict[K, tuple[str, ...]] = {}
    for variant, thing in pairs:
        variants[thing] = (*variants.get(thing, ()), variant)
    return variants
