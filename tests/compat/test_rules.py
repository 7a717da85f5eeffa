"""Every rule on the host where nothing is wrong, with the least change that brings it up (tests/data/rules.yaml)."""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from winhost.compat import catalogue
from winhost.compat.assess import assess
from winhost.compat.rule import NOTES, RULES
from winhost.model.facts import Answer, Facts, Record, RemoteFault, Unavailable, Unknown
from winhost.model.reason import Assessment, Reason, Severity, Verdict
from winhost.paths.dda import Selection
from winhost.resources.host import HostFacts
from winhost.resources.windows import NOUNS

DATA = yaml.safe_load((Path(__file__).parents[1] / "data" / "rules.yaml").read_text(encoding="utf-8"))
CASES: dict[str, Any] = DATA["cases"]
MISSING = {"unknown", "unavailable"}


def merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)) or MISSING & new.keys():
        return copy.deepcopy(new)
    return {name: merged(old.get(name), new[name]) if name in new else old[name] for name in {**old, **new}}


def nouns_of(code: str) -> dict[str, Any]:
    case = CASES[code]
    assert case.keys() <= {"severity", "change", "with", "select"}, case
    nouns: dict[str, Any] = DATA["host"]
    for addition in case.get("with", ()):
        nouns = merged(nouns, DATA["with"][addition])
    for noun, change in case["change"].items():
        keyed = bool(NOUNS[noun].key) and not MISSING & change.keys()
        wrapped = {name: state and {"state": state} for name, state in change.items()} if keyed else change
        nouns = merged(nouns, {noun: wrapped})
    return nouns


def answer(noun: str, told: Mapping[str, Any]) -> Answer:
    if "unknown" in told:
        return Unknown(RemoteFault(**told["unknown"]))
    if "unavailable" in told:
        return Unavailable(told["unavailable"])
    if not NOUNS[noun].key:
        return (Record(told),) if told else ()
    return tuple(Record(one["state"], one["key"]) for one in told.values() if one is not None)


def facts_of(nouns: Mapping[str, Any]) -> HostFacts:
    answers = {noun: answer(noun, told) for noun, told in nouns.items()}
    return HostFacts(Facts("plain", "synthetic", "2026-11-20T00:00:00Z", "0", answers))


def selected(facts: HostFacts, nouns: Mapping[str, Any], select: Mapping[str, Any]) -> Selection:
    locations = {nouns["PciDevice"][name]["key"]["location"] for name in select["cards"]}
    vm = nouns["Vm"][select["vm"]]["key"]
    return Selection(
        tuple(card for card in facts.cards if card.location in locations),
        next(found for found in facts.vms if found.key == vm),
    )


def judged(code: str) -> Assessment:
    nouns = nouns_of(code)
    facts, select = facts_of(nouns), CASES[code].get("select")
    return assess(facts, selected(facts, nouns, select) if select else None)


def found(assessment: Assessment) -> Iterator[Reason]:
    for path in assessment.paths:
        yield from path.every_reason


def test_dda_is_supported_where_nothing_is_wrong() -> None:
    path = assess(facts_of(DATA["host"])).path("dda")
    gpu = next(card for card in path.cards if "L40S" in card.name)
    assert (path.verdict, path.because, path.reasons, gpu.reasons) == (Verdict.SUPPORTED, (), (), ())
    assert [vm.reasons for vm in path.vms] == [()]


@pytest.mark.parametrize("code", CASES)
def test_the_code_comes_up_with_its_severity(code: str) -> None:
    severities = {reason.severity for reason in found(judged(code)) if reason.code == code}
    assert severities == {Severity(CASES[code]["severity"])}


@pytest.mark.parametrize("code", [code for code in CASES if code.startswith("dda.")])
def test_dda_is_worth_what_its_only_finding_weighs(code: str) -> None:
    severity = Severity(CASES[code]["severity"])
    assert judged(code).path("dda").verdict.rank == severity.rank


def test_every_code_of_the_catalogue_has_a_case() -> None:
    assert set(CASES) == set(catalogue.entries())


