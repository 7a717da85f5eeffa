"""Every rule on the host where nothing is wrong (tests/data/rules/host.yaml), with the least change that it finds."""

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.cases import read_cases
from tests.rows import each_row
from winhost.compat.assess import assess
from winhost.compat.dda import estimated_windows
from winhost.compat.rule import rules
from winhost.core.answers import Record, RemoteFault, Unavailable, Unknown
from winhost.hardware.host_gpus import MANAGEMENT_VENDORS, VIRTUAL_SCREENS
from winhost.knowledge import catalogue
from winhost.lab.hostfile import expand, find, host_files
from winhost.model.capabilities import CAPABILITIES
from winhost.model.documents import plain
from winhost.model.facts import Answer, Facts
from winhost.model.measured import Measurement
from winhost.model.path import PATHS
from winhost.model.reason import PLAN, Assessment, Finding, Severity, Verdict
from winhost.model.yamlfile import adapter
from winhost.resources.host import HostFacts, Selection
from winhost.resources.registry import RESOURCE_TYPES

FILES = {path.stem: path for path in (Path(__file__).parents[1] / "data" / "rules").glob("*.yaml")}
READ = {name: read_cases(path) for name, path in FILES.items()}
DATA = READ.pop("host")
BOUNDS: dict[str, Any] = DATA["bounds"]
OF_WINDOWS = {code: row for code, row in catalogue.reason_entries().items() if not code.startswith("linux.")}
CASES: dict[str, Any] = {code: case for cases in READ.values() for code, case in cases.items()}
CASES |= {code: {"severity": row.severity, **row.case} for code, row in OF_WINDOWS.items() if row.case}
OF_WORKLOADS = Path(catalogue.__file__).parent / "reasons" / "workload.yaml"
MISSING = {"unknown", "unavailable"}
GAPS, DOUBTS = ("unknown", "later"), ("unshown", "inferred", "outdated", "remedy-unseen")


def merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)) or MISSING & new.keys():
        return copy.deepcopy(new)
    return {name: merged(old.get(name), new[name]) if name in new else old[name] for name in {**old, **new}}


def resources_of(code: str) -> dict[str, Any]:
    return changed(CASES[code])


def changed(case: Mapping[str, Any]) -> dict[str, Any]:
    """The plain host with the change of a case."""
    assert case.keys() <= {"severity", "change", "with", "select", "stated", "measured"}, case
    resources: dict[str, Any] = DATA["host"]
    for addition in case.get("with", ()):
        resources = merged(resources, DATA["with"][addition])
    for resource, change in case["change"].items():
        keyed = bool(RESOURCE_TYPES[resource].key) and not MISSING & change.keys()
        wrapped = {name: state and {"state": state} for name, state in change.items()} if keyed else change
        resources = merged(resources, {resource: wrapped})
    return resources


def answer(resource: str, told: Mapping[str, Any]) -> Answer:
    if "unknown" in told:
        return Unknown(RemoteFault(**told["unknown"]))
    if "unavailable" in told:
        return Unavailable(told["unavailable"])
    if not RESOURCE_TYPES[resource].key:
        return (Record(told),) if told else ()
    return tuple(Record(one["state"], one["key"]) for one in told.values() if one is not None)


def facts_of(resources: Mapping[str, Any], measured: Mapping[str, Any] | None = None) -> HostFacts:
    """measured: of the Linux in WSL, what differs from a probe that was asked for nothing."""
    answers = {resource: answer(resource, told) for resource, told in resources.items()}
    probes = (
        ()
        if measured is None
        else (adapter(Measurement).validate_python(merged(DATA["measured"], {"found": measured})),)
    )
    return HostFacts(Facts("plain", "synthetic", "2026-11-20T00:00:00Z", "0", answers, measured=probes))


def selected(facts: HostFacts, resources: Mapping[str, Any], select: Mapping[str, Any]) -> Selection:
    locations = {resources["PciDevice"][name]["key"]["location"] for name in select["gpus"]}
    vm = resources["Vm"][select["vm"]]["key"]
    return Selection(
        tuple(gpu for gpu in facts.gpus if gpu.location in locations),
        next(found for found in facts.vms if found.key == vm),
    )


@cache
def judged(code: str) -> Assessment:
    resources = resources_of(code)
    facts, select = facts_of(resources, CASES[code].get("measured")), CASES[code].get("select")
    return assess(facts, selected(facts, resources, select) if select else None, stated(code))


def stated(code: str) -> dict[str, Version]:
    return {name: Version(str(version)) for name, version in CASES.get(code, {}).get("stated", {}).items()}


def found(assessment: Assessment) -> Iterator[Finding]:
    """But what only a plan lacks, which tests/engine/test_default_plans.py is about."""
    for path in assessment.paths:
        for variant in path.every_variant:
            yield from (each for each in variant.every_reason if each.subject != PLAN or each.code == "dda.no-vm")
            for offered in variant.capabilities:
                yield from offered.reasons


