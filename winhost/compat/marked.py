"""What of an assessment rests on what was stated: all that would be said otherwise without it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from winhost.model.lazy import LazySequence
from winhost.model.reason import Assessment, CapabilityVerdict, PathVerdict, Reason, SubjectVerdict


@dataclass(frozen=True)
class _Other:
    """What is said of one way without one statement."""

    word: str
    way: PathVerdict

    @property
    def said(self) -> set[tuple[str, str, str]]:
        return {(r.code, r.subject, r.observed) for r in self.way.every_reason}


def marked(judged: Assessment, without: Mapping[str, Assessment]) -> Assessment:
    """without: the assessment that there would be without each of the statements, by its word."""
    paths = tuple(
        _marked_path(path, {word: other.path(path.path) for word, other in without.items()}) for path in judged.paths
    )
    return replace(judged, paths=paths, stated=tuple(without))


def _marked_path(path: PathVerdict, without: Mapping[str, PathVerdict]) -> PathVerdict:
    ways = {word: {way.path: way for way in other.ways} for word, other in without.items()}
    variants = tuple(
        _marked(way, [_Other(word, others[way.path]) for word, others in ways.items()]) for way in path.variants
    )
    return replace(_marked(path, [_Other(word, other) for word, other in without.items()]), variants=variants)


def _marked(way: PathVerdict, others: Sequence[_Other]) -> PathVerdict:
    return replace(
        way,
        stated=tuple(other.word for other in others if other.way.verdict is not way.verdict),
        reasons=_reasons(way.reasons, others),
        cards=_subjects(way.cards, others),
        vms=_subjects(way.vms, others),
        capabilities=LazySequence(lambda: _capabilities(way, others)),
    )


def _subjects(subjects: Iterable[SubjectVerdict], others: Sequence[_Other]) -> tuple[SubjectVerdict, ...]:
    return tuple(replace(subject, reasons=_reasons(subject.reasons, others)) for subject in subjects)


def _reasons(reasons: Iterable[Reason], others: Sequence[_Other]) -> tuple[Reason, ...]:
    said = {other.word: other.said for other in others}
    return tuple(_marked_reason(reason, said) for reason in reasons)


def _marked_reason(reason: Reason, without: Mapping[str, set[tuple[str, str, str]]]) -> Reason:
    """Its own words say so, wherever they are shown."""
    identity = (reason.code, reason.subject, reason.observed)
    words = tuple(word for word, said in without.items() if identity not in said and reason.lacks is None)
    return replace(reason, stated=words, observed=f"{reason.observed} {mark(words)}") if words else reason


def mark(words: Iterable[str]) -> str:
    """For people."""
    return f"(stated: {', '.join(words)})"


def _capabilities(way: PathVerdict, others: Sequence[_Other]) -> Iterable[CapabilityVerdict]:
    return [_capability(offered, others) for offered in way.capabilities]


def _capability(offered: CapabilityVerdict, others: Sequence[_Other]) -> CapabilityVerdict:
    found = {other.word: other.way.offers(offered.capability) for other in others}
    said = {word: {(r.code, r.subject, r.observed) for r in other.reasons} for word, other in found.items()}
    reasons = tuple(_marked_reason(reason, said) for reason in offered.reasons)
    words = tuple(word for word, other in found.items() if other.verdict is not offered.verdict)
    return replace(offered, reasons=reasons, stated=words)
