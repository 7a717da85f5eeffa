"""Tests of the main job by the command line, over real connections."""

import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.schemas import faults
from winhost.cli.change.running import stop_requests
from winhost.cli.lab import demo_steps
from winhost.lab.running_lab import Lab
from winhost.lab.wire.served_host import drop
from winhost.lab.wire.wsman import Action

ACCEPT = ("--accept", "vm-stop,force-dismount", "--yes")


@pytest.mark.costly
def test_the_demo_tells_both_stories_shortly(line: Line) -> None:
    said = line("demo")
    assert said.code == 0, said.err
    for claim in (
        "can serve",
        "Killed after",
        "no difference but WSL's version",
        "no difference.",
        "winhost demo --full",
    ):
        assert claim in said.out
    assert said.out.count("\n") <= 120
    assert list(line.folder.iterdir()) == []


@pytest.mark.costly
def test_the_job_on_servers_is_played_in_full(line: Line) -> None:
    said = line("demo", "dda")
    assert said.code == 0
    for claim in (
        "Killed after",
        "16 properties verified",
        "gpu-01: as planned",
        "resource by resource",
        "no difference",
        "Served:   tiny, each",
        "A stand-in of the simulator answered, not a model",
    ):
        assert claim in said.out
    assert "simulated" in said.out
    assert "dda is unsupported on desk-01" in said.err
    assert list(line.folder.iterdir()) == []


@pytest.mark.parametrize("code", [0, 1, 130])
def test_ctrl_c_ends_the_demo_whatever_its_command_makes_of_it(
    line: Line, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(words: list[str]) -> int:
        with stop_requests():
            os.kill(os.getpid(), signal.SIGINT)
        return code

    monkeypatch.setattr(demo_steps, "command_line", stopped)
    before = {*threading.enumerate()}
    said = line("demo")
    assert not [each for each in threading.enumerate() if each not in before]
    assert (said.code, "ended with" in said.err, said.out.count("$ winhost")) == (130, False, 1), said.err
    assert "The demo has removed the simulated hosts and their runs" in " ".join(said.out.split())


def test_facts_read_once_serve_assess_plan_and_verify_offline(line: Line, lab: Lab) -> None:
    assert line("detect", "*", "-o", "facts").code == 0
    lab.endpoints["gpu-03"].stop()
    assert "Recommended: dda" in line("assess", "--facts", "facts/gpu-03.json").out
    planned = line("plan", "--facts", "facts/gpu-03.json", "--vm", "llm-01", "-o", "plan.json")
    assert planned.code == 0
    assert line("verify", "plan.json", "--facts", "facts/gpu-03.json").code == 4
    assert line("assess", "--facts", "facts/desk-01.json", "--path", "dda").code == 3


def test_reading_goes_on_when_the_wire_breaks_once(line: Line, lab: Lab) -> None:
    lab.endpoints["gpu-03"].faults.plan(drop, Action.COMMAND)
    assert line("detect", "gpu-03").code == 0
    lab.endpoints["gpu-03"].faults.plan(drop, Action.COMMAND, times=2)
    assert line("detect", "gpu-03").code == 5


def test_the_same_facts_make_the_same_plan_to_the_byte(line: Line) -> None:
    facts = line.facts("server2025-role-installed")
    plans = [line("plan", "--facts", facts, "--vm", "llm-01", "--json").out for _ in range(2)]
    first, second = (re.sub(r'"made_at": "[^"]+"', "", plan) for plan in plans)
    assert first == second != plans[0]
    assert json.loads(plans[0])["results"][0]["plan"]["schema"] == "winhost.plan/3"


@pytest.mark.costly
def test_apply_verify_rollback_as_documents(line: Line, lab: Lab) -> None:
    line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json")
    events = [json.loads(text) for text in line("apply", "plan.json", *ACCEPT, "--jsonl").out.splitlines()]
    assert {event["event"] for event in events[:-1]} >= {"step", "done"}
    assert events[-1]["outcome"]["outcome"] == "applied"
    assert (events[-1]["event"], events[-1]["exit_code"], events[-1]["host"]) == ("end", 0, "gpu-03")
    schema = line("schema", "event").json
    assert [list(faults(event, schema, schema)) for event in events] == [[]] * len(events)
    done = [event for event in events if event["event"] == "done"]
    assert all(each["after"] and each["before"].keys() == each["after"].keys() for each in done)
    assert all(each["resource"]["resource"] and each["time"] < events[-1]["time"] for each in done)
    assert {each["run"] for each in done} == {events[-1]["run"]}
    (lost,) = [
        json.loads(text) for text in line("resume", events[-1]["run"] + "x", "--yes", "--jsonl").out.splitlines()
    ]
    assert (lost["event"], lost["exit_code"], lost["outcome"]) == ("end", 2, None)
    assert line("verify", "plan.json", "--json").result["holds"] is True
    (run,) = (row["run"] for row in line("runs", "--json").results)
    assert line("rollback", run, *ACCEPT, "--json").result["outcome"]["outcome"] == "rolled back"
    assert line("verify", "plan.json", "--json").code == 4


def test_several_hosts_at_once_and_one_failing_does_not_stop_the_other(line: Line, lab: Lab) -> None:
    line("plan", "gpu-03", "--vm", "llm-01", "-o", "good.json")
    document = json.loads(Path("good.json").read_text())
    Path("bad.json").write_text(json.dumps({**document, "host": "desk-01"}))
    said = line("apply", "bad.json", "good.json", *ACCEPT, "--json")
    assert said.code == 1  # 2 would say that nothing was done
    bad, good = said.results
    assert bad["error"]["kind"] == "WrongHost"
    assert good["outcome"]["outcome"] == "applied"


def test_a_window_asked_for_is_the_one_that_is_set(line: Line, lab: Lab) -> None:
    line("plan", "gpu-03", "--vm", "llm-01", "--high", "256GiB", "--power", "off", "-o", "plan.json")
    assert line("apply", "plan.json", *ACCEPT).code == 0
    machine = lab.hosts["gpu-03"].machine
    (vm,) = (vm for vm in machine.vms.values() if vm.name == "llm-01")
    assert (vm.high, vm.power) == (256 << 30, "off")


def test_schemas_are_json_schemas_that_our_own_files_meet(line: Line) -> None:
    for name in ("facts", "plan", "fleet", "playbook", "workload", "host"):
        schema = line("schema", name).json
        assert schema["$schema"].startswith("https://json-schema.org/")
        assert schema["type"] == "object"


@pytest.mark.costly
def test_every_code_can_be_explained(line: Line) -> None:
    codes = [row["code"] for row in line("explain", "--list", "--json").results]
    assert "dda.client-sku" in codes
    for code in codes:
        assert line("explain", code).code == 0