def test_dda_is_supported_where_nothing_is_wrong() -> None:
    path = assess(facts_of(DATA["host"])).path("dda")
    assert (path.verdict, path.because, path.every_reason) == (Verdict.SUPPORTED, (), ())
    assert [gpu.name for gpu in path.gpus] == ["NVIDIA L40S at PCIROOT(40)#PCI(0100)#PCI(0000)"]
    assert [vm.name for vm in path.vms] == ["llm"]


def test_a_gpu_that_windows_shares_with_its_own_guests_is_not_cut_up() -> None:
    resources = merged(DATA["host"], DATA["with"]["paravirtual"])
    assessment = assess(facts_of(resources))
    assert assessment.path("dda").verdict is Verdict.SUPPORTED
    assert "gpu-p.paravirtual" in assessment.path("gpu-p").because
    assert "gpu-p.not-offered" not in assessment.path("gpu-p").because


@each_row("vendor", [*MANAGEMENT_VENDORS, *VIRTUAL_SCREENS])
def test_what_is_just_a_screen_is_no_gpu(vendor: str) -> None:
    resources = copy.deepcopy(DATA["host"])
    resources["PciDevice"]["gpu"]["key"]["device"] = f"{vendor}&DEV_0405&SUBSYS_040515AD"
    assessment = assess(facts_of(resources))
    assert "dda.no-gpu" in assessment.path("dda").because
    assert assessment.path("bare-metal").offers("gpu-compute").because == ("gpu-compute.no-gpu",)


def test_a_version_is_quoted_as_this_host_writes_it() -> None:
    """1.2.5.0 of another host is the same version, and what is kept of it is not said of this one."""
    code = "wsl2.older-than-known"
    for version, other in (("1.2.5.0", "WSL 1.2.5,"), ("1.2.5", "WSL 1.2.5.0,")):
        resources = merged(resources_of(code), {"Wsl": {"version": version}})
        said = [reason.observed for reason in found(assess(facts_of(resources)))]
        assert [each for each in said if f"WSL {version}," in each]
        assert [each for each in said if other in each] == []


@pytest.mark.costly
@each_row("code", CASES)
def test_the_code_comes_up_with_its_severity(code: str) -> None:
    severities = {reason.severity for reason in found(judged(code)) if reason.code == code}
    assert severities == {Severity(CASES[code]["severity"])}


@each_row("bound", BOUNDS)
def test_the_edge_of_a_condition_is_where_it_is(bound: str) -> None:
    code, comes_up = (BOUNDS[bound][name] for name in ("code", "comes_up"))
    case = {name: what for name, what in BOUNDS[bound].items() if name in ("change", "with")}
    reasons = {reason.code for reason in found(assess(facts_of(changed(case))))}
    assert (code in reasons) == comes_up


@each_row("code", [code for code in CASES if code.startswith("dda.")])
def test_dda_is_worth_what_its_only_finding_weighs(code: str) -> None:
    severity = Severity(CASES[code]["severity"])
    assert judged(code).path("dda").verdict.rank == severity.rank


def test_every_code_of_the_catalogue_has_a_case() -> None:
    """What may lack of a capability is told by the runner, for all alike."""
    anyones = {f"{name}.{gap}" for name in CAPABILITIES for gap in (*GAPS, *DOUBTS)}
    anyones |= {f"{path}.{doubt}" for path in PATHS for doubt in DOUBTS}
    anyones |= set(read_cases(OF_WORKLOADS))  # tests/compat/test_needs.py has these
    anyones |= {
        code for code in catalogue.reason_entries() if code.startswith(("mmio.", "vm.", "wsl."))
    }  # of tests/paths
    anyones |= {"disk.not-empty"}  # of tests/engine/test_full_disks.py
    anyones |= {"disk.unproven-key", "disk.too-large"}  # of tests/engine/test_dual_boot.py
    anyones |= {"disk.no-table", "disk.not-there", "disk.windows-unfit"}  # of the same
    anyones |= {"disk.no-network-card", "disk.nobody-logs-on"}  # of tests/engine/test_ubuntu.py
    anyones |= {code for code in catalogue.entries() if code.startswith("linux.")}  # tests/compat/test_linux_rules.py
    assert set(CASES) == set(catalogue.entries()) - anyones


@pytest.mark.costly
def test_nothing_is_supported_that_nothing_but_a_conclusion_supports() -> None:
    kinds = {key: evidence.kind for key, evidence in catalogue.evidence().items()}
    for shipped in SHIPPED:
        facts = HOSTS[shipped]
        for path in assess(HostFacts(facts)).paths:
            for variant in path.every_variant:
                for judged in (variant, *variant.capabilities):
                    if judged.verdict is Verdict.SUPPORTED:
                        assert {kinds[key] for key in judged.grounds} - {"inferred"}, (facts.host, judged)


