"""The state of an engine that takes turns, and its running and waiting requests."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .engine_control import EngineControl
from .fair_queue import QueuedRequest
from .turn_settings import SLEEP, ModelTurns


class TurnState(Enum):
    """The state of an engine. CHECKING: it is up, but it was not checked yet whether it answers; FAILED: it failed, and
    cannot be stopped.
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


OFF_GPU_STATES = (TurnState.DOWN, TurnState.ASLEEP, TurnState.SUSPENDED)


class TurnEnded(Exception):
    """A model's turn ended before it had answered a request."""


@dataclass(eq=False, slots=True)
class Seat:
    """The place of a request among those that run or wait, from its head to the end of its answer.

    running: an engine has it; answer_started: its client has a part of the answer; turn_ended: its model's turn is
    over; evicted: another key's request took its seat. The code that sets one of the last two also cancels the task.
    """

    key: str
    task: "asyncio.Task[Any]"
    running: bool = False
    answer_started: bool = False
    turn_ended: bool = False
    evicted: bool = False

    def end(self) -> None:
        self.turn_ended = True
        self.task.cancel()


@dataclass(eq=False)
class Waiter(QueuedRequest):
    """A request that waits until its model is awake and the engines can take one more. was_asleep: its model was not
    awake when the request came.
    """

    seat: Seat
    model: str
    since: float
    was_asleep: bool


@dataclass(eq=False)
class Member:
    """A model of a group. Times are those of the event loop.

    stays_until: when its turn may end; retry_at: when it may be activated again after a failure; prepared: it slept
    once since its start; needs_check: it failed a request, and is to be checked; is_dead: it ended or hangs;
    sleep_freed_mib: the memory that sleep frees, by GPU; memory_released: its last sleep freed that much;
    suspend_freed_mib: the memory that sleep and suspending free together; has_image: an image of its process is on
    disk, None: not known; baseline: its answer to the canary since its start, or since the start of which its image was
    taken.
    """

    name: str
    turns: ModelTurns
    control: EngineControl
    state: TurnState = TurnState.UNKNOWN
    stays_until: float = float("-inf")
    last_used: float = float("-inf")
    retry_at: float = float("-inf")
    failures: int = 0
    prepared: bool = False
    needs_check: bool = False
    is_dead: bool = False
    memory_released: bool = True
    has_image: "bool | None" = None
    baseline: "str | None" = None
    sleep_freed_mib: "dict[int, int]" = field(default_factory=dict)
    suspend_freed_mib: "dict[int, int]" = field(default_factory=dict)
    running: "set[Seat]" = field(default_factory=set)
    waiting: "list[Waiter]" = field(default_factory=list)

    @property
    def is_on_gpu(self) -> bool:
        return self.state not in OFF_GPU_STATES

    @property
    def can_sleep(self) -> bool:
        return self.turns.between == SLEEP

    @property
    def resident(self) -> bool:
        return self.turns.resident

    def required_mib(self) -> "dict[int, int]":
        """Return the free memory by GPU that it needs to be activated: as the settings say, and at least as much as it
        freed before.
        """
        freed_by_state = {TurnState.ASLEEP: self.sleep_freed_mib, TurnState.SUSPENDED: self.suspend_freed_mib}
        freed = dict(freed_by_state.get(self.state, {}))
        if self.turns.awake_mib is None:
            return freed
        configured = self.turns.awake_mib - (self.retained_mib() if self.state is TurnState.ASLEEP else 0)
        return {gpu: max(configured, freed.get(gpu, 0)) for gpu in self.turns.gpus}

    def retained_mib(self) -> int:
        """Return the memory that it keeps on each of its GPUs while others are awake."""
        if self.resident:
            return self.turns.awake_mib or 0
        return self.turns.asleep_mib if self.state is not TurnState.DOWN else 0


def fits(awake: Collection[Member], group: Collection[Member], memory: Mapping[int, int]) -> bool:
    """Tell whether these members can be awake at the same time. On a GPU on which the memory of one of them is not
    known, only one can.
    """
    for gpu in {gpu for member in awake for gpu in member.turns.gpus}:
        sharing = [member for member in group if gpu in member.turns.gpus]
        awake_mib = [member.turns.awake_mib for member in sharing if member in awake]
        if len(awake_mib) == 1:
            continue
        known = [mib for mib in awake_mib if mib is not None]
        retained = sum(member.retained_mib() for member in sharing if member not in awake)
        if len(known) < len(awake_mib) or gpu not in memory or sum(known) + retained > memory[gpu]:
            return False
    return True
