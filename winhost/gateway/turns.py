"""Give turns to requests: models that share GPUs are awake in turn, and engines have a limited number of requests.

Each request takes a seat before its body is read, and with it a turn once its model is known. Wherever requests wait,
API keys take turns.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable

from .engine_control import EngineControl
from .engine_moves import EngineMoves
from .fair_line import FairLine, WaitedTooLong
from .gateway_metrics import TurnMetrics
from .gateway_settings import GatewaySettings, PublishedModel
from .gpu_group import GpuGroup
from .keeper_client import KeeperClient
from .turn_settings import gpu_groups
from .turn_state import Member, Seat, TurnEnded, TurnState, Waiter
from .yielding import Yielding

_READY = (
    TurnState.AWAKE,
    TurnState.DRAINING,
    TurnState.FALLING_ASLEEP,
    TurnState.ASLEEP,
    TurnState.SUSPENDED,
    TurnState.WAKING,
)
_LONGEST_S = 120


class Busy(Exception):
    """No turn comes soon enough. after: seconds until one may come."""

    def __init__(self, after: float = 5) -> None:
        super().__init__()
        self.after = max(1, min(_LONGEST_S, math.ceil(after)))


class Turns:
    """The turns of all models. running: the number of requests that engines have; yielding: whether something else
    wants the GPUs.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        control: Callable[[PublishedModel], EngineControl],
        keeper: "KeeperClient | None",
    ) -> None:
        self._limits = settings.limits
        self._seats: dict[Seat, None] = {}  # in the order in which they came
        self._line: FairLine[Waiter] = FairLine(self._begin)
        self.running = 0
        self._metrics = TurnMetrics()
        self.yielding = Yielding(settings.yields)
        self.yielding.changed = self._yielding_changed
        moves = EngineMoves(settings.turns, keeper, self._metrics, self.yielding)
        self._groups: dict[str, GpuGroup] = {}
        for names in gpu_groups(settings.taking_turns):
            models = [settings.models[name] for name in names]
            members = [Member(model.name, model.turns, control(model)) for model in models if model.turns]
            group = GpuGroup(members, settings.turns, moves, self._metrics, self._line.go_on, self.yielding)
            self._groups.update(dict.fromkeys(names, group))
        self._all_groups = tuple(dict.fromkeys(self._groups.values()))
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to move engines."""
        self._running = [asyncio.ensure_future(group.run()) for group in self._all_groups]
        self._running.append(asyncio.ensure_future(self.yielding.follow_file()))

    def stop(self) -> None:
        """Stop moving engines. They stay as they are."""
        for group in self._all_groups:
            group.stopped = True
        for task in self._running:
            task.cancel()

    @property
    def waiting(self) -> int:
        """The number of requests that still send their body or wait for an engine."""
        return sum(not seat.running for seat in self._seats)

    def until(self) -> float:
        """The time of the event loop until which a request that comes now may wait."""
        return asyncio.get_running_loop().time() + self._limits.hold

    def _yielding_changed(self, begins: bool) -> None:
        for group in self._all_groups:
            group.yielding_changed(begins)

    # ---- requests

    def take_seat(self, key: str) -> Seat:
        """Take a seat for one request of this key, before its body is read. Raises Busy."""
        task = asyncio.current_task()
        assert task
        if len(self._seats) >= self._limits.requests + self._limits.waiting:
            self._make_room(key)
        seat = Seat(key, task)
        self._seats[seat] = None
        return seat

    def leave_seat(self, seat: Seat) -> None:
        self._seats.pop(seat, None)

    def _make_room(self, key: str) -> None:
        """Free a seat, or raise Busy. The key with the most waiting requests loses its newest one to a key with fewer.
        A stream that waits for its engine to start again keeps its seat, because its client has a part of it.
        """
        waiting = Counter(seat.key for seat in self._seats if not (seat.running or seat.begun))
        most = max(waiting, key=lambda each: waiting[each], default=key)
        if waiting[most] <= waiting[key] + 1:
            raise Busy
        newest = next(seat for seat in reversed(self._seats) if seat.key == most and not (seat.running or seat.begun))
        del self._seats[newest]
        newest.put_out = True
        newest.task.cancel()

    async def take_turn(self, seat: Seat, model: str, until: float) -> Waiter:
        """Wait for a turn with this model's engine. Raises Busy, TurnEnded."""
        group = self._groups.get(model)
        if self.yielding.asked:
            raise TurnEnded(model)
        loop = asyncio.get_running_loop()
        asleep = group is not None and not group.awake(model)
        waiter = Waiter(seat.key, seat, model, loop.time(), asleep)
        try:
            if group:
                group.joined(waiter)
            await self._line.wait(waiter, until)
        except WaitedTooLong:
            busy = Busy(group.expected(model) if group else 5)
            self.end_turn(waiter)
            raise busy from None
        except BaseException as error:
            self.end_turn(waiter)
            if seat.ended and isinstance(error, asyncio.CancelledError):
                raise TurnEnded(model) from None
            raise
        return waiter

    def end_turn(self, waiter: Waiter) -> None:
        if waiter.seat.running:
            waiter.seat.running = False
            self.running -= 1
        if group := self._groups.get(waiter.model):
            group.left(waiter)
        self._line.go_on()

    def _begin(self, waiter: Waiter) -> "bool | None":
        if self.running >= self._limits.requests:
            return None
        group = self._groups.get(waiter.model)
        if group:
            if not group.awake(waiter.model):
                return False
            group.began(waiter)
        waiter.seat.running = True
        self.running += 1
        return True

    def not_up(self, model: str) -> bool:
        """Note that no engine listened. Returns whether the request may ask for a turn again."""
        if group := self._groups.get(model):
            group.not_up(model)
        return group is not None

    def doubt(self, model: str) -> None:
        """Note that the engine failed a request."""
        if group := self._groups.get(model):
            group.doubt(model)

    def died(self, model: str) -> None:
        """Note that the engine ended or hangs."""
        if group := self._groups.get(model):
            group.died(model)

    # ---- what is known of them

    def takes_turns(self, model: str) -> bool:
        return model in self._groups

    def ready(self, model: str) -> bool:
        """Tell whether a model is awake, or off its GPUs because others have their turn."""
        member = self._members()[model]
        stopped = member.state is TurnState.DOWN and not (member.sleeps or member.resident or member.failures)
        return stopped or member.state in _READY

    @property
    def on_gpus(self) -> list[str]:
        """The models that take turns and are still on their GPUs."""
        return [name for name, member in self._members().items() if member.on_the_gpu]

    def _members(self) -> "dict[str, Member]":
        return {name: group.members[name] for name, group in self._groups.items()}

    def metrics(self) -> Iterable[str]:
        """The metrics for Prometheus; none where no model takes turns."""
        members = self._members()
        if not members:
            return ()
        counts = {
            "model_requests_waiting": {name: len(member.waiting) for name, member in members.items()},
            "model_requests_running": {name: len(member.running) for name, member in members.items()},
        }
        return self._metrics.lines({name: member.state.value for name, member in members.items()}, counts)