@pytest.mark.costly
def test_a_refusal_never_rests_on_inference_alone() -> None:
    kinds = {key: evidence.kind for key, evidence in catalogue.evidence().items()}
    refusals = [r for code in CASES for r in found(judged(code)) if r.severity is Severity.UNSUPPORTED]
    assert refusals
    for reason in refusals:
        assert not reason.evidence or {kinds[key] for key in reason.evidence} - {"inferred"}, reason.code


SHIPPED = {path.stem: path for path in host_files()}


class Hosts(Mapping[str, Facts]):
    """The host of each case, and those that are shipped. Each is made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Facts] = {}

    def __getitem__(self, name: str) -> Facts:
        if name not in self._made:
            self._made[name] = expand(SHIPPED[name])[0] if name in SHIPPED else self._of_case(name)
        return self._made[name]

    def _of_case(self, code: str) -> Facts:
        return facts_of(resources_of(code), CASES[code].get("measured")).document

    def __iter__(self) -> Iterator[str]:
        return iter((*CASES, *SHIPPED))

    def __len__(self) -> int:
        return len(CASES) + len(SHIPPED)


HOSTS = Hosts()


def test_what_is_selected_counts_whole() -> None:
    resources = merged(DATA["host"], DATA["with"]["three-more"])
    resources["PciDevice"]["gpu3"]["state"]["rmrr"] = True
    facts = facts_of(resources)
    assert assess(facts).path("dda").verdict is Verdict.SUPPORTED
    chosen = assess(facts, selected(facts, resources, {"gpus": ["gpu", "gpu3"], "vm": "llm"})).path("dda")
    assert (chosen.verdict, chosen.because) == (Verdict.UNSUPPORTED, ("dda.reserved-memory",))
    others = assess(facts, selected(facts, resources, {"gpus": ["gpu", "gpu2"], "vm": "llm"})).path("dda")
    assert others.verdict is Verdict.SUPPORTED


def test_what_holds_the_end_of_the_volume_is_named_in_words() -> None:
    held = {"last_held_by": None, "holders": ["page-file", "wsl-disks"]}
    case = {"change": {"ResizeLimit": {"windows": {"smallest": 900_000_000_000, **held}}}}
    reasons = {reason.code: reason.observed for reason in found(assess(facts_of(changed(case))))}
    named = "held by the page file, perhaps disk images of WSL, which runs (unverified)"
    assert reasons["dual-boot.no-space"].endswith(named)


def test_nothing_is_recommended_where_nothing_is_possible() -> None:
    assert judged("dda.no-gpu").recommended is None


def test_an_assessment_travels_as_json() -> None:
    told = plain(judged("dda.acs-unsupported"))
    dda = told["paths"][0]
    assert (told["origin"], dda["path"], dda["verdict"], dda["because"]) == (
        "synthetic",
        "dda",
        "degraded",
        ["dda.acs-unsupported"],
    )


@each_row("host", ["server2022-2gpu", "server2019-role-removed"])
def test_that_an_older_windows_does_not_tell_of_cables_is_no_more_than_a_note(host: str) -> None:
    gaps = [reason for reason in found(assess(HostFacts(HOSTS[host]))) if "tunneled" in str(reason.observed)]
    assert {reason.severity.value for reason in gaps} == {"note"}


def test_only_rules_that_say_so_let_a_gap_pass() -> None:
    noted = {rule.code.removeprefix("dda.") for rule in rules() if rule.topic == "dda" and rule.row.unknown == "notes"}
    assert noted == {
        "assigned-already",
        "boots-windows-only",
        "cluster-before-2025",
        "companions",
        "desktop-hardware",
        "device-disabled",
        "dismounted",
        "domain-controller",
        "guest-bars",
        "host-sleeps",
        "modern-standby",
        "narrow-addresses",
        "other-device",
        "partitioned",
        "partitions-in-use",
        "policy-requires-secure",
        "policy-requires-supported",
        "processor-unlisted",
        "reboot-pending",
        "signed-driver",
        "sriov-refused",
        "tunneled",
        "unsigned-scripts",
        "vm-version",
        "width-by-model",
        "window-doubtful",
    }


def test_what_is_true_of_two_gpus_alike_is_said_once() -> None:
    facts, _ = expand(find("server2022-2gpu"))
    unread = {"unknown": {"category": "NotImported", "message": "not read"}}
    gpus = [each for each in facts.resources["PciDevice"] if each.state["kind"] == "display"]  # type: ignore[union-attr]
    for record in gpus:
        record.state["ranges"] = unread  # type: ignore[index]
    host = HostFacts(facts)
    told = estimated_windows(host, Selection(tuple(gpu for gpu in host.gpus if "A30" in gpu.pci.state.name)))
    assert told is not None
    assert told.observed.count("NVIDIA A30") == 1, told.observed
