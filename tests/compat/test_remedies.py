"""Remedies are proven on facts: each removes its reason, and the search finds the cheapest that help."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version

from tests.compat.test_rules import CASES, DATA, HOSTS, facts_of, stated
from tests.errors import raises
from tests.rows import each_row
from winhost.compat import remedy
from winhost.compat.assess import assess
from winhost.compat.needs import Needs
from winhost.compat.rule import STATING_REMEDIES
from winhost.compat.stated import Stated, versions_after
from winhost.knowledge import catalogue
from winhost.model.facts import Facts
from winhost.model.path import WINDOWS_VARIANTS
from winhost.model.reason import Finding, KnownRemedy, PathVerdict, Verdict
from winhost.model.workload import VERSIONS, Workload
from winhost.model.workloadfile import load_workload
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES

ONE_7B = load_workload(Path(__file__).parents[2] / "examples" / "workloads" / "one-7b-on-24gb.yaml")
CHOICES_AND_ACTS = {
    "accept-force",
    "accept-headless",
    "add-gpu",
    "azure-local-tools",
    "engine-by-hand",
    "restart-linux",
    "cluster-pools",
    "create-vm",
    "escrow-keys",
    "fewer-gpus",
    "grant-service-logon",
    "make-space",
    "survey-enabled",
    "vgpu-driver",
    "whole-board",
}


def variants(facts: Facts, versions: Stated | None = None) -> list[PathVerdict]:
    return [variant for path in assess(HostFacts(facts), stated=versions).paths for variant in path.every_variant]


def said(found: Iterable[PathVerdict]) -> list[Finding]:
    reasons = [reason for variant in found for reason in variant.every_reason]
    return reasons + [reason for variant in found for offered in variant.capabilities for reason in offered.reasons]


def to_mend(facts: Facts, versions: Stated | None = None) -> set[tuple[str, str]]:
    """What is said of a host that a remedy can take away, and which."""
    told = {(named(reason), reason.remedy.id if reason.remedy else None) for reason in said(variants(facts, versions))}
    return {(what, key) for what, key in told if key and key in JUDGED}


def assert_mended(facts: Facts, versions: Stated, said_of_it: set[tuple[str, str]]) -> None:
    for what, key in said_of_it:
        mend = JUDGED[key]
        mended = variants(remedy.apply_remedies(facts, [mend]), versions_after(versions, [mend]))
        assert what not in {named(reason) for reason in said(mended)}, (what, key)


JUDGED = {key: mend for key, mend in catalogue.remedies().items() if mend.can_be_judged}
PLAIN = facts_of(DATA["host"]).document


def test_a_remedy_removes_its_reason_from_the_plain_host() -> None:
    assert_mended(PLAIN, {}, to_mend(PLAIN))


@pytest.mark.costly
@pytest.mark.parametrize("host", CASES)
def test_a_remedy_removes_what_the_case_of_a_rule_brings_up(host: str) -> None:
    assert_mended(HOSTS[host], stated(host), to_mend(HOSTS[host], stated(host)) - to_mend_of_plain())


@cache
def to_mend_of_plain() -> set[tuple[str, str]]:
    return to_mend(PLAIN)


@pytest.mark.costly
@pytest.mark.parametrize("host", HOSTS)
def test_a_remedy_removes_its_reason(host: str) -> None:
    """Whatever else is wrong with the host."""
    assert_mended(HOSTS[host], stated(host), to_mend(HOSTS[host], stated(host)))


def named(reason: Finding) -> str:
    """Several facts may lack of one thing, and a finding may stay that was only unverified on an older version."""
    if "older than where this was seen" in reason.observed:
        return f"{reason.code}: older"
    return f"{reason.code}: {reason.observed}" if reason.code.endswith(".unknown") else reason.code


def test_a_version_that_nobody_states_is_named_and_can_be_stated() -> None:
    host, needs = HOSTS["server2025-3gpu"], Needs(must=("kv-write-through",))
    found = remedy.find_cheapest_repair(HostFacts(host), needs, "dda")
    assert found is not None
    assert [mend.id for mend in found.remedies] == ["newer-vllm"]
    for name, key in STATING_REMEDIES.items():
        assert name == f"the version of {next(iter(catalogue.remedies()[key].stated))}"


OLDER = [code for code, case in CASES.items() if case.get("stated") and case["severity"] != "note"]
NOT_MENDED = {"sleep-l1.pageable-by-default", "kv-lmcache.pair", "kv-peer-copies.connector-gone"}
NOT_MENDED |= {"compressed-checkpoints.other-vllm"}  # seen with one version alone
NOT_MENDED |= {"pinned-memory.switched-off"}  # what newer versions brought


@each_row("code", OLDER)
def test_what_is_worse_for_a_stated_version_has_a_remedy_that_changes_it(code: str) -> None:
    mend = catalogue.remedies().get(catalogue.entry(code).remedy or "")
    if code in NOT_MENDED:
        assert mend is None
    else:
        assert mend is not None
        assert mend.stated


def test_only_choices_and_acts_change_nothing_that_is_judged() -> None:
    assert {key for key, mend in catalogue.remedies().items() if not mend.can_be_judged} == CHOICES_AND_ACTS


@each_row("key", [key for key, mend in catalogue.remedies().items() if mend.effect])
def test_an_effect_speaks_of_properties_that_there_are(key: str) -> None:
    for resource, edits in catalogue.remedies()[key].effect.items():
        properties = set(RESOURCE_TYPES[resource].state.__annotations__)
        for edit in edits if isinstance(edits, list) else [{"match": {}, "set": edits}]:
            assert edit.keys() == {"match", "set"}
            assert {*edit["match"], *edit["set"]} <= properties, (key, resource)


@each_row("key", [key for key, mend in catalogue.remedies().items() if mend.stated])
def test_a_version_that_a_remedy_brings_is_one_that_can_be_stated(key: str) -> None:
    versions = catalogue.remedies()[key].stated
    assert versions.keys() <= set(VERSIONS)
    assert all(str(Version(version)) == version for version in versions.values())


def test_a_version_that_facts_tell_is_changed_there_unless_it_is_stated_over_them() -> None:
    update = remedy.find_remedy("update-wsl")
    assert versions_after({}, [update]) == {}
    assert versions_after({"wsl": Version("1.2")}, [update]) == {"wsl": Version(update.stated["wsl"])}
    assert versions_after({}, [remedy.find_remedy("newer-vllm")]).keys() == {"vllm"}


def test_what_could_not_be_read_stays_unknown() -> None:
    blind = HOSTS["dda.unknown"]
    assert remedy.apply_remedies(blind, []) == blind
    mended = remedy.apply_remedies(HOSTS["wsl2.unknown"], [catalogue.remedies()["firmware-rmrr"]])
    assert mended.answer("PciDevice") == HOSTS["wsl2.unknown"].answer("PciDevice")


CHEAPEST = {
    ("server2025-3gpu", "dda"): [],
    ("virtualization-off", "dda"): ["firmware-virtualization", "firmware-iommu"],
    ("server2019-role-removed", "dda"): ["give-role-source"],
    ("win11-pro-1gpu", "dda"): ["install-server", "other-display"],
    ("win11-product-type-altered", "dda"): ["install-server", "other-display", "undo-product-type"],
    ("vm-saved", "dda"): ["linux-template"],
}


@pytest.mark.parametrize(("host", "variant"), CHEAPEST)
def test_the_cheapest_remedies_are_found(host: str, variant: str) -> None:
    found = remedy.find_cheapest_repair(HostFacts(HOSTS[host]), Needs(), variant)
    assert found is not None
    assert sorted(mend.id for mend in found.remedies) == sorted(CHEAPEST[host, variant])
    assert found.fit.verdict.rank <= Verdict.DEGRADED.rank


def stating(**versions: str) -> Workload:
    return replace(ONE_7B, versions={name: Version(version) for name, version in versions.items()})


STATED = {
    ("win11-pro-1gpu", "wsl2", "pinned-memory", "vllm"): ("0.23.0", ["newer-vllm"]),
    ("server2025-3gpu", "dda", "kv-write-through", "vllm"): ("0.21.0", ["newer-vllm"]),
    ("server2022-a100-mig", "dda", "cuda-checkpoint", "driver"): ("545.23", ["newer-linux-driver"]),
    ("win11-pro-1gpu", "wsl2", "start-on-boot", "wsl"): ("1.2.5", ["update-wsl"]),
    ("win11-pro-1gpu", "wsl2", "gpu-compute", "cuda"): ("13.0", []),
}


@pytest.mark.parametrize(("host", "variant", "need", "name"), STATED)
def test_a_newer_version_is_found_where_an_older_one_is_stated(host: str, variant: str, need: str, name: str) -> None:
    version, wanted = STATED[host, variant, need, name]
    found = remedy.find_cheapest_repair(
        HostFacts(HOSTS[host]), Needs(must=(need,)), variant, stating(**{name: version})
    )
    assert found is not None
    assert [mend.id for mend in found.remedies] == wanted


def test_a_stated_version_of_wsl_counts_for_the_paths() -> None:
    host = HOSTS["wsl2.version-not-told"]
    untold, told = (assess(HostFacts(host), stated=versions) for versions in ({}, {"wsl": Version("2.7.14")}))
    assert "wsl2.version-not-told" in untold.path("wsl2").because
    assert "wsl2.version-not-told" not in {reason.code for reason in told.path("wsl2").every_reason}


@pytest.mark.parametrize("host", ["azure-local", "not-administrator", "policy-forbids-forced"])
def test_where_only_doubtful_remedies_or_none_help_nothing_is_promised(host: str) -> None:
    assert remedy.find_cheapest_repair(HostFacts(HOSTS[host]), Needs(), "dda") is None


def test_what_only_a_doubtful_remedy_makes_possible_is_unverified() -> None:
    small = KnownRemedy("small", "", "admin", effect={"Memory": {"total": 17179869184}})
    host, doubtful = remedy.apply_remedies(HOSTS["win11-pro-1gpu"], [small]), remedy.find_remedy("more-memory")
    before, judged = assess(HostFacts(host)), remedy.assess_as_if(HostFacts(host), [doubtful])
    assert before.path("wsl2").because == ("wsl2.vram-above-memory",)
    assert (judged.path("wsl2").verdict, judged.path("wsl2").because) == (Verdict.UNVERIFIED, ("wsl2.remedy-unseen",))
    assert judged.path("dual-boot").because == before.path("dual-boot").because, "it did not need the remedy"


def test_a_need_that_nothing_mends_is_not_met() -> None:
    host = HOSTS["win11-pro-1gpu"]
    assert remedy.find_cheapest_repair(HostFacts(host), Needs(), "wsl2") is not None
    assert remedy.find_cheapest_repair(HostFacts(host), Needs(must=("nvlink",)), "wsl2") is None


@each_row("word", ["firmware-rmr", "accept-force"])
def test_a_remedy_that_cannot_be_looked_at_is_refused(word: str) -> None:
    with raises("UnknownRemedy", "NothingToSee"):
        remedy.find_remedy(word)


def test_every_way_is_searched() -> None:
    assert {variant.path for variant in variants(HOSTS["server2025-3gpu"])} == set(WINDOWS_VARIANTS)
