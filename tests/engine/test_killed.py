"""A controller that is really killed: a second process over the real wire, SIGKILL, then resume or rollback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S, started
from winhost.cli import run
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab

ACCEPT = ("--accept", "vm-stop,restart,force-dismount", "--yes")
LINES = range(1, 36)

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with Lab([find("server2025-3gpu")], tmp_path, scale=0.001) as running:
        monkeypatch.setenv("WINHOST_FLEET", str(running.fleet_file))
        monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "state"))
        assert run(["plan", "gpu-01", "--vm", "llm-01", "-o", str(tmp_path / "plan.json")]) == 0
        yield running


def journal(folder: Path) -> Path | None:
    return next((folder / "state" / "runs").glob("*.jsonl"), None)


def kill_at(lab: Lab, line: int) -> str | None:
    """Kill the controller once its journal has so many lines; the run's name, if it was begun."""
    arguments = [sys.executable, "-m", "winhost", "apply", str(lab.folder / "plan.json"), *ACCEPT]
    with started(arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as controller:
        while controller.poll() is None:
            path = journal(lab.folder)
            if path is not None and path.read_bytes().count(b"\n") >= line:
                controller.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
    path = journal(lab.folder)
    return path.stem if path else None


def survive(lab: Lab, line: int, found: Any) -> None:
    machine = lab.hosts["gpu-01"].machine
    name = kill_at(lab, line)
    assert name is not None
    assert run(["resume", name, "--yes", "--accept", "vm-stop,restart,force-dismount"]) == 0
    assert run(["verify", str(lab.folder / "plan.json")]) == 0
    assert run(["rollback", name, *ACCEPT]) == 0
    machine.settle()
    assert machine.settled_state() == found


@pytest.mark.parametrize("line", [2, 9, 20])
def test_a_killed_run_goes_on_and_back(lab: Lab, line: int) -> None:
    survive(lab, line, lab.hosts["gpu-01"].machine.settled_state())


@pytest.mark.crash
@pytest.mark.parametrize("line", LINES)
def test_a_run_killed_at_any_line_goes_on_and_back(lab: Lab, line: int) -> None:
    survive(lab, line, lab.hosts["gpu-01"].machine.settled_state())


def test_ctrl_c_ends_after_the_step_in_flight_and_says_both_ways(lab: Lab) -> None:
    arguments = [sys.executable, "-m", "winhost", "apply", str(lab.folder / "plan.json"), *ACCEPT]
    with started(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as controller:
        while (path := journal(lab.folder)) is None:
            assert controller.poll() is None
            time.sleep(0.001)
        controller.send_signal(signal.SIGINT)
        _, told = controller.communicate(timeout=PATIENCE_S)
    assert controller.returncode == 1
    assert "Stopping after the current step" in told
    assert f"Continue: winhost resume {path.stem}" in told
    assert f"Roll back: winhost rollback {path.stem}" in told
    assert "Traceback" not in told
    assert run(["resume", path.stem, "--yes"]) == 0
