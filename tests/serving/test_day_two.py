"""A Linux that serves, later: it restarts, its driver is updated, vLLM gets another version.

`verify` names what no longer holds, and a new plan repairs exactly that.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from tests.engine.linux_world import LinuxWorld
from tests.engine.test_wsl2_day_two import restart, update_driver, update_wsl
from tests.engine.wsl2_world import Wsl2World
from tests.serving.one_plan import CONSENTS, hub_of_model, inside, join, windows
from tests.serving.stacks import IMAGE, request, served_world, stack_on
from winhost.engine.failures import RunInterrupted
from winhost.engine.planning import check_plan
from winhost.engine.verify import verify_plan
from winhost.lab.linux.containers import ContainerStore
from winhost.lab.linux.serving import ServedEngines
from winhost.model.plan import Plan
from winhost.model.workload import ModelState
from winhost.resources.host import HostFacts
from winhost.serving.stack import StackRequest

ENGINE = "winhost-engine-chat.service"
NEWER = type(IMAGE)(f"registry.example.com/vllm/vllm-openai@sha256:{'12' * 32}")


def made(folder: Path) -> tuple[LinuxWorld, Plan]:
    """Of a Linux without a driver: the plan brought it, and what serves."""
    here = served_world(folder, example="ubuntu-2xl4-no-driver")
    plan = here.plan()
    assert here.apply(plan).holds
    return here, plan


def named(here: LinuxWorld | Wsl2World, plan: Plan) -> set[tuple[str, str]]:
    checked = check_plan(plan)
    checks = verify_plan(checked, HostFacts(here.facts(checked.named)))
    return {(check.resource, check.property) for check in checks if not check.holds}


def upgraded() -> StackRequest:
    newer = request(image=NEWER)
    return replace(newer, workload=replace(newer.workload, versions={"vllm": Version("0.33.1")}))


def test_a_restart_of_the_machine_changes_nothing_that_was_planned(tmp_path: Path) -> None:
    here, plan = made(tmp_path)
    here.machine.restart_computer()
    here.machine.wait_until_ready()
    assert named(here, plan) == set()
    assert list(here.plan().steps) == []


@pytest.mark.costly
def test_a_driver_that_was_updated_is_named_and_the_repair_restarts(tmp_path: Path) -> None:
    here, plan = made(tmp_path)
    packages = here.own.linux.apt.packages
    for name in [name for name in packages if "nvidia" in name and "toolkit" not in name]:
        packages[name] = replace(packages[name], version="580.199.01-0ubuntu0.24.04.1")
    assert named(here, plan) == {("AptPackages", "restart_due")}
    again = here.plan()
    assert again.stages[0].restarts
    assert here.apply(again).holds
    assert here.own.linux.driver == "580.199.01"
    assert named(here, plan) == set()
    assert here.own.linux.part(ServedEngines).serves()


def test_a_new_vllm_is_there_before_the_old_one_stops_and_the_old_image_stays(tmp_path: Path) -> None:
    here, plan = made(tmp_path)
    old = here.own.linux.part(ServedEngines).units[ENGINE]["text"]
    stack_on(here, upgraded())
    again = here.plan()
    steps = [step.resource for step in again.steps]
    assert steps.index("ContainerImage") < steps.index("EngineUnit")
    assert here.apply(again).holds
    assert here.own.linux.part(ServedEngines).units[ENGINE]["text"] != old
    assert {IMAGE.pinned, NEWER.pinned} <= images(here)
    assert ("EngineUnit", "text") in named(here, plan), "the plan of before no longer holds, and says what differs"


@pytest.mark.costly
def test_engines_that_take_turns_are_waited_for_after_they_were_replaced(tmp_path: Path) -> None:
    """The endpoint was ready when the plan was made, so that no step of it waits."""
    here, _ = made(tmp_path)
    for asked in (request(), upgraded()):
        asleep = tuple(replace(each, state=ModelState.SLEEPING) for each in asked.workload.models)
        stack_on(here, replace(asked, workload=replace(asked.workload, models=asleep)))
        plan = here.plan()
        done = here.apply(plan)
        assert done.holds, done.checks
    assert "ServingReady" not in {step.resource for step in plan.steps}
    assert "ServingReady" in {each.resource for each in done.checks}


def images(here: LinuxWorld) -> set[str]:
    return {key[1] for key in here.own.linux.part(ContainerStore).images}


@pytest.mark.costly
def test_where_the_new_vllm_does_not_answer_the_way_back_leads_to_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, plan = made(tmp_path)
    old = dict(here.own.linux.part(ServedEngines).units[ENGINE])
    stack_on(here, upgraded())
    again = here.plan()
    lacking = ServedEngines._find_missing_for_container

    def lacks(self: ServedEngines, compose: str) -> str | None:
        return "a CUDA that this driver knows" if NEWER.pinned in compose else lacking(self, compose)

    monkeypatch.setattr(ServedEngines, "_find_missing_for_container", lacks)
    with pytest.raises(RunInterrupted, match="a CUDA that this driver knows"):
        here.apply(again)
    assert IMAGE.pinned in images(here), "it is kept until the new one answered"
    assert here.rollback().outcome == "rolled back"
    assert here.own.linux.part(ServedEngines).units[ENGINE] == old
    assert here.own.linux.part(ServedEngines).serves()
    assert named(here, plan) == set()
    assert NEWER.pinned not in images(here)


# --- A distro of WSL that serves -------------------------------------------------------------------------------------

VERSION = {("Wsl", "version"), ("Wsl", "package")}
STOPPED = {("WslDistro", "running"), ("WslAccess", "active")}
DAYS: dict[str, tuple[Callable[[Wsl2World], None], set[tuple[str, str]], set[tuple[str, str]]]] = {
    "windows restarted": (restart, set(), set()),
    "the driver of windows was updated": (update_driver, {("CdiSpec", "fresh")}, set()),
    "wsl was updated": (update_wsl, VERSION | STOPPED, VERSION),
}


@pytest.mark.costly
@pytest.mark.parametrize("day", DAYS)
def test_what_serves_in_wsl_is_named_and_repaired_with_its_windows(tmp_path: Path, day: str) -> None:
    """What stays is the plan's word for a WSL that is newer now."""
    change, differ, stays = DAYS[day]
    here = windows(tmp_path, "wsl2")
    assert isinstance(here, Wsl2World)
    with hub_of_model() as hub:
        join(here, tmp_path, hub)
        plan = here.plan()
        assert here.apply(plan, CONSENTS).holds
        change(here)
        assert named(here, plan) == differ
        join(here, tmp_path, hub)
        assert here.apply(here.plan(), CONSENTS).holds
    assert named(here, plan) == stays
    assert inside(here).part(ServedEngines).serves()
