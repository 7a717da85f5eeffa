"""Give turns to requests: models that share GPUs are awake in turn, and engines get a limited number of requests.

Each request takes a seat before its body is read. Once its model is known, it waits for a turn with the model's engine.
In each queue, API keys take turns.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable

from .engine_control import EngineControl
from .engine_moves import EngineMoves
from .fair_queue import FairQueue, QueueTimeout
from .gateway_metrics import TurnMetrics
from .gateway_settings import GatewaySettings, PublishedModel
from .gpu_group import GpuGroup
from .keeper_client import KeeperClient
from .turn_settings import gpu_groups
from .turn_state import Member, Seat, TurnEnded, TurnState, Waiter
from .yielding import Yielding

_READY_STATES = (
    TurnState.AWAKE,
    TurnState.DRAINING,
    TurnState.FALLING_ASLEEP,
    TurnState.ASLEEP,
    TurnState.SUSPENDED,
    TurnState.WAKING,
)
_MAX_RETRY_AFTER_S = 120


class Busy(Exception):
    """No seat or turn is available in time. retry_after: seconds until one may be."""

    def __init__(self, retry_after: float = 5) -> None:
        super().__init__()
        self.retry_after = max(1, min(_MAX_RETRY_AFTER_S, math.ceil(retry_after)))


class Turns:
    """The turns of all models. running: the number of requests that engines have; yielding: the requests for the GPUs
    by something else.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        control: Callable[[PublishedModel], EngineControl],
        keeper: "KeeperClient | None",
    ) -> None:
        self._limits = settings.limits
        self._seats: dict[Seat, None] = {}  # in the order of their requests
        self._queue: FairQueue[Waiter] = FairQueue(self._try_start)
        self.running = 0
        self._metrics = TurnMetrics()
        self.yielding = Yielding(settings.yields)
        self.yielding.on_change = self._handle_yield_change
        moves = EngineMoves(settings.turns, keeper, self._metrics, self.yielding)
        self._groups: dict[str, GpuGroup] = {}
        for names in gpu_groups(settings.turn_models):
            models = [settings.models[name] for name in names]
            members = [Member(model.name, model.turns, control(model)) for model in models if model.turns]
            group = GpuGroup(members, settings.turns, moves, self._metrics, self._queue.admit_waiting, self.yielding)
            self._groups.update(dict.fromkeys(names, group))
        self._all_groups = tuple(dict.fromkeys(self._groups.values()))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start moving engines."""
        self._tasks = [asyncio.ensure_future(group.run()) for group in self._all_groups]
        self._tasks.append(asyncio.ensure_future(self.yielding.follow_file()))

    def stop(self) -> None:
        """Stop moving engines, and leave them in their present states."""
        for group in self._all_groups:
            group.stopped = True
        for task in self._tasks:
            task.cancel()

    @property
    def waiting(self) -> int:
        """The number of requests that still send their body or wait for an engine."""
        return sum(not seat.running for seat in self._seats)

    def deadline(self) -> float:
        """Return the time of the event loop until which a request that comes now may wait."""
        return asyncio.get_running_loop().time() + self._limits.hold

    def _handle_yield_change(self, is_new: bool) -> None:
        for group in self._all_groups:
            group.handle_yield_change(is_new)

    # ---- requests

    def take_seat(self, key: str) -> Seat:
        """Take a seat for one request of this key, before its body is read. Raises Busy."""
        task = asyncio.current_task()
        assert task
        if len(self._seats) >= self._limits.requests + self._limits.waiting:
            self._evict(key)
        seat = Seat(key, task)
        self._seats[seat] = None
        return seat

    def leave_seat(self, seat: Seat) -> None:
        self._seats.pop(seat, None)

    def _evict(self, key: str) -> None:
        """Free a seat, or raise Busy. The key with the most waiting requests loses its newest one to a key with fewer.
        A stream that waits for its engine to start again keeps its seat, because its client has a part of it.
        """
        waiting = [seat for seat in self._seats if not (seat.running or seat.answer_started)]
        counts = Counter(seat.key for seat in waiting)
        crowded_key = max(counts, key=lambda each: counts[each], default=key)
        if counts[crowded_key] <= counts[key] + 1:
            raise Busy
        newest = next(seat for seat in reversed(waiting) if seat.key == crowded_key)
        del self._seats[newest]
        newest.evicted = True
        newest.task.cancel()

    async def take_turn(self, seat: Seat, model: str, deadline: float) -> Waiter:
        """Wait for a turn with this model's engine. Raises Busy, TurnEnded."""
        group = self._groups.get(model)
        if self.yielding.is_requested:
            raise TurnEnded(model)
        loop = asyncio.get_running_loop()
        was_asleep = group is not None and not group.is_awake(model)
        waiter = Waiter(seat.key, seat, model, loop.time(), was_asleep)
        try:
            if group:
                group.add_waiter(waiter)
            await self._queue.wait(waiter, deadline)
        except QueueTimeout:
            busy = Busy(group.expected_wait(model) if group else 5)
            self.end_turn(waiter)
            raise busy from None
        except BaseException as error:
            self.end_turn(waiter)
            if seat.turn_ended and isinstance(error, asyncio.CancelledError):
                raise TurnEnded(model) from None
            raise
        return waiter

    def end_turn(self, waiter: Waiter) -> None:
        if waiter.seat.running:
            waiter.seat.running = False
            self.running -= 1
        if group := self._groups.get(waiter.model):
            group.remove_request(waiter)
        self._queue.admit_waiting()

    def _try_start(self, waiter: Waiter) -> "bool | None":
        if self.running >= self._limits.requests:
            return None
        group = self._groups.get(waiter.model)
        if group:
            if not group.is_awake(waiter.model):
                return False
            group.start_request(waiter)
        waiter.seat.running = True
        self.running += 1
        return True

    def note_unreachable(self, model: str) -> bool:
        """Note that no engine listened. Return whether the request may wait for another turn."""
        if group := self._groups.get(model):
            group.note_unreachable(model)
        return group is not None

    def note_failure(self, model: str) -> None:
        """Note that the engine failed a request."""
        if group := self._groups.get(model):
            group.note_failure(model)

    def note_death(self, model: str) -> None:
        """Note that the engine ended or hangs."""
        if group := self._groups.get(model):
            group.note_death(model)

    # ---- the state of models

    def takes_turns(self, model: str) -> bool:
        return model in self._groups

    def is_ready(self, model: str) -> bool:
        """Tell whether a model is awake, or off its GPUs because others have a turn."""
        member = self._members()[model]
        stopped = member.state is TurnState.DOWN and not (member.can_sleep or member.resident or member.failures)
        return stopped or member.state in _READY_STATES

    @property
    def models_on_gpus(self) -> list[str]:
        """The models that take turns and are still on their GPUs."""
        return [name for name, member in self._members().items() if member.is_on_gpu]

    def _members(self) -> "dict[str, Member]":
        return {name: group.members[name] for name, group in self._groups.items()}

    def metrics(self) -> Iterable[str]:
        """Return the metrics for Prometheus; none where no model takes turns."""
        members = self._members()
        if not members:
            return ()
        counts = {
            "model_requests_waiting": {name: len(member.waiting) for name, member in members.items()},
            "model_requests_running": {name: len(member.running) for name, member in members.items()},
        }
        return self._metrics.lines({name: member.state.value for name, member in members.items()}, counts)


