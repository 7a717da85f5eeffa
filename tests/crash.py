"""Kill controllers and bundles of every world at random moments, let each go on and back, and count what ends otherwise
than undisturbed: `python -m tests.crash --kills 300 --seed 1`.

A kill on the way there is gone on with and rolled back, and rolled back from where it was, too; one on the way back is
rolled back again. Without root the worlds of run.py are left out, without a PowerShell (WINHOST_PWSH) those of scripts.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.engine.crash import Choice, Moment, Straight
from tests.engine.crash_cases import CASES
from tests.powershell.bundles import a_person
from tests.powershell.conftest import why_not
from tests.powershell.test_killed_at_random import HOST, Kills
from tests.powershell.twins import machine

SCRIPTS = tuple(f"scripts in PowerShell, bundle {number}" for number in range(1, 4))


@dataclass
class Count:
    """kills: of controllers; ways: how often one of them went on or back; differences: each with where and why."""

    kills: int = 0
    ways: int = 0
    differences: tuple[str, ...] = ()

    def __add__(self, other: "Count") -> "Count":
        return Count(self.kills + other.kills, self.ways + other.ways, self.differences + other.differences)

    def __str__(self) -> str:
        return f"{self.kills} kills, {self.ways} ways on or back, {len(self.differences)} differences"

    @contextmanager
    def way(self, where: str) -> Iterator[None]:
        """Count this way on or back, and note what it ended with where it did not end as undisturbed."""
        self.ways += 1
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a run or a check ends with
            self.differences += (f"{where}: {error!r}",)


@dataclass(frozen=True)
class Share(Choice):
    """most: of the moments of each way, any of them alike."""

    most: int = 0

    def of(self, moments: Sequence[Moment], seams: object) -> list[Moment]:
        return sorted(self.sample(moments, self.most), key=lambda moment: moment.number)


def in_world(name: str, folder: Path, kills: int, seed: int) -> Count:
    """Two of three kills come on the way there."""
    count, back = Count(), kills // 3
    with CASES[name].make(folder / "world") as here:
        straight = Straight(CASES[name], folder / "copies", here, Share("", f"{seed} {name}", kills - back))
        for moment in straight.moments["there"]:
            count.kills += 1
            killed = straight.killed("there", moment)
            left = straight.copy(killed)
            if killed.begun:
                with count.way(f"{name}: there, {moment}: resumed"):
                    straight.resume(killed)
                    straight.roll_back(killed)
            with count.way(f"{name}: there, {moment}: rolled back"):
                if left.begun:
                    straight.roll_back(left)
                straight.is_as_found(left)
        for moment in straight.choice.sample(straight.moments["back"], back):
            count.kills += 1
            with count.way(f"{name}: back, {moment}: rolled back"):
                straight.roll_back(straight.killed("back", moment))
    return count


def of_scripts(name: str, folder: Path, kills: int, seed: int) -> Count:
    """Apply.ps1 and Rollback.ps1 of one bundle, each killed up to twice: a start takes longer than all of a world."""
    count = Count()
    with a_person(machine(HOST)) as person:
        run = Kills(person, folder, f"{seed} {name}")
        with count.way(name):
            run.there_and_back()
        count.kills += run.count
    return count


def killed(name: str, kills: int, seed: int) -> tuple[str, Count, float]:
    """Count in one world, and how many seconds that took."""
    began = time.monotonic()
    with (
        TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        try:
            count = (of_scripts if name in SCRIPTS else in_world)(name, Path(folder), kills, seed)
        except Exception as error:  # noqa: BLE001 - one world does not end the others
            count = Count(differences=(f"{name}: undisturbed: {error!r}",))
    return name, count, time.monotonic() - began


@click.command()
@click.option("--kills", default=300, show_default=True, type=click.IntRange(1), help="At least so many.")
@click.option("--seed", default=1, show_default=True, help="Chooses the moments.")
@click.option("--only", metavar="WORD", default="", help="Only worlds with this in their name.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Processes at once.")
def main(kills: int, seed: int, only: str, jobs: int) -> None:
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    longest_first = [name for name in reversed([*CASES]) if root or not CASES[name].root]
    worlds = [name for name in (*(() if why_not() else SCRIPTS), *longest_first) if only in name]
    whole, began = Count(), time.monotonic()
    with ProcessPoolExecutor(jobs) as pool:
        while worlds and whole.kills < kills:  # a short run has fewer moments than its share
            share = -(-(kills - whole.kills) // (len({*worlds} - {*SCRIPTS}) or 1))
            for done in as_completed([pool.submit(killed, name, share, seed) for name in worlds]):
                name, count, seconds = done.result()
                click.echo("\n  ".join((f"{name}: {count}, {seconds:.0f} s", *count.differences)))
                whole += count
            seed += 1
    click.echo(f"{whole}, {time.monotonic() - began:.0f} s")
    sys.exit(1 if whole.differences or whole.kills < kills else 0)


if __name__ == "__main__":
    main()
