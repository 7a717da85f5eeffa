"""A Linux that restarts in a run: with consent, waited for, gone on with, and told of where it never is back."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.linux_world import EXAMPLES, LinuxWorld, linux_world, world_of
from tests.errors import raises
from winhost.connect.reboot import Patience
from winhost.connect.wire_errors import SessionDropped
from winhost.core.answers import Record
from winhost.engine import host_session
from winhost.engine.journal import read_journal
from winhost.lab.hostfile import expand
from winhost.lab.linux.software import Apt, LabPackage
from winhost.model.facts import Facts

BLACKLIST = {
    "resource": "KernelModule",
    "title": "nvidia, not loaded",
    "key": {"module": "nvidia"},
    "desired": {"blacklisted": True, "initramfs_due": False, "restart_due": False},
    "why": "For the test.",
}


@pytest.fixture
def here(tmp_path: Path) -> LinuxWorld:
    made = linux_world(tmp_path / "store")
    made.resources = [BLACKLIST]
    return made


def boot_of(here: LinuxWorld) -> Any:
    here.machine.wait_until_ready()
    return here.open().boot()["boot_id"]


def events_of(here: LinuxWorld) -> list[str]:
    return [str(entry["event"]) for entry in read_journal(here.store.existing_journal(here.run))]


def test_a_restart_is_in_the_plan_and_needs_its_consent(here: LinuxWorld) -> None:
    plan, boot = here.plan(), boot_of(here)
    assert (plan.risks, plan.stages[0].restarts) == (("restart",), True)
    with raises("ConsentNeeded"):
        here.apply(plan, ("packages",))
    assert here.apply(plan).holds
    assert boot_of(here) != boot
    assert events_of(here)[1:] == ["begin", "end", "restarting", "restarted", "stage", "outcome"]
    assert [event.text for event in here.events if event.kind == "restart"] == ["restarting"]
    assert here.state()["KernelModule"][1].state["loaded"] is False


def test_what_needs_no_restart_restarts_nothing(here: LinuxWorld) -> None:
    here.resources = [{**BLACKLIST, "desired": {"at_boot": True}}]
    plan, boot = here.plan(), boot_of(here)
    assert (plan.risks, plan.stages[0].restarts) == ((), False)
    assert here.apply(plan, ()).holds
    assert boot_of(here) == boot


def test_a_lost_answer_loses_no_restart(here: LinuxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    real, boot, lost = host_session.Agent.set, boot_of(here), []

    def losing(agent: Any, *words: Any) -> Any:
        answer = real(agent, *words)
        if not lost:
            lost.append(answer)
            raise SessionDropped(here.host, "the cable was pulled")
        return answer

    monkeypatch.setattr(host_session.Agent, "set", losing)
    assert here.apply(here.plan()).holds
    assert lost
    assert boot_of(here) != boot


def test_a_host_that_never_comes_back_is_told_of(here: LinuxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = here.plan()
    monkeypatch.setattr("tests.engine.world.QUICK", Patience(deadline=0.1, first=0.001, longest=0.01))
    monkeypatch.setattr(type(here.machine), "accepts_connections", lambda machine: machine.boot == 1 and machine._up)
    with raises("OutOfReach") as caught:
        here.apply(plan)
    assert re.search("llm-01 was not back 0 s after its restart: .*restarting", caught.value.what)
    assert f"winhost resume {here.run}" in str(caught.value.hint)
    assert "if it hangs, turn it off and on" in str(caught.value.meaning)
    monkeypatch.undo()
    assert here.resume().holds


def without_driver(folder: Path, **settings: Any) -> LinuxWorld:
    return linux_world(folder, "ubuntu-2xl4-no-driver", **settings)


def test_a_driver_that_does_not_load_stops_the_run_with_the_way_back(tmp_path: Path) -> None:
    here = without_driver(tmp_path)
    found = here.state()
    here.own.linux.gpu_driver.broken = True
    with raises("Refused", match="linux is unsupported") as caught:
        here.apply(here.plan())
    assert "linux.driver-not-loaded" in str(caught.value.meaning)
    assert f"winhost rollback {here.run}" in str(caught.value.hint)
    assert here.rollback().outcome == "rolled back"
    assert here.state() == found


def test_a_gpu_that_fell_off_the_bus_stops_it_too(tmp_path: Path) -> None:
    here = without_driver(tmp_path)
    here.own.linux.gpu_driver.lost_gpus.add("0000:21:00.0")
    with raises("Refused") as caught:
        here.apply(here.plan())
    assert "not listed: 0000:21:00.0" in str(caught.value.meaning)


ENGINES = {
    "auto": {"docker.io"},
    "docker": {"docker.io"},
    "podman": {"podman"},
    "none": set[str](),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_is_the_one_that_is_asked_for(tmp_path: Path, engine: str) -> None:
    steps = without_driver(tmp_path, engine=engine).plan().steps
    sets = {step.key["packages"] for step in steps if step.resource == "AptPackages"}
    assert {each for each in sets if not each.startswith("linux-modules")} == ENGINES[engine]


def test_where_no_source_has_docker_the_way_out_that_is_named_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Apt.version
    monkeypatch.setattr(Apt, "version", lambda apt, name: "" if name == "docker.io" else known(apt, name))
    with raises("Refused") as refused:
        without_driver(tmp_path).plan()
    assert "--set engine=none" in str(refused.value.meaning)
    steps = [*without_driver(tmp_path, engine="none").plan().steps]
    assert steps
    assert "docker.io" not in {step.key.get("packages") for step in steps}


def test_what_is_there_runs_the_containers(tmp_path: Path) -> None:
    here = without_driver(tmp_path)
    here.own.linux.apt.packages["podman"] = LabPackage("4.9.3")
    assert {step.resource for step in here.plan().steps} == {"AptPackages", "AptSource", "DebianPackage", "LinuxFile"}
    here.own.linux.apt.packages["docker-ce"] = LabPackage("24.0.7")
    (step,) = (step for step in here.plan().steps if step.resource == "DockerSetting")
    assert step.key == {"pointer": "/runtimes/nvidia"}, "this Docker has no CDI"


def test_where_nothing_is_to_be_done_it_is_read_once(here: LinuxWorld) -> None:
    plan = here.plan()
    assert here.apply(plan).holds
    here.events.clear()
    again = here.apply(plan)
    assert (again.outcome, again.changed, again.holds) == ("nothing to do", 0, True)
    assert [event.text for event in here.events] == ["reading"]


H100, FABRIC, SERVICE = "10de:2330", "nvidia-fabricmanager-580", "nvidia-fabricmanager.service"


def on_a_board_with_nvswitches(folder: Path) -> LinuxWorld:
    facts, section = expand(EXAMPLES / "ubuntu-2xl4-no-driver.json")
    gpus = records(facts, "LinuxGpu")
    sets = [each for each in records(facts, "AptPackages") if "nvidia-headless" in each.key["packages"]]
    with_it = [Record(each.state, {"packages": each.key["packages"].replace(" ", f" {FABRIC} ", 1)}) for each in sets]
    changed = {
        "LinuxGpu": tuple(Record({**each.state, "device": H100}, each.key) for each in gpus),
        "AptPackages": (*records(facts, "AptPackages"), *with_it),
    }
    return world_of(replace(facts, resources={**facts.resources, **changed}), section, folder)


def records(facts: Facts, resource: str) -> tuple[Record, ...]:
    answer = facts.resources[resource]
    assert isinstance(answer, tuple)
    return answer


def test_a_board_with_nvswitches_gets_its_fabric_manager_with_the_driver(tmp_path: Path) -> None:
    """It starts only once the driver runs, and Ubuntu's package leaves it off."""
    here = on_a_board_with_nvswitches(tmp_path)
    found, plan = here.state(), here.plan()
    assert "linux.fabric-manager-comes" in str(plan.notes)
    assert here.apply(plan).holds
    manager = next(each for each in here.state()["SystemdUnit"] if each.key == {"unit": SERVICE})
    assert (manager.state["enabled"], manager.state["active"], manager.state["failed"]) == ("enabled", True, False)
    assert here.own.linux.apt.packages[FABRIC].version.startswith(str(here.own.linux.gpu_driver.loaded))
    assert here.plan().stages[0].steps == ()
    assert here.rollback().outcome == "rolled back"
    assert here.state() == found


def test_without_its_source_it_is_said_that_it_lacks(tmp_path: Path) -> None:
    here = on_a_board_with_nvswitches(tmp_path)
    here.own.linux.gpu_driver.multiverse = False
    plan = here.plan()
    assert FABRIC not in str(plan.stages)
    assert "linux.fabric-manager" in str(plan.notes)
