"""assess and plan agree on what is taken where nothing is chosen, on every host that we ship."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.errors import raises
from tests.rows import each_row
from winhost.compat.assess import assess
from winhost.engine.choosing import recommend_path
from winhost.engine.failures import PlanRefused
from winhost.engine.plan_dda import VmNotNamed
from winhost.engine.planning import PLANNERS, make_plan
from winhost.lab.hostfile import expand, find, host_files
from winhost.model.errors import NotOnHost, RefusedError
from winhost.model.path import path_of
from winhost.model.plan import Plan, PlanRequest
from winhost.model.reason import PathVerdict, SubjectVerdict, Verdict
from winhost.model.shipped import shipped
from winhost.paths.playbook import parse_request, read_playbook
from winhost.resources.host import HostFacts

HOSTS = [path.stem for path in host_files()]


@cache
def playbook(path: str) -> dict[str, Any]:
    return read_playbook(shipped("playbooks") / f"{path}.yaml").model_dump(by_alias=True, mode="json")


def host(name: str) -> HostFacts:
    return HostFacts(expand(find(name))[0])


def plan(facts: HostFacts, path: str, vm: str | None = None, gpus: tuple[str, ...] = ()) -> Plan:
    return make_plan(facts, parse_request(PlanRequest(path, playbook(path), vm, gpus)))


def shown(verdict: PathVerdict) -> str:
    """Codes of a path and its variants, and what was observed, of which one may be that a fact lacks."""
    return " ".join(
        f"{reason.code} {reason.observed}" for each in verdict.every_variant for reason in each.every_reason
    )


def error_of(facts: HostFacts, path: str, vm: str | None = None) -> VmNotNamed | PlanRefused | None:
    try:
        plan(facts, path, vm)
    except (VmNotNamed, PlanRefused) as error:
        return error
    return None


@pytest.mark.costly
@each_row("name", HOSTS)
def test_no_plan_is_refused_for_what_assess_did_not_show(name: str) -> None:
    facts = host(name)
    judged = assess(facts)
    for verdict in (each for each in judged.paths if each.path in PLANNERS):
        if verdict.verdict is Verdict.UNSUPPORTED:
            continue
        told, errors = shown(verdict), [error_of(facts, verdict.path)]
        if isinstance(which := errors[0], VmNotNamed):
            assert which.known or "dda.no-vm" in told
            fit = [vm.key for vm in verdict.vms if vm.verdict.rank < Verdict.UNVERIFIED.rank]
            errors = [error_of(facts, verdict.path, vm) for vm in fit]
        for refused in (error for error in errors if isinstance(error, PlanRefused)):
            assert [code for code in refused.grounds.codes if code not in told] == []
            assert refused.grounds.codes or any(why.split()[0].split(".")[0] in told for why in refused.grounds.reasons)


@pytest.mark.parametrize(("name", "stays"), [("thunderbolt", "PCIROOT(49)"), ("gpu-assigned-elsewhere", "PCIROOT(7B)")])
def test_a_gpu_that_nobody_named_stays_where_it_would_spoil_the_plan(name: str, stays: str) -> None:
    made = plan(host(name), "dda", "llm-01")
    taken = [step.key["location"] for step in made.steps if step.resource == "AssignableDevice"]
    assert taken
    assert not any(location.startswith(stays) for location in taken)
    assert any(stays in note and "--gpu" in note for note in made.notes)


def refusal(name: str, **request: Any) -> str:
    with pytest.raises(PlanRefused) as refused:
        plan(host(name), "dda", **request)
    return refused.value.hint or ""


def test_a_refusal_names_the_gpus_that_would_go_and_they_go() -> None:
    every = tuple(gpu.location for gpu in host("server2025-8gpu").gpus)
    hint = refusal("server2025-8gpu", vm="infer-01", gpus=every)
    words = hint.partition("--path dda ")[2].splitlines()[0].replace("'", "").split()
    assert words[::2] == ["--vm", "--gpu", "--gpu"]
    assert plan(host("server2025-8gpu"), "dda", words[1], tuple(words[3::2]))


def test_a_refusal_names_the_vm_that_would_do() -> None:
    hint = refusal("thunderbolt", vm="files-01")
    assert "It would work with: winhost plan gpu-03 --path dda --vm 8d1f3c52-6a2e-4b7d-9c41-0e5f7a6b2d10\n" in hint


@pytest.mark.costly
@each_row("name", HOSTS)
def test_a_plan_of_no_named_path_takes_the_variant_that_assess_recommends(name: str) -> None:
    facts = host(name)
    if facts.is_linux:
        return
    try:
        best = recommend_path(facts)
        made = plan(facts, path_of(best.variant), vm="llm-01" if best.variant == "dda" else None)
    except (RefusedError, VmNotNamed, NotOnHost, PlanRefused):
        return
    assert best.variant == (f"{made.request.path}/{made.variant}" if made.variant else made.request.path)


def test_a_refusal_names_the_command_for_another_path() -> None:
    assert "This host can do: wsl2/mirrored (degraded): winhost plan desk-01 --path wsl2/mirrored" in refusal(
        "win11-pro-1gpu"
    )


def test_who_has_to_name_a_vm_hears_which_are_fit() -> None:
    with pytest.raises(VmNotNamed) as which:
        plan(host("thunderbolt"), "dda")
    assert "llm-01 (supported)" in str(which.value.hint)
    assert "files-01 (unverified)" in str(which.value.hint)


def test_a_gpu_of_another_vm_that_stays_keeps_its_own_reason() -> None:
    """It would not go if the others stayed, so nobody is invited to name it for the window's sake."""
    facts, _ = expand(find("server2025-8gpu"))
    location = HostFacts(facts).gpus[-1].location
    record = next(each for each in facts.resources["AssignableDevice"] if each.key["location"] == location)
    record.state["assignment"] = f"assigned:{facts.resources['Vm'][1].key['vm']}"  # type: ignore[index]
    told = [note for note in plan(HostFacts(facts), "dda", "infer-01").notes if "stays where it is" in note]
    assert told
    assert any("[dda.assigned-already]" in note or "[dda.assigned-elsewhere]" in note for note in told), told