# These are classes because a generator as a context manager costs as much as reading the head of a request.
class Seated:
    """A seat for one request of this key. Entering raises Busy; leaving does so if another key's request took it."""

    def __init__(self, turns: Turns, key: str) -> None:
        self._turns, self._key = turns, key
        self._seat: Seat

    def __enter__(self) -> Seat:
        self._seat = self._turns.take_seat(self._key)
        return self._seat

    def __exit__(self, kind: "type[BaseException] | None", error: object, trace: object) -> None:
        self._turns.leave_seat(self._seat)
        if self._seat.put_out and isinstance(error, asyncio.CancelledError):
            raise Busy from None


class Turn:
    """A request's turn with the engine of its model. Entering raises Busy, TurnEnded; leaving raises TurnEnded."""

    def __init__(self, turns: Turns, seat: Seat, model: str, until: float) -> None:
        self._turns, self._seat, self._model, self._until = turns, seat, model, until
        self._waiter: Waiter

    async def __aenter__(self) -> "Turn":
        self._waiter = await self._turns.take_turn(self._seat, self._model, self._until)
        return self

    async def anew(self, until: float) -> None:
        """Wait for another turn, because the engine failed. Raises Busy, TurnEnded."""
        self._turns.end_turn(self._waiter)
        self._waiter = await self._turns.take_turn(self._seat, self._model, until)

    async def __aexit__(self, kind: "type[BaseException] | None", error: object, trace: object) -> None:
        self._turns.end_turn(self._waiter)
        if self._seat.ended and isinstance(error, asyncio.CancelledError):
            raise TurnEnded(self._model) from None