def test_a_refusal_never_rests_on_inference_alone() -> None:
    kinds = {key: evidence.kind for key, evidence in catalogue.evidence().items()}
    refusals = [r for code in CASES for r in found(judged(code)) if r.severity is Severity.UNSUPPORTED]
    assert refusals
    for reason in refusals:
        assert not reason.evidence or {kinds[key] for key in reason.evidence} - {"inferred"}, reason.code


GAP = {"unknown": {"category": "PermissionDenied", "message": "Zugriff verweigert"}}


@st.composite
def gaps(draw: st.DrawFn) -> tuple[str, dict[str, Any], str]:
    """A case, its host with one noun or property unknown, and the name of that."""
    code = draw(st.sampled_from(sorted(CASES)))
    nouns = copy.deepcopy(nouns_of(code))
    noun = draw(st.sampled_from([name for name, told in nouns.items() if not MISSING & told.keys()]))
    states = [one["state"] for one in nouns[noun].values() if one] if NOUNS[noun].key else [nouns[noun]]
    places = [(state, name) for state in states for name in state]
    if not places or draw(st.integers(0, 9)) == 0:
        return code, nouns | {noun: GAP}, noun
    state, name = draw(st.sampled_from(places))
    state[name] = GAP
    return code, nouns, f"{noun}.{name}"


@settings(max_examples=400, deadline=None)
@given(gaps())
def test_not_knowing_makes_no_dda_verdict_better_than_unverified_unless_a_note_says_so(
    gap: tuple[str, dict[str, Any], str],
) -> None:
    code, nouns, name = gap
    before = assess(facts_of(nouns_of(code))).path("dda")
    after = assess(facts_of(nouns)).path("dda")
    noted = any(r.severity is Severity.NOTE and r.observed.startswith(name) for r in after.every_reason)
    assert noted or after.verdict.rank >= min(before.verdict.rank, Verdict.UNVERIFIED.rank)


def test_what_is_selected_counts_whole() -> None:
    nouns = merged(DATA["host"], DATA["with"]["three-more"])
    nouns["PciDevice"]["gpu3"]["state"]["rmrr"] = True
    facts = facts_of(nouns)
    assert assess(facts).path("dda").verdict is Verdict.SUPPORTED
    chosen = assess(facts, selected(facts, nouns, {"cards": ["gpu", "gpu3"], "vm": "llm"})).path("dda")
    assert (chosen.verdict, chosen.because) == (Verdict.UNSUPPORTED, ("dda.reserved-memory",))
    others = assess(facts, selected(facts, nouns, {"cards": ["gpu", "gpu2"], "vm": "llm"})).path("dda")
    assert others.verdict is Verdict.SUPPORTED


def test_why_not_tells_for_each_other_path_what_its_verdict_rests_on() -> None:
    assessment = judged("dda.client-sku")
    assert assessment.recommended == "wsl2"
    why_not = {path: {reason.code for reason in told} for path, told in assessment.why_not.items()}
    assert why_not["dda"] == {"dda.client-sku"}
    assert why_not["dual-boot"] == {"dual-boot.untried"}
    assert "wsl2" not in why_not


def test_nothing_is_recommended_where_nothing_is_possible() -> None:
    assert judged("dda.no-card").recommended is None


def test_an_assessment_travels_as_json() -> None:
    told = json.loads(json.dumps(asdict(judged("dda.acs-unsupported"))))
    dda = told["paths"][0]
    assert (told["origin"], dda["path"], dda["verdict"], dda["because"]) == (
        "synthetic",
        "dda",
        "degraded",
        ["dda.acs-unsupported"],
    )


def test_only_rules_that_say_so_let_a_gap_pass() -> None:
    assert {rule.name for rule in RULES if rule.path == "dda" and rule.unknown is NOTES} == {
        "assigned_already",
        "boots_windows_only",
        "cluster_before_2025",
        "companions",
        "device_disabled",
        "narrow_addresses",
        "partitioned",
        "partitions_in_use",
        "policy_requires_secure",
        "policy_requires_supported",
        "reboot_pending",
        "signed_driver",
        "sriov_refused",
        "window_doubtful",
    }
