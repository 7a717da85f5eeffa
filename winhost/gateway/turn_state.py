"""The state of an engine that takes turns, and the requests that it has and that wait for it."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .engine_control import EngineControl
from .fair_line import Waiting
from .turn_settings import SLEEP, ModelTurns


class TurnState(Enum):
    """The state of an engine. CHECKING: it is up and has not yet shown that it answers; FAILED: it does not behave, and
    nobody can stop it.
    """

    UNKNOWN = "unknown"
    DOWN = "down"
    STARTING = "starting"
    AWAKE = "awake"
    CHECKING = "checking"
    DRAINING = "draining"
    FALLING_ASLEEP = "falling-asleep"
    ASLEEP = "asleep"
    SUSPENDED = "suspended"
    WAKING = "waking"
    FAILED = "failed"


OFF_THE_GPU = (TurnState.DOWN, TurnState.ASLEEP, TurnState.SUSPENDED)


class TurnEnded(Exception):
    """The model's turn ended while it still answered, after the time of `drain`."""


@dataclass(eq=False, slots=True)
class Seat:
    """A request of an API key, from its head to the end of its answer.

    running: it is with an engine; begun: its client has a part of the answer; ended: its model's turn is over; put_out:
    another key's request took its seat. Whoever sets one of the last two cancels its task.
    """

    key: str
    task: "asyncio.Task[Any]"
    running: bool = False
    begun: bool = False
    ended: bool = False
    put_out: bool = False

    def end(self) -> None:
        self.ended = True
        self.task.cancel()


@dataclass(eq=False)
class Waiter(Waiting):
    """A request that waits until its model is awake and the engines may have one more. asleep: its model was not awake
    when the request came.
    """

    seat: Seat
    model: str
    since: float
    asleep: bool


@dataclass(eq=False)
class Member:
    """A model of a group. Times are those of the event loop.

    stays_until: when its turn may end; not_before: it failed, and is not brought up earlier; prepared: it was up and
    slept once since this program began; doubted: it failed a request and has to show that it still answers; dead: it
    ended or hangs; freed_mib: the memory that its sleep frees on each GPU; gave_back: it freed that much when it slept
    last; left_mib: the memory that sleep and suspending free together; imaged: an image of its process is on disk,
    None: not known; baseline: its answer to the canary since it started, or since the start that its image was taken
    of.
    """

    name: str
    turns: ModelTurns
    control: EngineControl
    state: TurnState = TurnState.UNKNOWN
    stays_until: float = float("-inf")
    last_use: float = float("-inf")
    not_before: float = float("-inf")
    failures: int = 0
    prepared: bool = False
    doubted: bool = False
    dead: bool = False
    gave_back: bool = True
    imaged: "bool | None" = None
    baseline: "str | None" = None
    freed_mib: "dict[int, int]" = field(default_factory=dict)
    left_mib: "dict[int, int]" = field(default_factory=dict)
    running: "set[Seat]" = field(default_factory=set)
    waiting: "list[Waiter]" = field(default_factory=list)

    @property
    def on_the_gpu(self) -> bool:
        return self.state not in OFF_THE_GPU

    @property
    def sleeps(self) -> bool:
        return self.turns.between == SLEEP

    @property
    def resident(self) -> bool:
        return self.turns.resident

    def needs_mib(self) -> "dict[int, int]":
        """The free memory that it needs to be brought up, by GPU: as stated, and no less than it freed before."""
        known = {TurnState.ASLEEP: self.freed_mib, TurnState.SUSPENDED: self.left_mib}
        found = dict(known.get(self.state, {}))
        if self.turns.awake_mib is None:
            return found
        stated = self.turns.awake_mib - (self.remains_mib() if self.state is TurnState.ASLEEP else 0)
        return {gpu: max(stated, found.get(gpu, 0)) for gpu in self.turns.gpus}

    def remains_mib(self) -> int:
        """The memory of each of its GPUs that it keeps while others are awake."""
        if self.resident:
            return self.turns.awake_mib or 0
        return self.turns.asleep_mib if self.state is not TurnState.DOWN else 0


def fits(awake: Collection[Member], group: Collection[Member], memory: Mapping[int, int]) -> bool:
    """Tell whether these may be awake at the same time. On a GPU where their memory is not known, only one may."""
    for gpu in {gpu for member in awake for gpu in member.turns.gpus}:
        here = [member for member in group if gpu in member.turns.gpus]
        up = [member.turns.awake_mib for member in here if member in awake]
        if len(up) == 1:
            continue
        known = [mib for mib in up if mib is not None]
        kept = sum(member.remains_mib() for member in here if member not in awake)
        if len(known) < len(up) or gpu not in memory or sum(known) + kept > memory[gpu]:
            return False
    return True
