"""Every rule of a Linux of its own, with the least change that brings it up.

case: of a row, resource → property → value in all instances, or a list of other instances.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.errors import raises
from tests.rows import each_row
from winhost.compat.assess import assess
from winhost.compat.evaluation import Requirements, evaluate
from winhost.compat.needs import Needs, merge_needs
from winhost.compat.remedy import apply_remedies
from winhost.compat.stated import parse_statements
from winhost.core.answers import Record, Unavailable
from winhost.engine.choosing import recommend_path
from winhost.knowledge import catalogue
from winhost.lab.hostfile import expand, find
from winhost.model.facts import Facts
from winhost.model.workloadfile import load_workload
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.resources.registry import LINUX_RULES, host_answers, is_linux

ROOT = Path(__file__).parents[2]
FACTS = read_facts(ROOT / "examples/linux/ubuntu-2xh100.json")
CASES: dict[str, Any] = {
    code: row.case for code, row in catalogue.reason_entries().items() if code.startswith("linux.")
}
CASES["linux.unknown"] = {
    "verdict": "unverified",
    "change": {"LinuxGpuDriver": {"loaded": {"unknown": {"category": "PermissionDenied"}}}},
}


def changed(change: dict[str, Any]) -> Facts:
    resources = dict(FACTS.resources)
    for resource, edit in change.items():
        answer = resources[resource]
        assert isinstance(answer, tuple)
        if isinstance(edit, list):
            resources[resource] = tuple(Record(each["state"], each["key"]) for each in edit)
        else:
            resources[resource] = tuple(Record({**r.state, **edit}, r.key) for r in answer)
    return replace(FACTS, resources=resources)


def test_the_host_of_the_cases_is_supported_and_nothing_is_said_of_windows() -> None:
    found = assess(HostFacts(FACTS))
    assert [(each.path, each.verdict.value, each.because) for each in found.paths] == [("linux", "supported", ())]
    assert found.recommended == "linux"
    assert recommend_path(HostFacts(FACTS)).variant == "linux"


@each_row("code", CASES)
def test_a_rule_finds_what_it_is_for(code: str) -> None:
    (found,) = assess(HostFacts(changed(CASES[code]["change"]))).paths
    assert code in {reason.code for reason in found.reasons}
    assert found.verdict.value == CASES[code]["verdict"]


@each_row("code", CASES)
def test_a_remedy_that_can_be_seen_removes_its_reason(code: str) -> None:
    facts = changed(CASES[code]["change"])
    found = [reason for path in assess(HostFacts(facts)).paths for reason in path.reasons]
    offered = {reason.code: reason.remedy.id for reason in found if reason.remedy}
    for mend in (catalogue.remedies()[each or ""] for each in set(offered.values())):
        if not mend.effect:
            continue
        (after,) = assess(HostFacts(apply_remedies(facts, [mend]))).paths
        gone = {code for code, key in offered.items() if key == mend.id}
        assert gone.isdisjoint({reason.code for reason in after.reasons}), mend.id


def test_what_cannot_serve_is_not_recommended() -> None:
    with raises("NotChosen"):
        recommend_path(HostFacts(changed({"LinuxGpu": []})))


def test_what_windows_hosts_have_is_refused_in_a_sentence() -> None:
    for asked in (Requirements(path="wsl2"), Requirements(assumed=parse_statements("os=win11-pro"))):
        with raises("OtherSystem", match="llm-01 is a Linux of its own"):
            evaluate(FACTS, asked)
    windows, _ = expand(find("server2025-3gpu"))
    with raises("OtherSystem", match="is a Windows host"):
        evaluate(windows, Requirements(path="linux"))


NEEDS = {
    "gpu-compute": "supported",
    "multi-gpu": "supported",
    "gpu-p2p": "unverified",
    "windows-desktop": "unsupported",
}


@each_row("need", NEEDS)
def test_it_is_compared_with_what_is_needed(need: str) -> None:
    (fit,) = evaluate(FACTS, Requirements(needs=Needs((need,)))).fits
    assert fit.verdict.value == NEEDS[need]


def test_in_a_vm_no_document_of_metal_speaks_for_its_links() -> None:
    two_h200 = {"LinuxGpu": {"device": "10de:2335"}}
    for where, verdict in (("none", "supported"), ("kvm", "unverified"), ("microsoft", "unverified")):
        facts = changed({**two_h200, "LinuxSystem": {"virtualization": where}})
        (fit,) = evaluate(facts, Requirements(needs=Needs(("nvlink",)))).fits
        assert fit.verdict.value == verdict, where


def test_a_workload_is_added_up_against_its_gpus_and_memory() -> None:
    workload = load_workload(ROOT / "examples/workloads/70b-awq-on-2x48gb.yaml")
    (fit,) = evaluate(FACTS, Requirements(merge_needs((), workload), workload=workload)).fits
    assert fit.budget is not None
    assert fit.budget.fits
    small = changed({"LinuxGpu": {"vram": 8 << 30}})
    (fit,) = evaluate(small, Requirements(merge_needs((), workload), workload=workload)).fits
    assert fit.budget is not None
    assert not fit.budget.fits


def test_before_there_is_a_driver_its_gpus_are_known_by_the_catalogue() -> None:
    facts = changed({"LinuxGpu": {"name": None, "vram": None}, "LinuxGpuDriver": {"loaded": None, "installed": None}})
    (path,) = assess(HostFacts(facts)).paths
    assert path.available_memory is not None
    assert path.available_memory.gpus == (80 << 30, 80 << 30)
    unread = {"unknown": {"category": "PermissionDenied"}}
    (path,) = assess(HostFacts(changed({"LinuxGpu": {"name": unread, "vram": unread}}))).paths
    assert path.available_memory is not None


def test_nothing_of_linux_waits_for_windows_on_a_machine_of_its_own() -> None:
    assert is_linux(FACTS)
    host = host_answers(replace(FACTS, resources={"LinuxSystem": FACTS.resources["LinuxSystem"]}))
    assert host.rules is LINUX_RULES
    assert not isinstance(host.answer("DebianPackage"), Unavailable)
    assert {(rules.requires, rules.within) for rules in LINUX_RULES.values() if rules.name.startswith("Linux")} == {
        ("", ())
    }
