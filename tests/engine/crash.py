"""A controller that is killed at some moment of a run, in any world: the run can be resumed and rolled back.

A moment is a call of the journal's hook, before or after a line is on disk. At the chosen moments of one run, host and
journals are copied: a copy is what a killed controller leaves, and costs less than another run up to there.
"""

import random
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

import pytest

from winhost.engine.run_context import Outcome
from winhost.resources.registry import LINUX

State = Mapping[str, Any]
Way = Literal["there", "back"]
T = TypeVar("T")


class Abandoned(BaseException):
    """The controller is gone from here on; nothing catches it."""


class World(Protocol):
    """A host and its controller. begun: there is a run to resume; at_rest: nothing happens meanwhile, so it can be
    copied.
    """

    around: Callable[[str, Any], None]

    @property
    def begun(self) -> bool: ...
    @property
    def at_rest(self) -> bool: ...
    def apply(self, plan: Any) -> Outcome: ...
    def resume(self) -> Outcome: ...
    def rollback(self) -> Outcome: ...
    def state(self) -> State: ...
    def copy(self, folder: Path) -> Self: ...


def nothing(*_: object) -> None:
    pass


@dataclass(frozen=True)
class Case:
    """A run to kill. make: its world, while what that needs is there; stays: resources that a rollback does not put
    back, kept: what it says of them; resumed, rolled_back: what else must hold then; seams: resources whose steps are
    worth a look; root: whether it needs to be root; costly: whether it is one of those that `make test` samples.
    """

    make: Callable[[Path], AbstractContextManager[Any]]
    plan: Callable[[Any], Any] = lambda here: here.plan()
    state: Callable[[Any], State] = lambda here: here.state()  # type: ignore[no-any-return]
    stays: Collection[str] = ()
    kept: Collection[str] = ()
    resume: Callable[[Any], Outcome] = lambda here: here.resume()  # type: ignore[no-any-return]
    resumed: Callable[[Any], None] = nothing
    rolled_back: Callable[[Any], None] = nothing
    seams: Collection[str] = ()
    root: bool = False
    costly: bool = False


@dataclass(frozen=True)
class Moment:
    """number: counted from 0, on the way there or back."""

    number: int
    when: str
    entry: Mapping[str, Any] = field(compare=False)

    def __str__(self) -> str:
        step = self.entry.get("step", self.entry)
        return f"{self.when} line {self.entry.get('n')}: {self.entry['event']} {step.get('title', '')}".rstrip()


def moments_of(here: World, do: Callable[[], T]) -> tuple[T, list[Moment]]:
    """Do this; its result, and the moments that it has."""
    seen = list[Moment]()
    here.around = lambda when, entry: seen.append(Moment(len(seen), when, entry))
    try:
        return do(), seen
    finally:
        here.around = nothing


def photographs(here: World, do: Callable[[], object], at: Collection[int], folder: Path) -> dict[int, World]:
    """Do this; a copy of the world at each of these moments at which there can be one."""
    taken = dict[int, World]()
    number = 0

    def around(when: str, entry: Any) -> None:
        nonlocal number
        if number in at and here.at_rest:
            taken[number] = here.copy(folder / str(number))
        number += 1

    here.around = around
    try:
        do()
    finally:
        here.around = nothing
    return taken


def kill(here: World, do: Callable[[], object], at: Callable[[str, Any], bool]) -> None:
    """Do this until a moment that must come."""

    def around(when: str, entry: Any) -> None:
        if at(when, entry):
            raise Abandoned

    here.around = around
    with pytest.raises(Abandoned):
        do()
    here.around = nothing


def line(number: int, when: str = "after") -> Callable[[str, Any], bool]:
    """The moment of this line."""
    return lambda moment, entry: (entry["n"], moment) == (number, when)


