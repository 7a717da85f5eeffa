"""The matrix of capabilities: a row for each capability, a cell for each variant, and the reasons."""

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
    """A reason and the variants to which it applies. observed: empty if it only names the variant."""

    variants: tuple[str, ...]
    reason: Finding
    observed: str


@dataclass(frozen=True)
class Ground:
    """Evidence that a capability works, and the variants for which it holds."""

    variants: tuple[str, ...]
    key: str


@dataclass(frozen=True)
class MatrixRow:
    """A capability. requirement: must, nice, or empty."""

    capability: str
    title: str
    means: str
    requirement: str
    cells: tuple[Cell, ...]
    groups: tuple[VariantGroup, ...]
    reasons: tuple[ObservedReason, ...]
    grounds: tuple[Ground, ...]


def make_matrix(variants: Sequence[PathVerdict], needs: Needs) -> tuple[MatrixRow, ...]:
    """Make the rows: required capabilities first, the others in the order of the catalogue."""
    rows = [_make_row(name, variants, needs) for name in CAPABILITIES]
    return tuple(sorted(rows, key=lambda row: ("must", "nice", "").index(row.requirement)))


def _make_row(name: str, variants: Sequence[PathVerdict], needs: Needs) -> MatrixRow:
    """Make a row. Its reasons are those of variants that are not unsupported."""
    offered = [(each.path, each.offers(name)) for each in variants if each.verdict is not Verdict.UNSUPPORTED]
    topic = catalogue.topics()[name]
    alike = _group_variants((variant, (offer.verdict, offer.measure)) for variant, offer in offered)
    grounds = _group_variants((variant, key) for variant, offer in offered for key in offer.grounds)
    return MatrixRow(
        capability=name,
        title=topic.title,
        means=topic.means,
        requirement="must" if name in needs.must else "nice" if name in needs.nice else "",
        cells=tuple(
            Cell(each.path, each.offers(name).verdict, each.verdict is Verdict.UNSUPPORTED) for each in variants
        ),
        groups=tuple(VariantGroup(variants, verdict, measure) for (verdict, measure), variants in alike.items()),
        reasons=_observed_reasons(offered),
        grounds=tuple(Ground(variants, key) for key, variants in grounds.items()),
    )


def name_variants(variants: Sequence[str]) -> str:
    """Join the names of variants, with the path instead of all its variants."""
    incomplete_paths = {path_of(variant) for variant in EVERY_VARIANT if variant not in variants}
    return ", ".join(dict.fromkeys(each if path_of(each) in incomplete_paths else path_of(each) for each in variants))


def _observed_reasons(offered: Offered) -> tuple[ObservedReason, ...]:
    """Return the reasons with the variants to which each applies, the most severe first."""
    observed_reasons = []
    for variant, offer in offered:
        names = (f"on {variant}", f"on {path_of(variant)}")
        observed_reasons += [(variant, each, "" if each.observed in names else each.observed) for each in offer.reasons]
    variants_by_reason = _group_variants(
        (variant, (reason.code, reason.severity, observed)) for variant, reason, observed in observed_reasons
    )
    firsts = {(reason.code, reason.severity, observed): reason for _, reason, observed in reversed(observed_reasons)}
    reasons = [ObservedReason(variants, firsts[key], key[2]) for key, variants in variants_by_reason.items()]
    return tuple(sorted(reasons, key=lambda each: -each.reason.severity.rank))


def _group_variants(pairs: Iterable[tuple[str, K]]) -> dict[K, tuple[str, ...]]:
    """Group the variants of pairs by the second member, in the order of the first occurrence."""
    variants: dict[K, tuple[str, ...]] = {}
    for variant, key in pairs:
        variants[key] = (*variants.get(key, ()), variant)
    return variants
