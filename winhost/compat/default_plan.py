"""What a plan selects when nothing is named, and why it would be refused: assess reports it before plan does."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from winhost.compat.rule import ASSIGNMENT, NOTES, finding, gap, reasons
from winhost.core.answers import MissingFact, Unknown
from winhost.model.once import once
from winhost.model.path import PATHS_OF_LINUX, path_of
from winhost.model.reason import PLAN, Finding, Severity, SubjectVerdict, Verdict
from winhost.paths.dda_selection import Selection
from winhost.paths.playbook import shipped_playbook, spelled_out
from winhost.paths.vocabulary import VOCABULARIES
from winhost.resources.host import Card, HostFacts
from winhost.resources.registry import WINDOWS
from winhost.resources.windows.assignable_device import owner

if TYPE_CHECKING:
    from winhost.paths.wsl2_settings import Wsl2Settings


def default_cards(facts: HostFacts, judged: Sequence[SubjectVerdict], vm: str | None) -> tuple[Card, ...]:
    """GPUs that a VM gets when none is named: none that drives a display of the host or that another VM has, and no
    unverified one if there are others. If that leaves none, all of them.
    """
    able = [each for each in judged if each.verdict is not Verdict.UNSUPPORTED and not _blinds(each)]
    sure = [each.key for each in able if each.verdict is not Verdict.UNVERIFIED]
    go = sure or [each.key for each in able]
    cards = tuple(card for card in facts.cards if card.location in go)
    return tuple(card for card in cards if _owner(facts, card) in (None, vm)) or cards


def _blinds(card: SubjectVerdict) -> bool:
    return any("headless" in reason.risks for reason in card.reasons)


def _owner(facts: HostFacts, card: Card) -> str | None:
    try:
        return owner(facts.place(card.gpu))
    except MissingFact:
        return None


def refused_by_default(facts: HostFacts, variant: str, judged: Sequence[SubjectVerdict]) -> tuple[Finding, ...]:
    """Notes on what prevents a default plan of a variant, beyond the reasons of the host, each GPU and each VM."""
    path = path_of(variant)
    if path not in VOCABULARIES or path in PATHS_OF_LINUX:
        return ()
    if unread := _unread(facts, path):
        lacking = f"a plan needs {', '.join(unread)}, which could not be read"
        return (finding(f"{path}.unknown", lacking, Severity.NOTE, PLAN),)
    try:
        return tuple(_dda(facts, judged) if path == "dda" else _wsl2(facts))
    except MissingFact as missing:
        return (gap(path, NOTES, missing, PLAN),)


def _unread(facts: HostFacts, path: str) -> tuple[str, ...]:
    """Resources of the playbook that we ship, of which nothing at all could be read."""
    return tuple([resource for resource in _needed(path) if isinstance(facts.answer(resource), Unknown)])


@once
def _needed(path: str) -> tuple[str, ...]:
    later = VOCABULARIES[path].on_request
    entries = shipped_playbook(path)["resources"]
    resources = dict.fromkeys(entry["resource"] for entry in entries if entry.get("for_each") not in later)
    return tuple(resource for resource in resources if resource in WINDOWS)


def _dda(facts: HostFacts, judged: Sequence[SubjectVerdict]) -> Iterator[Finding]:
    if not facts.vms:
        yield finding("dda.no-vm", "the host has no VM", Severity.NOTE, PLAN)
    cards = default_cards(facts, judged, None)
    if len(cards) < 2:
        return
    known = {reason.code for each in judged for reason in each.reasons}
    for reason in reasons("dda", ASSIGNMENT, PLAN, facts, Selection(cards)):
        if reason.severity.rank >= Severity.UNVERIFIED.rank and reason.code not in known:
            observed = f"not all {len(cards)} cards in one VM: {reason.observed}"
            yield replace(reason, severity=Severity.NOTE, observed=observed)


def _wsl2(facts: HostFacts) -> Iterator[Finding]:
    from winhost.paths.wsl2_refusals import refusals  # with what this path decides, which the others do without

    for refusal in refusals(facts, _wsl2_settings(), ()):
        yield finding(refusal.code, f"{refusal.sentence} {refusal.remedy}", Severity.NOTE, PLAN)


@once
def _wsl2_settings() -> "Wsl2Settings":
    from winhost.paths.wsl2_settings import Wsl2Settings  # as above

    return Wsl2Settings.model_validate(spelled_out("wsl2", shipped_playbook("wsl2").get("settings", {})))
