"""What is refused or said of WSL 2 before anything is touched: cases in tests/data/plans/wsl2_*.yaml."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from tests.cases import read_cases
from tests.engine.two_machines import OURS
from tests.engine.wsl2_world import BOOK, Wsl2World, wsl2_world
from tests.rows import each_row
from winhost.core.steps import DesiredResource, Step
from winhost.engine.failures import PlanRefused
from winhost.knowledge import catalogue
from winhost.lab.linux.software import LabPackage
from winhost.lab.physics.local_accounts import Account
from winhost.model.plan import Plan

T = TypeVar("T", Step, DesiredResource)
DATA = Path(__file__).parents[1] / "data" / "plans"
CASES: Mapping[str, Any] = read_cases(DATA / "wsl2_refused.yaml")
SAID: Mapping[str, Any] = read_cases(DATA / "wsl2_said.yaml")
COMMON = {"host", "change", "settings", "says", "unverified"}


def changed(folder: Path, base: str, parts: Mapping[str, Any]) -> Path:
    """A host file that differs from a shipped one."""
    delta = {"schema": "winhost.host/2", "origin": "synthetic", "about": "a case", "base": base, **parts}
    path = folder / "case.yaml"
    path.write_text(yaml.safe_dump(delta), encoding="utf-8")
    return path


def world(folder: Path, case: Mapping[str, Any]) -> Wsl2World:
    settings = {
        name: {**BOOK["settings"][name], **value} if name == "wsl" else value
        for name, value in case.get("settings", {}).items()
    }
    parts = {name: case[name] for name in ("change", "lab") if name in case}
    host = changed(folder, case["host"], parts) if parts else case["host"]
    return wsl2_world(folder / "store", host, unverified=case.get("unverified", False), **settings)


@pytest.mark.costly
@each_row("case", CASES.values(), ids=CASES)
def test_it_is_refused_by_name(tmp_path: Path, case: Mapping[str, Any]) -> None:
    assert case.keys() <= {*COMMON, "refused", "hints"}
    with pytest.raises(PlanRefused) as caught:
        world(tmp_path, case).plan()
    assert list(caught.value.grounds.codes) == case["refused"]
    assert case.get("says", "") in caught.value.meaning
    assert case.get("hints", "") in str(caught.value.hint)
    assert all(catalogue.entry(code) for code in caught.value.grounds.codes)


@each_row("case", SAID.values(), ids=SAID)
def test_it_is_planned_and_said(tmp_path: Path, case: Mapping[str, Any]) -> None:
    assert case.keys() <= {*COMMON, "lab", "resources", "said", "unsaid", "asks"}
    here = world(tmp_path, case)
    here.book = with_resources(here.book, case.get("resources", {}))
    plan = here.plan()
    notes = plan.notes
    assert {risk for step in plan.steps if step.resource == "ExternalSwitch" for risk in step.risks} >= {
        *case.get("asks", ())
    }
    told = {code for code in (*case.get("said", ()), *case.get("unsaid", ())) if any(f"[{code}]" in n for n in notes)}
    assert told == set(case.get("said", ()))
    assert case.get("says", "") in "\n".join(notes)
    assert all(catalogue.entry(code) for code in (*case.get("said", ()), *case.get("unsaid", ())))


def with_resources(book: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The playbook with other values wanted, by resource."""
    own = copy.deepcopy(dict(book))
    for entry in own["resources"]:
        entry["desired"] |= changes.get(entry["resource"], {})
    return own


@pytest.mark.parametrize("peers", [[], ["2001:db8::9"], ["10.99.0.7", "192.168.1.10"], ["10.99.0.7", "2001:db8::9"]])
def test_where_it_is_not_known_that_we_come_from_elsewhere_nothing_is_refused(tmp_path: Path, peers: list[str]) -> None:
    case = {"host": "win11-pro-1gpu", "change": {"Session": {"peers": peers}}}
    assert "WslAccess" in {each.resource for each in world(tmp_path, case).plan().deferred}


# ---- at apply


def somebody(here: Wsl2World, name: str) -> None:
    here.machine.accounts.accounts[name] = Account(name, "S-1-5-21-1-2-3-1007")


def edited(plan: Plan, account: str, *, in_request: bool) -> Plan:
    """The plan with another account: in what it asks for, or in all that it wants and does."""
    if in_request:
        settings = {**plan.request.playbook["settings"], "account": account}
        return replace(plan, request=replace(plan.request, playbook={**plan.request.playbook, "settings": settings}))
    stage = plan.stages[0]
    desired = tuple(_for(each, account) for each in stage.desired)
    return replace(plan, stages=(replace(stage, desired=desired, steps=tuple(_for(s, account) for s in stage.steps)),))


def _for(each: T, account: str) -> T:
    return replace(each, key={**each.key, "account": account}) if "account" in each.key else each


@pytest.mark.parametrize("in_request", [True, False])
def test_a_plan_that_was_edited_to_somebodys_account_is_refused_before_the_first_step(
    tmp_path: Path, in_request: bool
) -> None:
    here = wsl2_world(tmp_path)
    somebody(here, "alice")
    plan, found = edited(here.plan(), "alice", in_request=in_request), here.state()
    with pytest.raises(PlanRefused) as caught:
        here.apply(plan)
    assert caught.value.grounds.codes == ("wsl.account-taken",)
    assert (here.state(), here.store.runs()) == (found, ())


def test_an_account_that_undoable_the_plan_is_refused(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path)
    plan = here.plan()
    somebody(here, "winhost")
    with pytest.raises(PlanRefused) as caught:
        here.apply(plan)
    assert caught.value.grounds.codes == ("wsl.account-taken",)
    assert here.store.runs() == ()


def test_a_linux_driver_that_shows_at_a_later_stage_stops_the_run_with_the_way_back_open(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path)
    found, plan = here.state(), here.plan()

    def around(moment: str, entry: Any) -> None:
        if (moment, entry["event"], entry.get("resource")) == ("after", "end", "WslAccess"):
            here.inside.linux.apt.packages["nvidia-driver-570"] = LabPackage("570.1")

    here.around = around
    with pytest.raises(PlanRefused) as caught:
        here.apply(plan)
    assert (caught.value.grounds.codes, caught.value.run) == (("wsl.linux-driver",), here.run)
    assert "apt-get purge nvidia-driver-570" in caught.value.meaning
    assert "docker-ce" not in here.inside.linux.apt.packages
    here.rollback()
    now = here.state()
    assert {resource for resource in found if now[resource] != found[resource]} == {"Wsl"}


def test_a_server_goes_on_where_the_unproven_is_allowed_and_said(tmp_path: Path) -> None:
    here = wsl2_world(tmp_path, "server2022-wsl", unverified=True, access={"key": OURS, "allow": ["10.0.5.0/28"]})
    plan = here.plan()
    assert any("[wsl2.server]" in note for note in plan.notes)
    assert here.apply(plan).holds
    assert here.machine.network.rules == {"winhost-port-2222": ["10.0.5.0/28"]}
