"""Marks what depends on stated facts: everything that would be different without them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from winhost.core.dataclass import dataclass
from winhost.model.lazy import LazySequence
from winhost.model.reason import Assessment, CapabilityVerdict, Finding, PathVerdict, SubjectVerdict


@dataclass(frozen=True)
class _Other:
    """The verdict of one variant without one statement."""

    word: str
    variant: PathVerdict

    @property
    def reported(self) -> set[tuple[str, str, str]]:
        return {(r.code, r.subject, r.observed) for r in self.variant.every_reason}


def marked(judged: Assessment, without: Mapping[str, Assessment]) -> Assessment:
    """without: the assessment without each statement, by the statement's text."""
    paths = tuple(
        _marked_path(path, {word: other.path(path.path) for word, other in without.items()}) for path in judged.paths
    )
    return replace(judged, paths=paths, stated=tuple(without))


def _marked_path(path: PathVerdict, without: Mapping[str, PathVerdict]) -> PathVerdict:
    others = {word: {variant.path: variant for variant in other.every_variant} for word, other in without.items()}
    variants = tuple(
        _marked(variant, [_Other(word, found[variant.path]) for word, found in others.items()])
        for variant in path.variants
    )
    return replace(_marked(path, [_Other(word, other) for word, other in without.items()]), variants=variants)


def _marked(variant: PathVerdict, others: Sequence[_Other]) -> PathVerdict:
    return replace(
        variant,
        stated=tuple(other.word for other in others if other.variant.verdict is not variant.verdict),
        reasons=_reasons(variant.reasons, others),
        cards=_subjects(variant.cards, others),
        vms=_subjects(variant.vms, others),
        capabilities=LazySequence(lambda: _capabilities(variant, others)),
    )


def _subjects(subjects: Iterable[SubjectVerdict], others: Sequence[_Other]) -> tuple[SubjectVerdict, ...]:
    return tuple(replace(subject, reasons=_reasons(subject.reasons, others)) for subject in subjects)


def _reasons(reasons: Iterable[Finding], others: Sequence[_Other]) -> tuple[Finding, ...]:
    reported = {other.word: other.reported for other in others}
    return tuple(_marked_reason(reason, reported) for reason in reasons)


def _marked_reason(reason: Finding, without: Mapping[str, set[tuple[str, str, str]]]) -> Finding:
    """The mark is part of the observation, so it appears wherever the reason does."""
    identity = (reason.code, reason.subject, reason.observed)
    words = tuple(word for word, reported in without.items() if identity not in reported and reason.lacks is None)
    return replace(reason, stated=words, observed=f"{reason.observed} {mark(words)}") if words else reason


def mark(words: Iterable[str]) -> str:
    """The mark, for people."""
    return f"(stated: {', '.join(words)})"


def _capabilities(variant: PathVerdict, others: Sequence[_Other]) -> Iterable[CapabilityVerdict]:
    return [_capability(offered, others) for offered in variant.capabilities]


def _capability(offered: CapabilityVerdict, others: Sequence[_Other]) -> CapabilityVerdict:
    found = {other.word: other.variant.offers(offered.capability) for other in others}
    reported = {word: {(r.code, r.subject, r.observed) for r in other.reasons} for word, other in found.items()}
    reasons = tuple(_marked_reason(reason, reported) for reason in offered.reasons)
    words = tuple(word for word, other in found.items() if other.verdict is not offered.verdict)
    return replace(offered, reasons=reasons, stated=words)
