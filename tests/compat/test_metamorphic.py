"""What holds of verdicts when facts change, whatever they are: over all shipped hosts and all cases of rules."""

import ast
import builtins
import io
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.compat.test_rules import CASES, HOSTS, SHIPPED
from tests.house.tree import source
from tests.rows import each_row
from winhost import compat, hardware, paths, sizing, wslconfig
from winhost.compat import rule
from winhost.compat.assess import assess
from winhost.compat.capability import offers
from winhost.compat.remedy import apply_remedies
from winhost.compat.stated import versions_after, with_stated_versions, with_stated_wsl
from winhost.compat.target import Target
from winhost.core.answers import Json, Record, RemoteFault, Unknown
from winhost.hardware import mmio
from winhost.knowledge import catalogue
from winhost.model.facts import Answer, Facts
from winhost.model.path import WINDOWS_VARIANTS
from winhost.model.reason import Assessment, CapabilityVerdict, Finding, KnownRemedy, PathVerdict, Severity, Verdict
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES

DENIED = RemoteFault("PermissionDenied", message="Zugriff verweigert")

Judged = PathVerdict | CapabilityVerdict
some_host = st.sampled_from(sorted(HOSTS))


@cache
def judged(host: str) -> Assessment:
    return assess(HostFacts(HOSTS[host]))


def changed(facts: Facts, resource: str, change: Callable[[tuple[Record, ...]], Answer]) -> Facts:
    """Where the resource could be read; else there is nothing to change."""
    answer = facts.answer(resource)
    return (
        replace(facts, resources={**facts.resources, resource: change(answer)}) if isinstance(answer, tuple) else facts
    )


def with_states(facts: Facts, resource: str, change: Callable[[Record], Mapping[str, Json]]) -> Facts:
    def each(records: tuple[Record, ...]) -> Answer:
        return tuple(replace(record, state={**record.state, **change(record)}) for record in records)

    return changed(facts, resource, each)


def everything(assessment: Assessment) -> dict[str, Judged]:
    """Each way, and each of its capabilities."""
    variants = {variant.path: variant for variant in assessment.every_variant}
    offered = {f"{name}: {each.capability}": each for name, found in variants.items() for each in found.capabilities}
    return {**variants, **offered}


def reasons(judged: Judged) -> tuple[Finding, ...]:
    return judged.every_reason if isinstance(judged, PathVerdict) else judged.reasons


OF_DISKS_FOR_DATA = {"bare-metal.several-disks", "bare-metal.largest-disk"}  # another is to be named there


def gist(assessment: Assessment) -> dict[str, Any]:
    """What is said, without the words that it is said in, and in an order of its own."""
    told: dict[str, Any] = {"recommended": assessment.recommended}
    for name, each in everything(assessment).items():
        codes = sorted(reason.code for reason in reasons(each) if reason.code not in OF_DISKS_FOR_DATA)
        told[name] = (each.verdict, sorted(each.because), codes)
        for subject in (*each.gpus, *each.vms) if isinstance(each, PathVerdict) else ():
            told[f"{name}: {subject.key}"] = (subject.verdict, sorted(reason.code for reason in subject.reasons))
    return told


# --- More memory ---------------------------------------------------------------------------------------------------


@given(some_host, st.integers(1, 16), st.integers(0, 1 << 40))
def test_more_memory_makes_nothing_worse(host: str, times: int, more: int) -> None:
    larger = with_states(
        HOSTS[host], "Memory", lambda it: {name: size * times + more for name, size in it.state.items()}
    )
    before, after = everything(judged(host)), everything(assess(HostFacts(larger)))
    assert {name for name, each in after.items() if each.verdict.rank > before[name].verdict.rank} == set()


# --- Names ---------------------------------------------------------------------------------------------------------


def renamed(facts: Facts) -> tuple[Facts, dict[str, str]]:
    """The host and its VMs under names that stand nowhere else, and what they were called before."""
    names = {"token of the host": facts.host}
    for vm in told(facts, "Vm"):
        names[f"token of {vm.key['vm']}"] = vm.state["name"]
    facts = with_states(facts, "Vm", lambda vm: {"name": f"token of {vm.key['vm']}"})
    facts = with_states(facts, "OperatingSystem", lambda it: {"hostname": "HOSTNAME"})
    return replace(facts, host="token of the host"), names


def told(facts: Facts, resource: str) -> tuple[Record, ...]:
    answer = facts.answer(resource)
    return answer if isinstance(answer, tuple) else ()


def called_as_before(said: Any, names: Mapping[str, str]) -> Any:
    if isinstance(said, Mapping):
        return {name: called_as_before(each, names) for name, each in said.items()}
    if isinstance(said, list | tuple):
        return tuple(called_as_before(each, names) for each in said)
    if isinstance(said, str):
        for token, name in names.items():
            said = said.replace(token, name)
    return said


