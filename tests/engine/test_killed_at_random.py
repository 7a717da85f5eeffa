"""A controller killed at any moment, again and again, on the way there and back: the host ends as it does otherwise."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S, started
from winhost.cli import run
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's"),
]

CONSENTS = ("--accept", "vm-stop,restart,force-dismount", "--yes")
SEEDS = range(30)
KILLS = 3  # on each way, unless it comes to its end before
LONGEST_S = 4.0  # an undisturbed apply takes about three, a third of it the start of Python


@pytest.fixture(params=["server2025-3gpu", "server2025-role-installed"])
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with Lab([find(request.param)], tmp_path, scale=0.001) as running:
        monkeypatch.setenv("WINHOST_FLEET", str(running.fleet_file))
        monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "state"))
        yield running


@dataclass
class Victim:
    """Commands of winhost about one plan, each perhaps killed before it ends."""

    folder: Path
    chance: random.Random
    kills: int = 0

    @property
    def journal(self) -> str | None:
        found = next((self.folder / "state" / "runs").glob("*.jsonl"), None)
        return found.stem if found and b"\n" in found.read_bytes() else None

    def survives(self, *words: str) -> bool:
        """Whether it came to its end."""
        with started([sys.executable, "-m", "winhost", *words, *CONSENTS], **QUIET) as controller:
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


QUIET: Mapping[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_killed_at_any_moment_goes_on_and_back(lab: Lab, seed: int) -> None:
    (host,) = lab.hosts
    machine = lab.hosts[host].machine
    found = machine.settled_state()
    assert run(["plan", host, "--vm", "llm-01", "-o", str(lab.folder / "plan.json")]) == 0
    victim = Victim(lab.folder, random.Random(seed))
    turns_back = victim.chance.random() < 0.3
    while victim.kills < KILLS and not victim.survives(*victim.there()):
        pass
    if not turns_back or not victim.journal:
        assert run([*victim.there(), *CONSENTS]) == 0
        assert run(["verify", str(lab.folder / "plan.json")]) == 0
    while victim.kills < 2 * KILLS and not victim.survives(*victim.back()):
        pass
    assert run([*victim.back(), *CONSENTS]) == 0
    machine.settle()
    assert machine.settled_state() == found
