"""Scripts of a bundle killed at any moment, again and again, on the way there and back: the host ends as otherwise."""

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import world
from tests.powershell.bundles import Person, a_person, twin, unpack
from tests.powershell.twins import machine
from winhost.lab.physics.simulated_machine import Machine

pytestmark = pytest.mark.crash

HOST = "server2025-role-installed"
SEEDS = range(30)
NOTHING_LEFT = "There is nothing to undo."
KILLS = 2  # on each way, unless it comes to its end before


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with a_person(machine(HOST)) as made:
        yield made


@dataclass
class Victim:
    """The scripts of one bundle on one host, each perhaps killed before it ends. undisturbed: seconds of an Apply.ps1
    that is not.
    """

    person: Person
    machine: Machine
    made: Path
    journals: Path
    chance: random.Random
    undisturbed: float
    kills: int = 0

    def ends(self, script: str, kill_after: float | None = None) -> bool:
        words = ("-JournalFolder", str(self.journals), "-Accept", "vm-stop,force-dismount")
        done = self.person.alone(self.machine, self.made / script, *words, kill_after=kill_after)
        self.kills += done.code == -signal.SIGKILL
        # Killed between its last line and its end, a rollback is done; whoever asks for it again is told so.
        is_back = script == "Rollback.ps1" and self.kills > 0 and NOTHING_LEFT in done.output
        assert is_back or done.code in ((0, -signal.SIGKILL) if kill_after else (0,)), done.output
        return is_back or done.code == 0

    def survives(self, script: str) -> bool:
        return self.ends(script, self.chance.uniform(0.3, 1.0) * self.undisturbed)

    @property
    def has_begun(self) -> bool:
        return any(b"\n" in journal.read_bytes() for journal in self.journals.glob("*.jsonl"))


@dataclass
class Kills:
    """Scripts that are killed up to `KILLS` times on each way. count: how often they were."""

    person: Person
    folder: Path
    seed: str
    count: int = 0

    def there_and_back(self) -> None:
        other = world(self.folder / "store", HOST)
        plan = other.plan()
        host, rehearsed = twin(other.machine), twin(other.machine)
        found = host.comparable_state()
        other.apply(plan)
        made, chance = unpack(plan, self.folder / "bundle", alone=True), random.Random(self.seed)
        began = time.monotonic()
        assert Victim(self.person, rehearsed, made, self.folder / "rehearsal", chance, 0.0).ends("Apply.ps1")
        victim = Victim(self.person, host, made, self.folder / "journals", chance, time.monotonic() - began)
        try:
            self._kill(victim, other.state(), found)
        finally:
            self.count = victim.kills

    def _kill(self, victim: Victim, planned: Any, found: Any) -> None:
        turns_back = victim.chance.random() < 0.3
        while victim.kills < KILLS and not victim.survives("Apply.ps1"):
            pass
        if not turns_back or not victim.has_begun:
            assert victim.ends("Apply.ps1")
            assert victim.machine.comparable_state() == planned
        is_back = not victim.has_begun
        while victim.kills < 2 * KILLS and not is_back:
            is_back = victim.survives("Rollback.ps1")
        assert is_back or victim.ends("Rollback.ps1")
        assert victim.machine.comparable_state() == found


@pytest.mark.parametrize("seed", SEEDS)
def test_scripts_killed_at_any_moment_go_on_and_back(person: Person, tmp_path: Path, seed: int) -> None:
    Kills(person, tmp_path, str(seed)).there_and_back()