def test_a_plan_takes_as_many_gpus_as_assess_says_go_together() -> None:
    """Two H100 need a larger window than anybody has seen, and assess says that one is supported."""
    facts = host("server2025-2xh100")
    (judged,) = (each for each in assess(facts).paths if each.path == "dda")
    assert judged.verdict is Verdict.SUPPORTED
    made = plan(facts, "dda", "llm-01")
    assert len({step.key["location"] for step in made.steps if step.resource == "AssignableDevice"}) == 1
    assert any("stays where it is" in note and "[dda.window-over-cap]" in note for note in made.notes)
    every = tuple(gpu.location for gpu in facts.gpus if gpu.pci.state.displays in (None, 0))
    with pytest.raises(PlanRefused):
        plan(facts, "dda", "llm-01", every)


def test_the_command_for_a_path_with_several_vms_names_one() -> None:
    with pytest.raises(RefusedError) as refused:
        recommend_path(host("azure-local"))
    assert "winhost plan hci-01 --path dda --vm llm-01 --allow-unverified" in str(refused.value.hint)
    with pytest.raises(PlanRefused) as other:
        plan(host("thunderbolt"), "wsl2")
    assert "This host can do: dda (supported): winhost plan gpu-03 --path dda --vm llm-01" in str(other.value.hint)


def test_the_command_for_an_unverified_path_allows_it_and_an_import_has_none() -> None:
    facts, _ = expand(find("azure-local"))
    for origin, command in (
        ("synthetic", ": winhost plan hci-01 --path dda --vm llm-01 --allow-unverified"),
        ("imported", ""),
    ):
        with pytest.raises(PlanRefused) as refused:
            plan(HostFacts(replace(facts, origin=origin)), "wsl2")
        told = str(refused.value.hint).splitlines()
        assert f"This host can do: dda (unverified){command}" in told, told


def test_a_vm_whose_name_a_shell_would_split_is_named_by_its_id() -> None:
    verdict = Verdict.SUPPORTED
    for name, named in (("llm-01", "llm-01"), ("Zebra 1", "guid-1"), ("it's", "guid-1"), ("-x", "guid-1")):
        vms = (SubjectVerdict("vm", "guid-1", name, verdict, ()), SubjectVerdict("vm", "guid-2", "other", verdict, ()))
        assert PathVerdict("dda", verdict, (), (), (), vms).path_and_options == ("dda", "--vm", named)


def test_what_is_gone_is_read_again_from_the_file_that_the_facts_are_of() -> None:
    """No fleet file may know that host."""
    key = {"vm": "00000000-0000-0000-0000-000000000000"}
    wanted = {"resource": "VmMmio", "key": key, "desired": {"low": 1 << 30}, "title": "Windows of it", "why": "So."}
    book = playbook("dda")
    request = parse_request(PlanRequest("dda", {**book, "resources": [*book["resources"], wanted]}, "llm-01"))
    facts = host("server2025-role-installed")
    for named in ("facts/a.json", None):
        with raises("Gone") as gone:
            make_plan(HostFacts(facts.document, named=named), request)
        assert gone.value.what.endswith(f"has no VmMmio with vm {key['vm']} any more (Windows of it)")
        assert gone.value.hint == f"Read it again: winhost plan {named or facts.host}"
