"""Whose turn it is: models that share GPUs are awake in turn, and so many requests at a time are with engines.

`turn` is asked before each request, with its model.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext

from .card_group import CardGroup, NoTurn
from .engine_control import EngineControl
from .engine_moves import EngineMoves, Keeper
from .gateway_metrics import TurnMetrics
from .gateway_settings import GatewaySettings, PublishedModel
from .turn_settings import card_groups
from .turn_state import Member, Seat, TurnState

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
    """No turn comes soon enough. after: seconds until one may."""

    def __init__(self, model: str, after: float = 5) -> None:
        super().__init__(model)
        self.after = max(1, min(_LONGEST_S, math.ceil(after)))


class Turns:
    """Of all models. running, waiting: how many requests are with engines, and wait for it."""

    def __init__(
        self, settings: GatewaySettings, control: Callable[[PublishedModel], EngineControl], keeper: "Keeper | None"
    ) -> None:
        self._limits = settings.limits
        self._free = asyncio.Semaphore(settings.limits.requests)
        self.running = self.waiting = 0
        self._metrics = TurnMetrics()
        moves = EngineMoves(settings.turns, keeper, self._metrics)
        self._groups: dict[str, CardGroup] = {}
        for names in card_groups(settings.taking_turns):
            models = [settings.models[name] for name in names]
            members = [Member(model.name, model.turns, control(model)) for model in models if model.turns]
            group = CardGroup(members, settings.turns, moves, self._metrics)
            self._groups.update(dict.fromkeys(names, group))
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """From now on engines are moved."""
        self._running = [asyncio.ensure_future(group.run()) for group in dict.fromkeys(self._groups.values())]

    def stop(self) -> None:
        """Engines stay as they are."""
        for group in self._groups.values():
            group.stopped = True
        for task in self._running:
            task.cancel()

    def until(self) -> float:
        """The time of the event loop until which a request that comes now may wait."""
        return asyncio.get_running_loop().time() + self._limits.hold

    @asynccontextmanager
    async def turn(self, model: str, until: float) -> AsyncIterator[Seat | None]:
        """For one request to this model. Raises Busy, TurnEnded."""
        group = self._groups.get(model)
        awake = group is None or group.at_once(model)
        if self.waiting >= self._limits.waiting and (self._free.locked() or not awake):
            raise Busy(model, group.expected(model) if group else 5)
        self.waiting += 1
        waits = True
        try:
            async with group.seat(model, until) if group else nullcontext() as seat:
                await self._place(model, until)
                self.waiting, self.running, waits = self.waiting - 1, self.running + 1, False
                yield seat
        except NoTurn:
            raise Busy(model, group.expected(model) if group else 5) from None
        finally:
            if waits:
                self.waiting -= 1
            else:
                self.running -= 1
                self._free.release()

    async def _place(self, model: str, until: float) -> None:
        if not self._free.locked():  # at once: in a burst, whoever need not wait must not be counted with those who do
            await self._free.acquire()
            return
        try:
            await asyncio.wait_for(self._free.acquire(), max(0.01, until - asyncio.get_running_loop().time()))
        except asyncio.TimeoutError:  # another class before Python 3.11
            raise Busy(model) from None

    def not_up(self, model: str) -> bool:
        """A request found nobody listening. Whether it may ask for a turn again."""
        if group := self._groups.get(model):
            group.not_up(model)
        return group is not None

    def doubt(self, model: str) -> None:
        """An engine let a request down."""
        if group := self._groups.get(model):
            group.doubt(model)

    def takes_turns(self, model: str) -> bool:
        return model in self._groups

    def ready(self, model: str) -> bool:
        """Whether it is awake, or is by its turn not."""
        member = self._members()[model]
        at_rest = member.state is TurnState.DOWN and not member.sleeps and not member.failures
        return at_rest or member.state in _READY

    def _members(self) -> "dict[str, Member]":
        return {name: group.members[name] for name, group in self._groups.items()}

    def metrics(self) -> Iterable[str]:
        """For Prometheus. Nothing where no model takes turns."""
        members = self._members()
        if not members:
            return ()
        counts = {
            "model_requests_waiting": {name: len(member.waiting) for name, member in members.items()},
            "model_requests_running": {name: len(member.running) for name, member in members.items()},
        }
        return self._metrics.lines({name: member.state.value for name, member in members.items()}, counts)
