"""Whatever would end the controller: the step in flight is finished, and the journal says why the run stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import journal
from tests.engine.test_killed import ACCEPT
from tests.engine.world import world
from tests.errors import raises
from tests.processes import PATIENCE_S, exit_code, started
from winhost.cli import run
from winhost.connect.agent import Agent
from winhost.engine.failures import ConsentNeeded
from winhost.engine.journal import read_journal
from winhost.engine.run_state import RunState, replay
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab
from winhost.model.secrets import SecretRef

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.name != "posix", reason="its signals and pipes are POSIX's")]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with Lab([find("server2025-role-installed")], tmp_path, scale=0.001) as running:
        monkeypatch.setenv("WINHOST_FLEET", str(running.fleet_file))
        monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "state"))
        assert run(["plan", "gpu-03", "--vm", "llm-01", "-o", str(tmp_path / "plan.json")]) == 0
        yield running


def command(lab: Lab) -> list[str]:
    return [sys.executable, "-m", "winhost", "apply", str(lab.folder / "plan.json"), *ACCEPT]


def ended(lab: Lab) -> RunState:
    """As its journal tells it: nothing in flight, stopped with a reason and both ways."""
    path = journal(lab.folder)
    assert path is not None
    record = replay(path.stem, read_journal(path))
    assert record.in_flight is None
    assert record.stopped is not None
    assert record.stopped.next == (f"winhost resume {path.stem}", f"winhost rollback {path.stem}")
    return record


def assert_goes_on(lab: Lab, record: RunState, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["runs"]) == 0
    assert record.stopped is not None
    assert record.stopped.why.partition(": ")[2].split("(")[0] in " ".join(capsys.readouterr().out.split())
    assert run(["resume", record.run, "--yes"]) == 0
    assert run(["verify", str(lab.folder / "plan.json")]) == 0


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGTERM, "because it was asked to terminate (SIGTERM)"),
        pytest.param(signal.SIGHUP, "because its terminal was closed (SIGHUP)", marks=pytest.mark.crash),
    ],
)
def test_a_signal_stops_between_steps(
    lab: Lab, number: signal.Signals, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    no_step_ends = lab.hosts["gpu-03"].machine.mutex
    with started(command(lab), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as controller:
        with no_step_ends:
            while (path := journal(lab.folder)) is None or path.read_bytes().count(b"\n") < 2:
                assert controller.poll() is None
                time.sleep(0.001)
            controller.send_signal(number)
            assert controller.stderr is not None
            while "Stopping after the current step" not in controller.stderr.readline():
                assert controller.poll() is None
        _, told = controller.communicate(timeout=PATIENCE_S)
    assert controller.returncode == 1
    assert "Traceback" not in told
    record = ended(lab)
    assert record.stopped is not None
    assert record.stopped.why == f"gpu-03: stopped after 1 change, {why}"
    assert_goes_on(lab, record, capsys)


@pytest.mark.parametrize("form", [(), pytest.param(("--jsonl",), marks=pytest.mark.crash)])
def test_a_reader_who_has_enough_of_it_ends_no_run_in_mid_step(
    lab: Lab, form: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    with started([*command(lab), *form], stdout=writing, stderr=writing) as controller:
        os.close(writing)
        os.read(reading, 10)  # as `head -1` does
        os.close(reading)
        assert controller.wait(PATIENCE_S) == 1
    record = ended(lab)
    assert record.stopped is not None
    assert "nobody reads its output any more (Broken pipe)" in record.stopped.why
    assert_goes_on(lab, record, capsys)


def test_a_terminal_that_is_closed_ends_no_run_in_mid_step(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    import pty

    child, main = pty.fork()
    if child == 0:  # the leader of a session, as a login shell is: the kernel hangs it up
        os.execv(sys.executable, command(lab))
    while journal(lab.folder) is None:
        assert os.read(main, 65536)
    os.close(main)
    assert exit_code(child) == 1
    record = ended(lab)
    assert_goes_on(lab, record, capsys)


@pytest.mark.crash
def test_under_nohup_a_hang_up_stays_ignored(lab: Lab) -> None:
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command(lab)]
    with started(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as controller:
        while journal(lab.folder) is None:
            assert controller.poll() is None
            time.sleep(0.001)
        controller.send_signal(signal.SIGHUP)
        assert controller.wait(PATIENCE_S) == 0


# ---- 2 says that nothing was done


def test_a_secret_that_is_gone_in_the_middle_is_no_fault_of_usage_alone(tmp_path: Path) -> None:
    here = world(tmp_path)
    opened = here.open

    def gone() -> Agent:
        raise SecretRef("file", "password").unreadable_error("it is not there")

    def around(when: str, entry: Any) -> None:
        if (entry["event"], when) == ("restarting", "after"):
            here.open = gone  # type: ignore[method-assign]

    here.around = around
    with raises("Halted") as halted:
        here.apply(here.plan())
    assert halted.value.exit_code == 1
    assert halted.value.hint == f"Continue: winhost resume {here.run}\nRoll back: winhost rollback {here.run}"
    here.open, here.around = opened, lambda when, entry: None  # type: ignore[method-assign]
    assert here.resume().holds


def test_drift_in_the_middle_names_the_ways_and_keeps_its_code(tmp_path: Path) -> None:
    here = world(tmp_path, "server2025-role-installed")

    def around(when: str, entry: Any) -> None:
        if (entry["event"], when) == ("end", "after") and entry["resource"] == "VmPower":
            here.machine.set_vm(here.vm(), low=512 << 20)

    here.around = around
    with raises("Halted") as halted:
        here.apply(here.plan())
    assert halted.value.exit_code == 4
    assert f"winhost resume {here.run}" in halted.value.hint


@pytest.mark.parametrize("done", ["nothing", "a stage", "a step back"])
def test_a_consent_that_lacks_is_a_fault_of_usage_only_where_nothing_was_done(tmp_path: Path, done: str) -> None:
    here = world(tmp_path)
    with pytest.raises(ConsentNeeded) as needed:
        here.apply(here.plan(), ["restart"] if done == "a stage" else [])
    assert needed.value.exit_code == (1 if done == "a stage" else 2)
    if done == "a step back":
        here.apply(here.plan())
        seen = len(here.events)
        here.stop = lambda: any(event.kind == "done" for event in here.events[seen:])
        with pytest.raises(ConsentNeeded) as needed:
            here.rollback([])
        assert needed.value.exit_code == 2
        with raises("Stopped") as stopped:
            here.rollback()
        assert "Power of llm-01: state is off, was running" in str(stopped.value.meaning)
        with pytest.raises(ConsentNeeded) as needed:
            here.rollback([])
        assert needed.value.exit_code == 1
