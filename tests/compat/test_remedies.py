"""Remedies are proven on facts: each removes its reason, and the search finds the cheapest that help."""

from collections.abc import Iterable

import pytest

from tests.compat.test_rules import HOSTS
from winhost.compat import catalogue, remedy
from winhost.compat.assess import assess
from winhost.compat.needs import Needs
from winhost.model.facts import Facts
from winhost.model.path import WAYS
from winhost.model.reason import PathVerdict, Reason, Remedy, Verdict
from winhost.resources.host import HostFacts
from winhost.resources.windows import NOUNS

CHOICES_AND_ACTS = {
    "accept-force",
    "accept-headless",
    "add-card",
    "azure-local-tools",
    "cluster-pools",
    "create-vm",
    "escrow-keys",
    "fewer-cards",
    "survey-enabled",
    "vgpu-driver",
}


def ways(facts: Facts) -> list[PathVerdict]:
    return [way for path in assess(HostFacts(facts)).paths for way in path.ways]


def said(found: Iterable[PathVerdict]) -> list[Reason]:
    reasons = [reason for way in found for reason in way.every_reason]
    return reasons + [reason for way in found for offered in way.capabilities for reason in offered.reasons]


@pytest.mark.parametrize("host", HOSTS)
def test_a_remedy_removes_its_reason(host: str) -> None:
    for code, key in {(reason.code, reason.remedy) for reason in said(ways(HOSTS[host]))}:
        mend = catalogue.remedies().get(key or "")
        if mend and mend.effect:
            assert code not in {r.code for r in said(ways(remedy.as_if(HOSTS[host], [mend])))}, (code, key)


def test_only_choices_and_acts_change_nothing_that_can_be_read() -> None:
    assert {key for key, mend in catalogue.remedies().items() if not mend.effect} == CHOICES_AND_ACTS


@pytest.mark.parametrize("key", [key for key, mend in catalogue.remedies().items() if mend.effect])
def test_an_effect_speaks_of_properties_that_there_are(key: str) -> None:
    for noun, edits in (catalogue.remedies()[key].effect or {}).items():
        properties = set(NOUNS[noun].state.__annotations__)
        for edit in edits if isinstance(edits, list) else [{"match": {}, "set": edits}]:
            assert edit.keys() == {"match", "set"}
            assert {*edit["match"], *edit["set"]} <= properties, (key, noun)


def test_what_could_not_be_read_stays_unknown() -> None:
    blind = HOSTS["dda.unknown"]
    assert remedy.as_if(blind, []) == blind
    mended = remedy.as_if(HOSTS["wsl2.unknown"], [catalogue.remedies()["firmware-rmrr"]])
    assert mended.answer("PciDevice") == HOSTS["wsl2.unknown"].answer("PciDevice")


CHEAPEST = {
    ("server2025-3gpu", "dda"): [],
    ("virtualization-off", "dda"): ["firmware-virtualization", "firmware-iommu"],
    ("server2019-role-removed", "dda"): ["give-role-source"],
    ("win11-pro-1gpu", "dda"): ["install-server", "other-display"],
    ("win11-product-type-altered", "dda"): ["install-server", "other-display", "undo-product-type"],
    ("vm-saved", "dda"): ["linux-template"],
}


@pytest.mark.parametrize(("host", "way"), CHEAPEST)
def test_the_cheapest_remedies_are_found(host: str, way: str) -> None:
    found = remedy.cheapest(HOSTS[host], Needs(), way)
    assert found is not None
    assert sorted(mend.id for mend in found.remedies) == sorted(CHEAPEST[host, way])
    assert found.fit.verdict.rank <= Verdict.DEGRADED.rank


@pytest.mark.parametrize("host", ["azure-local", "not-administrator", "policy-forbids-forced"])
def test_where_only_doubtful_remedies_or_none_help_nothing_is_promised(host: str) -> None:
    assert remedy.cheapest(HOSTS[host], Needs(), "dda") is None


def test_what_only_a_doubtful_remedy_makes_possible_is_unverified() -> None:
    small = Remedy("small", "", "admin", effect={"Memory": {"total": 17179869184}})
    host, doubtful = remedy.as_if(HOSTS["win11-pro-1gpu"], [small]), remedy.named("more-memory")
    before, judged = assess(HostFacts(host)), remedy.assess_as_if(host, [doubtful])
    assert before.path("wsl2").because == ("wsl2.vram-above-memory",)
    assert (judged.path("wsl2").verdict, judged.path("wsl2").because) == (Verdict.UNVERIFIED, ("wsl2.remedy-unseen",))
    assert judged.path("dual-boot").because == before.path("dual-boot").because, "it did not need the remedy"


def test_a_need_that_nothing_mends_is_not_met() -> None:
    host = HOSTS["win11-pro-1gpu"]
    assert remedy.cheapest(host, Needs(), "wsl2") is not None
    assert remedy.cheapest(host, Needs(must=("nvlink",)), "wsl2") is None


@pytest.mark.parametrize("word", ["firmware-rmr", "accept-force"])
def test_a_remedy_that_cannot_be_looked_at_is_refused(word: str) -> None:
    with pytest.raises((remedy.UnknownRemedy, remedy.NothingToSee)):
        remedy.named(word)


def test_every_way_is_searched() -> None:
    assert {way.path for way in ways(HOSTS["server2025-3gpu"])} == set(WAYS)