@pytest.mark.costly
@pytest.mark.parametrize("host", SHIPPED)
def test_other_names_of_host_and_vms_change_names_only(host: str) -> None:
    facts, names = renamed(HOSTS[host])
    before, after = asdict(judged(host)), asdict(assess(HostFacts(facts)))
    assert called_as_before(after, names) == called_as_before(before, {})


# --- Order, and what has nothing to do with it ---------------------------------------------------------------------

UNRELATED = {
    "Disk": Record(
        {"model": "ST8000NM", "bus": "SATA", "size": 8 * 10**12, "style": "GPT", "boot": False, "system": False}
        | {"guid": "d15c0000-0000-4000-8000-000000000001", "number": 9, "sector": 512}
        | {"offline": True, "read_only": False, "health": "healthy"},
        {"disk": "naa.5000c500a1b2c3d4"},
    ),
    "VmSwitch": Record(
        {"name": "Backup", "kind": "private", "adapter": None, "management_os": False},
        {"switch": "d3b07384-d9a0-4c9b-8f2e-3c1f5a7b9e10"},
    ),
}


def with_more(facts: Facts, resource: str) -> Facts:
    return changed(facts, resource, lambda records: (*records, UNRELATED[resource]))


@given(some_host, st.sampled_from(sorted(UNRELATED)))
def test_a_disk_for_data_or_a_private_switch_changes_nothing(host: str, resource: str) -> None:
    assert gist(assess(HostFacts(with_more(HOSTS[host], resource)))) == gist(judged(host))


@pytest.mark.costly
@given(some_host, st.randoms(use_true_random=False))
def test_the_order_of_gpus_vms_disks_and_switches_does_not_matter(host: str, shuffling: Random) -> None:
    facts = with_more(with_more(HOSTS[host], "Disk"), "VmSwitch")
    for resource in facts.resources:
        facts = changed(facts, resource, lambda records: tuple(shuffling.sample(records, len(records))))
    assert gist(assess(HostFacts(facts))) == gist(judged(host))


# --- Not knowing ---------------------------------------------------------------------------------------------------


@st.composite
def gaps(draw: st.DrawFn) -> tuple[str, Facts, str]:
    """A host, the same with one resource or property unknown, and the name of that."""
    host = draw(some_host)
    facts = HOSTS[host]
    resource = draw(st.sampled_from([name for name, answer in facts.resources.items() if isinstance(answer, tuple)]))
    records = told(facts, resource)
    places = [(position, name) for position, record in enumerate(records) for name in record.state]
    if not places or draw(st.integers(0, 9)) == 0:
        return host, changed(facts, resource, lambda _: Unknown(DENIED)), resource
    position, name = draw(st.sampled_from(places))
    blind = replace(records[position], state={**records[position].state, name: {"unknown": asdict(DENIED)}})
    return (
        host,
        changed(facts, resource, lambda _: (*records[:position], blind, *records[position + 1 :])),
        f"{resource}.{name}",
    )


@given(gaps())
def test_not_knowing_makes_nothing_better_than_unverified_unless_a_note_says_so(gap: tuple[str, Facts, str]) -> None:
    host, blind, name = gap
    assert better_than_known(host, blind, (name,)) == []


def decisive() -> list[tuple[str, str]]:
    return [(code, each) for code, case in CASES.items() for each in case["change"] if told(HOSTS[code], each)]


@pytest.mark.costly
@each_row(("code", "resource"), decisive)
def test_nor_does_it_where_a_case_of_a_rule_turns_on_that_fact(code: str, resource: str) -> None:
    change = CASES[code]["change"][resource]
    states = [each for each in change.values() if each] if RESOURCE_TYPES[resource].key else [change]
    names = {name for state in states for name in state.get("state", state)}
    unread = {"unknown": asdict(DENIED)}
    blind = with_states(HOSTS[code], resource, lambda it: dict.fromkeys(names & it.state.keys(), unread))
    assert better_than_known(code, blind, tuple(f"{resource}.{name}" for name in names)) == []


def better_than_known(host: str, blind: Facts, missing: tuple[str, ...]) -> list[str]:
    """What is judged better than unverified, and than before, without a note that names what is missing."""
    before = everything(judged(host))
    found = []
    for what, blinded in everything(assess(HostFacts(blind))).items():
        noted = any(r.severity is Severity.NOTE and r.observed.startswith(missing) for r in reasons(blinded))
        if not noted and blinded.verdict.rank < min(before[what].verdict.rank, Verdict.UNVERIFIED.rank):
            found.append(what)
    return found


