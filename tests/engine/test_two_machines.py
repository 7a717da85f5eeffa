"""One plan for Windows and for the Linux in its WSL distro, with nothing in the engine that knows of two machines."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.crash import kill, line
from tests.engine.two_machines import (
    DISTRO,
    KEY,
    OURS,
    PLAYBOOK,
    UNIT,
    UNIT_FILE,
    TwoMachines,
    TwoMachinesPlan,
    two_machines,
)
from tests.errors import raises
from winhost.cli.errors import from_missing_fact
from winhost.connect.wire_errors import NotAvailable, SessionDropped, TimedOut
from winhost.core.answers import MissingFact, Unknown
from winhost.engine import planning
from winhost.engine.failures import RunInterrupted
from winhost.engine.planning import check_plan, make_plan
from winhost.engine.verify import verify_plan
from winhost.model.errors import Exit
from winhost.model.plan import PlanRequest
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts
from winhost.resources.linux.read_only import LinuxSystem
from winhost.resources.registry import LINUX, title_of


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(planning.PLANNERS, "two-machines", lambda: TwoMachinesPlan)


@pytest.fixture
def here(tmp_path: Path) -> TwoMachines:
    return two_machines(tmp_path)


# ---- planning


def test_without_a_way_in_the_facts_lack_linux_and_what_it_is_wanted_for_waits(here: TwoMachines) -> None:
    assert not set(here.facts().resources) & set(LINUX)
    (stage,) = here.plan().stages
    assert [step.resource for step in stage.steps] == ["WslAccess"]
    assert {(waits.resource, waits.until) for waits in stage.deferred} == {
        ("SystemdUnit", "WslAccess"),
        ("LinuxFile", "WslAccess"),
        ("DebianPackage", "WslAccess"),
    }


def test_with_the_way_in_all_but_what_a_file_brings_is_planned_at_once(here: TwoMachines) -> None:
    here.distro.port, here.distro.listen, here.distro.keys, here.distro.enabled = 22, "172.28.116.5", [OURS], True
    (stage,) = here.plan().stages
    assert [step.resource for step in stage.steps] == ["WslAccess", "LinuxFile", "DebianPackage"]
    assert [(waits.resource, waits.until) for waits in stage.deferred] == [("SystemdUnit", "LinuxFile")]


# ---- there and back


def test_it_is_applied_in_stages_verified_and_given_back(here: TwoMachines) -> None:
    found = here.state()
    plan = here.plan()
    outcome = here.apply(plan)
    assert outcome.holds
    assert outcome.changed == 4
    assert here.inside.linux.apt.packages["docker.io"].version == "26.1.3-0ubuntu1"
    assert "-microsoft-standard" in here.inside.linux.read_file(UNIT_FILE)["text"]
    assert all(check.holds for check in verify_plan(check_plan(plan), HostFacts(here.facts())))
    assert {target.port for target in here.targets} == {2222}
    outcome = here.rollback()
    assert (outcome.outcome, outcome.kept) == ("rolled back", ())
    assert here.state() == found


def test_what_somebody_changed_inside_is_found_by_verify_and_kept_by_rollback(here: TwoMachines) -> None:
    plan = here.plan()
    here.apply(plan)
    inside = here.inside.linux
    ours = inside.read_file(UNIT_FILE)
    inside.write_file(UNIT_FILE, {**ours, "text": "theirs"})
    lost = [check for check in verify_plan(check_plan(plan), HostFacts(here.facts())) if not check.holds]
    assert [(check.resource, check.found) for check in lost] == [("LinuxFile", "theirs")]
    outcome = here.rollback()
    # Who changed it goes by the same way in to change it back.
    assert outcome.kept == (
        "The way in: kept: for The unit's file, which came later; undo that, then do this again",
        "The unit's file: kept: text changed since by somebody else",
    )
    inside.write_file(UNIT_FILE, ours)
    assert here.rollback().kept == ()


def test_a_second_run_changes_nothing(here: TwoMachines) -> None:
    here.apply(here.plan())
    outcome = here.apply(here.plan())
    assert (outcome.changed, outcome.holds) == (0, True)


# ---- the other machine is not there, or is not it


@pytest.mark.parametrize("how", [SessionDropped, TimedOut])
def test_a_lost_answer_of_linux_is_settled_by_reading_again(
    here: TwoMachines, how: type[SessionDropped | TimedOut]
) -> None:
    plan = here.plan()
    here.lost = [how]
    assert here.apply(plan).changed == 4
    assert [event.kind for event in here.events].count("waiting") == 1


def test_a_linux_that_cannot_be_reached_is_unknown_and_stops_the_run_with_the_way_on(here: TwoMachines) -> None:
    plan = here.plan()
    here.shows = bytes(32)
    with raises("OutOfReach") as caught:
        here.apply(plan)
    assert "presented a host key other than the known one" in caught.value.what
    assert isinstance(caught.value, RunInterrupted)
    assert caught.value.run == here.run
    answer = here.facts().resources["LinuxSystem"]
    assert isinstance(answer, Unknown)
    assert (answer.unknown.category, answer.unknown.code) == ("SecurityError", "Winhost.HostKeyRefused")
    here.shows = None
    assert here.resume().holds


def test_a_refused_logon_is_the_error_of_the_logon_at_planning_and_in_a_run(here: TwoMachines) -> None:
    plan = here.plan()

    def around(moment: str, entry: Any) -> None:
        if moment == "after" and entry["event"] == "end":
            here.distro.keys = ["ssh-ed25519 AAAA somebody"]

    here.around = around
    with raises("OutOfReach") as caught:
        here.apply(plan)
    assert "refused the logon: user root" in caught.value.what
    assert "ssh.key in fleet.yaml" in caught.value.what
    assert isinstance(caught.value, RunInterrupted)
    assert [label for label, _ in caught.value.next_steps] == ["Continue", "Roll back"]
    with raises("KeyRefused") as refused:
        here.plan()
    assert (caught.value.exit_code, refused.value.exit_code) == (Exit.UNREACHABLE, Exit.UNREACHABLE)
    with raises("KeyRefused"):
        verify_plan(check_plan(plan), HostFacts(here.facts()))
    assert from_missing_fact(_missing(here)).exit_code == Exit.UNREACHABLE


def _missing(here: TwoMachines) -> MissingFact:
    with pytest.raises(MissingFact) as caught:
        HostFacts(here.facts()).the(LinuxSystem)
    return caught.value


def test_a_host_key_that_changes_in_the_middle_is_refused(here: TwoMachines) -> None:
    plan = here.plan()

    def around(moment: str, entry: Any) -> None:
        if moment == "after" and entry["event"] == "begin" and entry["step"]["resource"] == "DebianPackage":
            here.shows = bytes(32)
            here.lost = [SessionDropped]

    here.around = around
    with raises("OutOfReach") as caught:
        here.apply(plan)
    assert "host key" in caught.value.what
    here.shows, here.around = None, lambda moment, entry: None
    assert here.resume().holds


def test_a_run_whose_linux_is_down_says_so_and_goes_on_later(here: TwoMachines) -> None:
    plan = here.plan()
    kill(here, lambda: here.apply(plan), line(9))
    here.distro.running = False
    with raises("CannotTell") as caught:
        here.resume()
    assert "files in Linux cannot be read before SSH access to the distro is there" in caught.value.what
    here.distro.running = True
    assert here.resume().holds


def test_going_back_while_linux_is_down_stays_open_until_it_is_up(here: TwoMachines) -> None:
    found = here.state()
    here.apply(here.plan())
    here.distro.running = False
    for _ in range(2):
        outcome = here.rollback()
        assert (outcome.outcome, outcome.kept, outcome.holds) == ("not all rolled back", (), False)
        titles = [lacks.title for lacks in outcome.missing]
        assert titles == ["The way in", "The unit's file", "A package", "The unit"]
        assert {lacks.until for lacks in outcome.missing} == {"WslAccess"}
        first = "Restore SSH access to the distro, by hand or with a run"
        assert outcome.next == f"{first}, then continue the rollback: winhost rollback {here.run}"
    here.distro.running = True
    assert here.rollback().outcome == "rolled back"
    assert here.state() == found


WAITING = ("SystemdUnit", "LinuxFile", "DebianPackage")


def test_a_way_in_that_never_comes_is_said_and_not_waited_for(here: TwoMachines) -> None:
    resources = [entry for entry in PLAYBOOK["resources"] if entry["resource"] != "WslAccess"]
    plan = make_plan(
        HostFacts(here.facts()), parse_request(PlanRequest("two-machines", {**PLAYBOOK, "resources": resources}))
    )
    with raises("NeverCame") as caught:
        here.apply(plan)
    waiting = {f"{title_of(each)} (before {title_of('WslAccess')} is there)" for each in WAITING}
    assert set(caught.value.what.partition("cannot be: ")[2].split(", ")) == waiting
    assert here.store.runs() == ()


def test_without_a_key_in_the_fleet_file_the_run_says_what_to_add(here: TwoMachines) -> None:
    here.ssh = None
    with raises("Halted") as caught:
        here.apply(here.plan())
    assert "hosts.desk-01.ssh.key" in caught.value.what
    assert isinstance(caught.value, RunInterrupted)
    assert "--set" not in str(caught.value.hint)


def test_the_host_restarts_and_its_linux_is_asked_anew(here: TwoMachines) -> None:
    with pytest.raises(NotAvailable):
        here.open().get("LinuxSystem", {})
    here.apply(here.plan())
    agent = here.open()
    assert agent.get("SystemdUnit", {"unit": UNIT})
    here.machine.run_shutdown()
    here.machine.wait_until_ready()
    agent = here.open()
    assert (agent.get("WslAccess", KEY) or {})["active"] is True, "the task that keeps it alive started it"
    assert (agent.get("SystemdUnit", {"unit": UNIT}) or {})["active"] is True, "it is enabled"
    assert {target.name for target in here.targets} == {f"{here.host}/{DISTRO}"}
