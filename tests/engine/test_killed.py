"""A controller that is really killed: a second process over the real wire, SIGKILL, then resume or rollback."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.process import journal, kill_winhost
from tests.processes import PATIENCE_S, started
from winhost.cli import run
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab

ACCEPT = ("--accept", "vm-stop,restart,force-dismount", "--yes")
WITH_RESTART, WITHOUT = "server2025-3gpu", "server2025-role-installed"
KILLS = 3  # on each way, unless it comes to its end before
LONGEST_S = 4.0  # an undisturbed apply takes about three, a third of it the start of Python

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")]


@pytest.fixture(params=[WITH_RESTART])
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with Lab([find(request.param)], tmp_path, scale=0.001) as running:
        monkeypatch.setenv("WINHOST_FLEET", str(running.fleet_file))
        monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "state"))
        assert run(["plan", *running.hosts, "--vm", "llm-01", "-o", str(tmp_path / "plan.json")]) == 0
        yield running


def survives(lab: Lab, line: int) -> None:
    (machine,) = (host.machine for host in lab.hosts.values())
    found, plan = machine.comparable_state(), str(lab.folder / "plan.json")
    name = kill_winhost(["apply", plan, *ACCEPT], lab.folder, lambda text: text.count("\n") >= line)
    assert run(["resume", name, "--yes", "--accept", "vm-stop,restart,force-dismount"]) == 0
    assert run(["verify", plan]) == 0
    assert run(["rollback", name, *ACCEPT]) == 0
    machine.wait_until_ready()
    assert machine.comparable_state() == found


@pytest.mark.parametrize("line", [2, 9, 20])
def test_a_killed_run_goes_on_and_back(lab: Lab, line: int) -> None:
    survives(lab, line)


@pytest.mark.crash
@pytest.mark.parametrize("line", range(1, 36))
def test_a_run_killed_at_any_line_goes_on_and_back(lab: Lab, line: int) -> None:
    survives(lab, line)


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


# ---- at any moment, again and again


@dataclass
class Victim:
    """Commands of winhost about one plan, each perhaps killed before it ends."""

    folder: Path
    chance: random.Random
    kills: int = 0

    @property
    def journal(self) -> str | None:
        found = journal(self.folder)
        return found.stem if found and b"\n" in found.read_bytes() else None

    def survives(self, *words: str) -> bool:
        """Whether it came to its end."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with started([sys.executable, "-m", "winhost", *words, *ACCEPT], **quiet) as controller:
            until = time.monotonic() + self.chance.uniform(0.5, LONGEST_S)
            while controller.poll() is None and time.monotonic() < until:
                time.sleep(0.001)
            controller.send_signal(signal.SIGKILL)
            ended = controller.wait(PATIENCE_S)
        self.kills += ended == -signal.SIGKILL
        assert ended in (0, -signal.SIGKILL)
        return ended == 0

    def there(self) -> tuple[str, ...]:
        return ("resume", self.journal) if self.journal else ("apply", str(self.folder / "plan.json"))

    def back(self) -> tuple[str, ...]:
        assert self.journal
        return ("rollback", self.journal)


@pytest.mark.crash
@pytest.mark.parametrize("lab", [WITH_RESTART, WITHOUT], indirect=True)
@pytest.mark.parametrize("seed", range(30))
def test_a_run_killed_at_any_moment_goes_on_and_back(lab: Lab, seed: int) -> None:
    (machine,) = (host.machine for host in lab.hosts.values())
    found = machine.comparable_state()
    victim = Victim(lab.folder, random.Random(seed))
    turns_back = victim.chance.random() < 0.3
    while victim.kills < KILLS and not victim.survives(*victim.there()):
        pass
    if not turns_back or not victim.journal:
        assert run([*victim.there(), *ACCEPT]) == 0
        assert run(["verify", str(lab.folder / "plan.json")]) == 0
    while victim.kills < 2 * KILLS and not victim.survives(*victim.back()):
        pass
    assert run([*victim.back(), *ACCEPT]) == 0
    machine.wait_until_ready()
    assert machine.comparable_state() == found