@dataclass(frozen=True)
class Choice:
    """Which moments are tried. dial: few, some or all of them; seed: which are those few."""

    dial: str
    seed: str

    def of(self, moments: Sequence[Moment], seams: Collection[str]) -> list[Moment]:
        """The first, the last, around restarts and where another machine has its turn, and in the middle of steps. Few
        are one of each: which one differs from world to world.
        """
        if self.dial == "all":
            return list(moments)
        marked = list(_seams(moments[1:-1], seams))
        others = [moment for moment in moments[1:-1] if moment not in marked]
        ends = moments[0], moments[-1]
        if self.dial == "some":
            chosen = {*ends, *marked, *self.sample(others, len(others) // 4)}
        else:
            midway = [m for m in others if (m.when, m.entry["event"]) in (("after", "begin"), ("before", "end"))]
            chosen = {moment for each in (ends, marked, midway) for moment in self.sample(each, 1)}
        return sorted(chosen, key=lambda moment: moment.number)

    def sample(self, of: Sequence[T], count: int) -> list[T]:
        return random.Random(f"{self.seed} {len(of)}").sample(of, min(count, len(of)))


def _seams(moments: Sequence[Moment], resources: Collection[str]) -> Iterator[Moment]:
    was_linux = False
    for moment in moments:
        resource = moment.entry.get("step", {}).get("resource")
        is_linux = resource in LINUX if resource else was_linux
        if is_linux != was_linux or resource in resources or moment.entry["event"] in ("restarting", "restarted"):
            yield moment
        was_linux = is_linux if moment.when == "after" else was_linux


def differences(found: State, now: State, but: Collection[str] = ()) -> str:
    """By resource; nothing where there are none."""
    names = [name for name in {**found, **now} if name not in but and found.get(name) != now.get(name)]
    return "".join(f"\n  {name} is {now.get(name)}\n    not {found.get(name)}" for name in names)


class Straight:
    """A run that nobody killed, there and back, and what it leaves where somebody does."""

    def __init__(self, case: Case, folder: Path, here: World, choice: Choice) -> None:
        self.case, self.choice = case, choice
        self._folder, self._copies, self._photographs = folder, 0, dict[Way, dict[int, World]]()
        self.starts = {"there": self.copy(here)}
        self.found = case.state(here)
        self.plan = case.plan(here)
        outcome, there = moments_of(here, lambda: here.apply(self.plan))
        assert outcome.holds, outcome
        self.made = case.state(here)
        assert differences(self.found, self.made), "it changes nothing"
        self.starts["back"] = self.copy(here)
        case.resumed(here)
        _, back = moments_of(here, lambda: self.roll_back(here))
        self.moments = {"there": choice.of(there, case.seams), "back": choice.of(back, case.seams)}

    def copy(self, here: World) -> Any:
        self._copies += 1
        return here.copy(self._folder / str(self._copies))

    def killed(self, way: Way, moment: Moment) -> Any:
        """A world whose controller was killed then."""
        if way not in self._photographs:
            here, run = self._begin(way)
            chosen = {each.number for each in self.moments[way]}
            self._photographs[way] = photographs(here, run, chosen, self._folder / way)
        taken = self._photographs[way].get(moment.number)
        return self.copy(taken) if taken else self.really_killed(way, moment)

    def really_killed(self, way: Way, moment: Moment) -> Any:
        """The same, but by a run that ends there."""
        here, run = self._begin(way)
        left = iter(range(moment.number, -1, -1))
        kill(here, run, lambda when, entry: next(left) == 0)
        return here

    def _begin(self, way: Way) -> tuple[World, Callable[[], object]]:
        here = self.copy(self.starts[way])
        return here, (lambda: here.apply(self.plan)) if way == "there" else here.rollback

    def resume(self, here: Any) -> None:
        """It ends where this run ended."""
        outcome = self.case.resume(here)
        assert outcome.holds, outcome
        assert not (found := differences(self.made, self.case.state(here))), found
        self.case.resumed(here)

    def roll_back(self, here: Any) -> None:
        """It ends where this run began."""
        outcome = here.rollback()
        kept = [each for each in outcome.kept if each not in self.case.kept]
        assert (outcome.outcome, kept, outcome.missing) == ("rolled back", [], ()), outcome
        self.is_as_found(here)
        self.case.rolled_back(here)

    def is_as_found(self, here: Any) -> None:
        assert not (found := differences(self.found, self.case.state(here), self.case.stays)), found


def at_each(moments: Iterable[T], check: Callable[[T], None]) -> None:
    """Fails with all moments at which it does not hold, and why."""
    failed = list[str]()
    for moment in moments:
        try:
            check(moment)
        except Exception as error:  # noqa: BLE001  # whatever a run or a check ends with
            at = traceback.extract_tb(error.__traceback__)[-1]
            failed.append(f"{moment}: {error!r} ({Path(at.filename).name}:{at.lineno})")
    assert not failed, "\n".join(failed)