# --- Once for all ways ---------------------------------------------------------------------------------------------

STATED = {"vllm": Version("0.33.0"), "cuda": Version("13.0"), "driver": Version("580.95")}


@given(some_host, st.sampled_from(({}, STATED)), st.permutations(WINDOWS_VARIANTS))
def test_what_is_answered_once_is_what_each_way_alone_answers(
    host: str, stated: Mapping[str, Version], variants: list[str]
) -> None:
    facts = HostFacts(HOSTS[host])
    shared = Target(facts, variants[0], stated)
    for variant in variants:
        assert offers(shared.for_variant(variant)) == offers(Target(facts, variant, stated))


REMEDIES = [remedy for remedy in catalogue.remedies().values() if remedy.can_be_judged]


def all_that_is_said(judged: Assessment) -> list[Any]:
    return [(variant, tuple(variant.capabilities)) for path in judged.paths for variant in (path, *path.variants)]


@pytest.mark.costly
@given(some_host, st.sampled_from(REMEDIES), st.sampled_from(({}, STATED)))
def test_changed_facts_are_judged_as_if_they_had_just_been_read(
    host: str, remedy: KnownRemedy, stated: Mapping[str, Version]
) -> None:
    known, then = with_stated_versions(HostFacts(HOSTS[host]), stated), versions_after(stated, [remedy])
    all_that_is_said(assess(known))
    mended = with_stated_wsl(apply_remedies(known.document, [remedy]), then)
    assert all_that_is_said(assess(known.updated(mended, then))) == all_that_is_said(assess(HostFacts(mended, then)))


def test_a_rule_is_asked_once_of_facts_and_again_only_if_what_it_read_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Counter[Any]()

    def counted(judge: Any) -> Any:
        def count(facts: HostFacts, *about: Any) -> Any:
            asked[(count, *(id(subject) for subject in about))] += 1
            return judge(facts, *about)

        return count

    judges = {each.judge: counted(each.judge) for each in rule.rules()}
    rule._groups.cache_clear()  # type: ignore[attr-defined]  # they keep the judges
    for each in rule.rules():
        monkeypatch.setitem(vars(each), "judge", judges[each.judge])
    document = HOSTS["win11-dual-boot-bitlocker"]
    facts = HostFacts(document)
    assess(facts)
    assess(facts)
    assert set(asked.values()) == {1}
    first, state = [*asked], RESOURCE_TYPES["FastStartup"].state
    reading = {judge for judge, *about in first if not about and state in facts.inputs_of(judge)}
    asked.clear()
    awake = {**document.resources, "FastStartup": (Record({"fast_startup": False, "hibernation": False}),)}
    assess(facts.updated(replace(document, resources=awake)))
    assert {judge for judge, *_ in asked} == reading
    assert 0 < len(reading) < 5
    rule._groups.cache_clear()  # type: ignore[attr-defined]


# --- Purity --------------------------------------------------------------------------------------------------------

CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime", "gmtime")
IMPURE = {"time", "datetime", "random", "secrets", "uuid", "socket", "urllib", "http", "subprocess", "os", "tempfile"}
JUDGING = (compat, hardware, paths, sizing, wslconfig)
MODULES = [file for room in JUDGING for file in sorted(Path(room.__path__[0]).rglob("*.py"))]
DISK = ("open", "stat", "lstat", "listdir", "scandir", "getcwd", "access")


def forbidden(*_: object, **__: object) -> NoReturn:
    raise AssertionError("judging read the clock, the disk or the network")


@pytest.mark.costly
def test_judging_reads_neither_clock_nor_disk_nor_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("server2025-3gpu", "win11-wsl-served"):  # catalogues are read once
        assess(HostFacts(HOSTS[name]))
    for read in (catalogue.entries, catalogue.evidence, catalogue.remedies, catalogue.topics):
        read()
    mmio.clear_caches()
    judged.cache_clear()
    assert all(HOSTS.values()), "each is made before"
    with monkeypatch.context() as patched:
        for name in CLOCKS:
            patched.setattr(time, name, forbidden)
        for name in DISK:
            patched.setattr(os, name, forbidden)
        for place, name in ((builtins, "open"), (io, "open"), (socket, "socket"), (subprocess, "Popen")):
            patched.setattr(place, name, forbidden)
        assessments = [judged(host) for host in HOSTS]
    assert len(assessments) == len(HOSTS)


@each_row("module", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_judges_imports_neither_clock_nor_chance_nor_network(module: Path) -> None:
    file = source(module)
    named = {alias.name for node in file.every(ast.Import) for alias in node.names}
    named |= {str(node.module) for node in file.every(ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in named} & IMPURE
