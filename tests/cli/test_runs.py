"""winhost runs lists every run, and says which ended early and why."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.processes import started
from winhost.cli.change.running import show_outcome, stop_requests
from winhost.engine.run_context import Outcome, Undecided
from winhost.engine.store import Store
from winhost.lab.running_lab import Lab
from winhost.model.errors import Exit
from winhost.resources.registry import RESOURCE_TYPES

ACCEPT = ("--accept", "vm-stop,force-dismount", "--yes")


def applied(line: Line) -> Path:
    """Apply a plan to gpu-03 and return the journal of the run."""
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    assert line("apply", "plan.json", *ACCEPT).code == 0
    (journal,) = journals(line)
    return journal


def journals(line: Line) -> list[Path]:
    return list((line.folder / "state" / "runs").glob("*.jsonl"))


@pytest.mark.costly
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path, whole: path.write_bytes(b""), "begun, nothing done"),
        (lambda path, whole: path.write_bytes(whole[:50]), "begun, nothing done"),
        (lambda path, whole: path.write_bytes(b"\xff\n"), "damaged"),
        (lambda path, whole: path.write_bytes(whole.replace(b"llm-01", b"llm-02", 1)), "damaged"),
        (lambda path, whole: path.write_bytes(b'{"n":1,"schema":"winhost.journal/4","winhost":"9"}\n'), "journal/4"),
        (lambda path, whole: path.write_bytes(whole.replace(b"journal/3", b"journal/1")), "journal/1"),
        (lambda path, whole: (path.unlink(), path.mkdir()), "there is no run"),
    ],
    ids=["empty", "torn", "no text", "edited", "newer", "older", "folder"],
)
def test_a_journal_that_cannot_be_read_hides_no_other(
    line: Line, lab: Lab, spoil: Callable[[Path, bytes], object], told: str
) -> None:
    journal = applied(line)
    whole = journal.read_bytes()
    other = journal.with_name("gpu-09.20200101-000000.jsonl")
    other.write_bytes(whole)
    spoil(journal, whole)
    listed = line("runs")
    assert listed.code == 0
    assert other.stem in listed.out
    assert told in listed.out or journal.is_dir()
    for words in (("resume", journal.stem, "--yes"), ("rollback", journal.stem, *ACCEPT), ("runs", journal.stem)):
        said = line(*words)
        assert (said.code, told in said.err) == (2, True), words


@pytest.mark.costly
def test_a_run_that_is_under_way_is_not_called_interrupted(line: Line, lab: Lab) -> None:
    journal = applied(line)
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:4]))
    assert line("runs", "--json").results[0]["state"] == "interrupted"
    with Store().lock("gpu-03", "apply"):
        assert line("runs", "--json").results[0]["state"] == "running now"
        shown = line("runs", journal.stem).out
        assert "running now" in shown
        assert "Go on" not in shown
    assert f"Continue: winhost resume {journal.stem}" in line("runs", journal.stem).out


def test_the_way_back_names_a_fleet_file_where_none_is_found_that_has_the_host(line: Line, lab: Lab) -> None:
    run = applied(line).stem
    Path("fleet.yaml").rename("other.yaml")
    shown = line("runs", run).out
    assert f"Roll back: winhost rollback --fleet FILE {run}\n" in shown
    assert "FILE is the fleet file that gpu-03 is in" in shown
    assert line("rollback", run, "--fleet", "other.yaml", *ACCEPT).code == 0


def test_a_lock_whose_holder_is_gone_is_no_run_under_way(line: Line, lab: Lab) -> None:
    journal = applied(line)
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:4]))
    note = line.folder / "state" / "locks" / "gpu-03.json"
    note.write_text(json.dumps({"who": "me", "doing": "apply"}))
    assert line("runs", "--json").results[0]["state"] == "interrupted"


def test_a_host_that_was_not_begun_says_why(line: Line, lab: Lab) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "good.json").code == 0
    document = json.loads(Path("good.json").read_text())
    Path("bad.json").write_text(json.dumps({**document, "host": "desk-01"}))
    words = ("apply", "bad.json", "good.json", "--at-once", "1", "--stop-on-failure", *ACCEPT)
    said = line(*words)
    assert said.code == 2
    assert "error: gpu-03: not started, because desk-01 failed" in said.err
    results = line(*words, "--json").results
    assert [result["error"]["kind"] for result in results] == ["WrongHost", "NotBegun"]
    results = [json.loads(text) for text in line(*words, "--jsonl").out.splitlines()]
    assert [result["error"]["kind"] for result in results] == ["WrongHost", "NotBegun"]
    assert line("runs", "--json").results == []


def test_the_schema_of_a_journal_knows_every_kind_of_line(line: Line, lab: Lab) -> None:
    lines = [json.loads(text) for text in applied(line).read_text("utf-8").splitlines()]
    schema = line("schema", "journal").json
    kinds = schema["discriminator"]["mapping"]
    assert {entry["event"] for entry in lines} < set(kinds)
    for entry in lines:
        known = schema["$defs"][kinds[entry["event"]].rpartition("/")[2]]
        assert set(known["required"]) <= set(entry) <= set(known["properties"])


def test_the_second_ctrl_c_cuts_one_host_short(capsys: pytest.CaptureFixture[str]) -> None:
    with stop_requests() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt), stop.interruptible():
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # between two calls of the host, as while a line is written
        with pytest.raises(KeyboardInterrupt), stop.interruptible():
            pytest.fail("it was asked to stop now")
    assert "press Ctrl-C again to stop now" in capsys.readouterr().err


def test_several_hosts_are_waited_for_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with stop_requests(2) as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
    assert stop()
    told = capsys.readouterr().err
    assert "after its current step" in told
    assert "again to stop now" not in told


@pytest.mark.costly
@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be sent Ctrl-C there")
def test_two_ctrl_c_in_a_long_step_name_both_ways(line: Line, lab: Lab) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    command = [sys.executable, "-m", "winhost", "apply", "plan.json", *ACCEPT]
    no_step_ends = lab.hosts["gpu-03"].machine.mutex
    with no_step_ends, started(command, stderr=subprocess.PIPE, text=True) as controller:
        assert controller.stderr is not None
        while not (begun := [path for path in journals(line) if path.read_bytes().count(b"\n") == 2]):
            assert controller.poll() is None
            time.sleep(0.001)
        controller.send_signal(signal.SIGINT)
        while "Stopping" not in controller.stderr.readline():
            assert controller.poll() is None
        controller.send_signal(signal.SIGINT)
        told = controller.stderr.read()
    assert "stopped in the middle of a step" in told
    assert f"Continue: winhost resume {begun[0].stem}" in told
    assert f"Roll back: winhost rollback {begun[0].stem}" in told
    assert line("rollback", begun[0].stem, *ACCEPT).code == 0


@pytest.mark.costly
def test_a_journal_reads_as_sentences(line: Line, lab: Lab) -> None:
    run = applied(line).stem
    shown = line("runs", run).out
    assert "approvals: force-dismount, vm-stop" in shown or "approvals: vm-stop, force-dismount" in shown
    assert "1 is complete" in shown
    assert "[" not in shown  # no list as a program writes it
    assert shown.endswith(f"{run}: applied\nRoll back: winhost rollback {run}\n")
    assert line("rollback", run, *ACCEPT).code == 0
    told = " ".join(line("runs", run).out.split())
    assert "noted for the rollback: what by now depends on" in told
    assert "restored to stay: " in told
    assert not [
        resource for resource in RESOURCE_TYPES if resource.startswith("Vm") and resource != "Vm" and resource in told
    ]


@pytest.mark.costly
def test_a_run_that_keeps_something_for_a_later_one_is_partly_rolled_back_until_that_is_gone(
    line: Line, lab: Lab
) -> None:
    machine = lab.hosts["gpu-03"].machine
    found = machine.comparable_state()
    for gpu in ("PCIROOT(49)#PCI(0100)#PCI(0000)", "PCIROOT(16)#PCI(0100)#PCI(0000)"):
        assert line("plan", "gpu-03", "--vm", "llm-01", "--gpu", gpu, "-o", "plan.json", "--force").code == 0
        assert line("apply", "plan.json", *ACCEPT).code == 0
    first, second = (row["run"] for row in line("runs", "--json").json["results"])
    done = line("rollback", first, *ACCEPT)
    assert done.code == Exit.FAILURE
    commands = f"winhost rollback {second}, then winhost rollback {first}"
    assert "partly rolled back" in done.out
    assert commands in " ".join(done.out.split())
    listed = {row["run"]: row for row in line("runs", "--json").json["results"]}
    assert [listed[run]["state"] for run in (first, second)] == ["partly rolled back", "applied"]
    assert f"with run {second}" in listed[first]["why"]
    assert f"with run {second}" in " ".join(line("runs", first).out.split())
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "third.json").code == 0
    assert line("apply", "third.json", "--check").code == 0  # it blocks no other run
    done = line("rollback", second, *ACCEPT)
    assert done.code == 0
    assert f"can be undone now: winhost rollback {first}" in " ".join(done.out.split())
    done = line("rollback", first, *ACCEPT)
    assert (done.code, "kept" in done.out) == (0, False)
    assert machine.comparable_state() == found


def test_what_could_not_be_judged_is_told_with_the_next_command_and_is_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    why = "devices that can be assigned cannot be read before the Hyper-V role is there"
    missing = Undecided("NVIDIA L40S", "AssignableDevice", {}, why, "HyperVRole")
    outcome = Outcome("r", "gpu-01", "not all rolled back", 0, missing=(missing,), next="…: winhost rollback r")
    show_outcome(outcome)
    assert outcome.exit_code == Exit.FAILURE
    told = capsys.readouterr().out
    assert f"NVIDIA L40S: not restored and not kept: {why}" in " ".join(told.split())
    assert "winhost rollback r" in told