# These are classes because a generator as a context manager costs as much as reading the head of a request.
class SeatedRequest:
    """A request of a key, with a seat. Entering raises Busy; leaving does so if another key's request took the seat."""

    def __init__(self, turns: Turns, key: str) -> None:
        self._turns, self._key = turns, key
        self._seat: Seat

    def __enter__(self) -> Seat:
        self._seat = self._turns.take_seat(self._key)
        return self._seat

    def __exit__(self, kind: "type[BaseException] | None", error: object, trace: object) -> None:
        self._turns.leave_seat(self._seat)
        if self._seat.evicted and isinstance(error, asyncio.CancelledError):
            raise Busy from None


class Turn:
    """A request's turn with the engine of its model. Entering raises Busy, TurnEnded; leaving raises TurnEnded."""

    def __init__(self, turns: Turns, seat: Seat, model: str, deadline: float) -> None:
        self._turns, self._seat, self._model, self._deadline = turns, seat, model, deadline
        self._waiter: Waiter

    async def __aenter__(self) -> "Turn":
        self._waiter = await self._turns.take_turn(self._seat, self._model, self._deadline)
        return self

    async def retake(self, deadline: float) -> None:
        """Wait for another turn, because the engine failed. Raises Busy, TurnEnded."""
        self._turns.end_turn(self._waiter)
        self._waiter = await self._turns.take_turn(self._seat, self._model, deadline)

    async def __aexit__(self, kind: "type[BaseException] | None", error: object, trace: object) -> None:
        self._turns.end_turn(self._waiter)
        if self._seat.turn_ended and isinstance(error, asyncio.CancelledError):
            raise TurnEnded(self._model) from None
