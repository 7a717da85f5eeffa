"""Evaluates each path on a host. Pure: facts in, verdicts with reasons out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, TypeVar

from packaging.version import Version

from winhost.compat.available_memory import available_memory
from winhost.compat.default_plan import refused_by_default
from winhost.compat.rule import (
    ASSIGNMENT,
    BLOCKS,
    CARD,
    HOST,
    VM,
    Each,
    asks,
    finding,
    gap,
    reasons,
)
from winhost.compat.stated import as_stated
from winhost.compat.target import Target
from winhost.core.answers import MissingFact
from winhost.hardware.cards import card_label, serves
from winhost.knowledge import catalogue
from winhost.model.facts import Instance
from winhost.model.lazy import LazySequence
from winhost.model.path import ALL_VARIANTS, ON_REQUEST, PATHS, PATHS_OF_LINUX, VARIANTS, path_of
from winhost.model.reason import HOST as THE_HOST
from winhost.model.reason import Assessment, CapabilityVerdict, Finding, PathVerdict, Severity, SubjectVerdict, Verdict
from winhost.paths.dda_selection import Selection
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows.vm import Vm

T = TypeVar("T")
Wanted: TypeAlias = tuple[tuple[Finding, ...], tuple[Card, ...], tuple[Instance[Vm], ...]]


def _offered(target: Target) -> tuple[CapabilityVerdict, ...]:
    from winhost.compat import capabilities  # most plans do without

    return capabilities.offers(target)


def assess(
    facts: HostFacts, selection: Selection | None = None, stated: Mapping[str, Version] | None = None
) -> Assessment:
    """Evaluate every path and its capabilities. With a selection, DDA is evaluated for exactly its GPUs and VM.

    stated: versions that facts do not contain, by name (vllm, cuda, toolkit, wsl, kernel, driver).
    """
    facts = as_stated(facts, stated)
    asked = PATHS_OF_LINUX if facts.is_linux else PATHS
    paths = tuple([_whole(facts, path, selection if path == "dda" else None) for path in asked])
    known = facts.is_linux or _knows_windows(facts)
    best = _best({path.path: path.verdict for path in paths}) if known else None
    return Assessment(facts.host, facts.origin, paths, best)


def _knows_windows(facts: HostFacts) -> bool:
    """Whether the Windows edition is known. Nearly every path depends on it, so without it nothing is recommended."""
    try:
        return bool(facts.os.family)
    except MissingFact:
        return False


def recommended(facts: HostFacts, but: str) -> PathVerdict | None:
    """The variant that assess would recommend without this one, evaluated without capabilities."""
    variants = [judge(facts, each) for each in (PATHS_OF_LINUX if facts.is_linux else ALL_VARIANTS) if each != but]
    possible = [judged for judged in variants if judged.verdict is not Verdict.UNSUPPORTED]
    return min(possible, key=lambda judged: (judged.verdict.rank, judged.path in ON_REQUEST), default=None)


def _best(verdicts: Mapping[str, Verdict]) -> str | None:
    possible = [path for path, verdict in verdicts.items() if verdict is not Verdict.UNSUPPORTED]
    return min(possible, key=lambda path: verdicts[path].rank, default=None)


def _variants(path: str) -> list[str]:
    return [f"{path}/{variant}" for variant in VARIANTS.get(path, ())] or [path]


def _whole(facts: HostFacts, path: str, selection: Selection | None) -> PathVerdict:
    """A path with its variants, the best of which counts, and its capabilities."""
    judged = [_with_offers(judge(facts, variant, selection), Target(facts, variant)) for variant in _variants(path)]
    best = min(judged, key=lambda verdict: verdict.verdict.rank)
    return replace(best, path=path, variants=tuple(judged) if len(judged) > 1 else ())


def _with_offers(judged: PathVerdict, target: Target) -> PathVerdict:
    try:
        memory = available_memory(target)
    except MissingFact:
        memory = None
    return replace(judged, capabilities=LazySequence(lambda: _offered(target)), available_memory=memory)


def judge(facts: HostFacts, variant: str, selection: Selection | None = None) -> PathVerdict:
    """Evaluate one path or variant; with a selection, exactly its GPUs and VM."""
    if selection is not None:
        return _judge(facts, variant, selection)
    return facts.keep(("judged", variant), _judge, facts, variant, None)


def _judge(facts: HostFacts, variant: str, selection: Selection | None) -> PathVerdict:
    host, cards, vms = _open(facts, variant) if selection is None else _chosen(facts, variant, selection)
    judged_cards = tuple(_card(facts, variant, card, alone=selection is None) for card in cards)
    judged_vms = tuple(_vm(facts, variant, vm) for vm in vms)
    counted = (*_counted(judged_cards, selection), *_counted(judged_vms, selection))
    grounds = catalogue.topics()[path_of(variant)].rests_on(variant)
    verdict = Verdict.worst([Verdict.of(host), *(subject.verdict for subject in counted)])
    if verdict is Verdict.SUPPORTED and not grounds:
        host = (*host, finding(f"{path_of(variant)}.unshown", f"on {variant}", Severity.UNVERIFIED, THE_HOST))
        verdict = Verdict.UNVERIFIED
    if selection is None:
        host = (*host, *refused_by_default(facts, variant, judged_cards))
    because = _because(verdict, [*host, *(reason for subject in counted for reason in subject.reasons)])
    return PathVerdict(variant, verdict, because, host, judged_cards, judged_vms, grounds)


def _open(facts: HostFacts, path: str) -> Wanted:
    """Without a selection: every VM, and every GPU but the display of a management controller."""
    cards, missing_cards = _readable(path, CARD, lambda: tuple(filter(serves, facts.cards)))
    vms, missing_vms = _readable(path, VM, lambda: facts.vms)
    host = reasons(path, HOST, THE_HOST, facts)
    return tuple(dict.fromkeys((*host, *missing_cards, *missing_vms))), cards, vms


def _chosen(facts: HostFacts, path: str, selection: Selection) -> Wanted:
    """The selected GPUs and VM, with the reasons that apply to them together."""
    together = reasons(path, ASSIGNMENT, _together(selection), facts, selection)
    vms = (selection.vm,) if selection.vm else ()
    return (*reasons(path, HOST, THE_HOST, facts), *together), selection.cards, vms


def _readable(path: str, each: Each, read: Callable[[], tuple[T, ...]]) -> tuple[tuple[T, ...], tuple[Finding, ...]]:
    """The subjects, or the reason why they could not be read; neither where the path has no rules about them."""
    try:
        return (read() if asks(path, each) else ()), ()
    except MissingFact as missing:
        return (), (gap(path_of(path), BLOCKS, missing, THE_HOST),)


def _counted(subjects: Sequence[SubjectVerdict], selection: Selection | None) -> Sequence[SubjectVerdict]:
    """All selected subjects count; without a selection, only those with the best verdict."""
    if selection is not None:
        return subjects
    best = Verdict.best(subject.verdict for subject in subjects)
    return [subject for subject in subjects if subject.verdict is best]


def _because(verdict: Verdict, counted: Sequence[Finding]) -> tuple[str, ...]:
    if verdict is Verdict.SUPPORTED:
        return ()
    return tuple(dict.fromkeys(reason.code for reason in counted if reason.severity.rank == verdict.rank))


def _card(facts: HostFacts, path: str, card: Card, *, alone: bool) -> SubjectVerdict:
    name = _name(lambda: card_label(card), card.location)
    found = reasons(path, CARD, name, facts, card)
    if alone:
        found += reasons(path, ASSIGNMENT, name, facts, Selection((card,)))
    return _subject("card", card.location, name, found)


def _vm(facts: HostFacts, path: str, vm: Instance[Vm]) -> SubjectVerdict:
    name = _name(lambda: vm.state.name, vm.key["vm"])
    return _subject("vm", vm.key["vm"], name, reasons(path, VM, name, facts, vm))


def _subject(kind: Literal["card", "vm"], key: str, name: str, found: tuple[Finding, ...]) -> SubjectVerdict:
    once = tuple(dict.fromkeys(found))
    return SubjectVerdict(kind, key, name, Verdict.of(once), once)


def _name(read: Callable[[], str], key: str) -> str:
    try:
        return read()
    except MissingFact:
        return key


def _together(selection: Selection) -> str:
    cards = f"{len(selection.cards)} card(s)"
    if selection.vm is None:
        return cards
    vm = selection.vm
    return f"{cards} for {_name(lambda: vm.state.name, vm.key['vm'])}"
