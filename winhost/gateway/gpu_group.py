"""Models that share GPUs: one queue of requests, and one task that moves the engines, one after another.

A request to a model that is awake goes to its engine at once. Others wait. API keys take turns, and the longest waiting
request of the key whose turn it is decides which model is activated next. The models in its way stay for their minimum
time, finish their requests and leave the GPU, the least recently used first. The settings can let all models leave
their GPUs after some time without requests.
"""

import asyncio
import logging
import math
from collections.abc import Callable

from .engine_moves import EngineMoves
from .gateway_metrics import TurnMetrics
from .turn_settings import TurnLimits
from .turn_state import Member, TurnState, Waiter, fits
from .yielding import Yielding, loop_time

_LOG = logging.getLogger("gateway")
_QUIET_S = 2.0  # without requests, before a move that no request waits for
_WATCH_S = 15.0  # between checks of engines that nobody uses
_CANCEL_S = 5.0  # for requests that were cancelled
_RETRY_S = 1.0
_MIN_PAUSE_S = 0.01


class GpuGroup:
    """The models of one group. `run` runs until the gateway stops. on_awake: called when requests to one of them can
    start.
    """

    def __init__(
        self,
        members: "list[Member]",
        limits: TurnLimits,
        moves: EngineMoves,
        metrics: TurnMetrics,
        on_awake: Callable[[], None],
        yielding: Yielding,
    ) -> None:
        self.members = {member.name: member for member in members}
        self._limits, self._moves, self._metrics, self._on_awake = limits, moves, metrics, on_awake
        self._yielding = yielding
        self._last_choice: dict[str, float] = {}  # when a request of a key last decided which model comes next
        self._changed = asyncio.Event()
        self._started_at = self._last_watch = float("-inf")
        self.stopped = False

    # ---- requests

    def is_awake(self, name: str) -> bool:
        return self.members[name].state is TurnState.AWAKE

    def add_waiter(self, waiter: Waiter) -> None:
        """Note that a request begins to wait."""
        self.members[waiter.model].waiting.append(waiter)
        self._changed.set()

    def start_request(self, waiter: Waiter) -> None:
        """Note that a request goes to its engine."""
        member = self.members[waiter.model]
        member.waiting.remove(waiter)
        member.running.add(waiter.seat)
        if waiter.was_asleep:
            self._metrics.held_requests.add(member.name, loop_time() - waiter.since)

    def remove_request(self, waiter: Waiter) -> None:
        """Note that a request neither waits nor runs any more."""
        member = self.members[waiter.model]
        if waiter in member.waiting:
            member.waiting.remove(waiter)
        if waiter.seat in member.running:
            member.running.discard(waiter.seat)
            member.last_used = loop_time()
        self._changed.set()

    def note_unreachable(self, name: str) -> None:
        """Note that no process listened at the engine's address."""
        if self.members[name].state is TurnState.AWAKE:
            self.members[name].state = TurnState.DOWN
            self._changed.set()

    def note_failure(self, name: str) -> None:
        """Note that the engine failed a request."""
        member = self.members[name]
        if member.state is TurnState.AWAKE:  # in other states it is checked anyway
            member.needs_check, member.state = True, TurnState.CHECKING
            self._changed.set()

    def note_death(self, name: str) -> None:
        """Note that the engine ended or hangs."""
        member = self.members[name]
        if member.state is TurnState.DRAINING:
            member.is_dead = True
            self._changed.set()
        elif member.state is TurnState.AWAKE or member.needs_check:
            member.is_dead = True
            member.needs_check, member.state = True, TurnState.CHECKING
            self._changed.set()

    def expected_wait(self, name: str) -> float:
        """Estimate the seconds until this model is awake: other models stay for their minimum time, and its move takes
        as long as the last one.
        """
        ahead = [m for m in self.members.values() if m.state is TurnState.AWAKE and m.name != name]
        stay = max([0.0, *(member.stays_until - loop_time() for member in ahead)]) + self._limits.stay
        return stay + self._metrics.last_move(name)

    def handle_yield_change(self, is_new: bool) -> None:
        """Check again whether the GPUs are requested. is_new: they are from now on, which ends requests that wait."""
        for member in self.members.values() if is_new else ():
            for waiter in tuple(member.waiting):
                waiter.seat.end()
        self._changed.set()

    # ---- turns

    async def run(self) -> None:
        """Move engines, one after another."""
        self._started_at = loop_time()
        while not self.stopped:
            self._changed.clear()
            try:
                pause = await (self._yield_step() if self._yielding.is_requested else self._step())
            except Exception as error:  # noqa: BLE001 - requests wait for the next step
                _LOG.error("turns: %s", type(error).__name__)
                pause = _RETRY_S
            if pause is not None:
                await self._pause(max(_MIN_PAUSE_S, pause))

    async def _pause(self, seconds: float) -> None:
        """Wait until something changes, for up to this many seconds."""
        timer = asyncio.get_running_loop().call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    async def _step(self) -> "float | None":
        """Make one move. Return the seconds after which there is something to do even if nothing changes; None: at
        once.
        """
        await self._check_doubtful()
        chosen = self._choose_waiter()
        if chosen is None:
            return None if await self._activate_resident() else await self._idle_step()
        target = self.members[chosen.model]
        if not await self._moves.can_activate(target):
            return None
        for member in (leaving := self._members_to_release(target)):
            if member.state is TurnState.AWAKE and member.stays_until > loop_time():
                return member.stays_until - loop_time()
        for member in leaving:
            if not await self._release(member, lambda: bool(target.waiting)):
                return None
        self._last_choice[chosen.key] = loop_time()
        await self._activate(target, is_requested=True)
        return None

    async def _check_doubtful(self) -> None:
        for member in self.members.values():
            if member.state is TurnState.UNKNOWN:
                await self._moves.refresh_state(member)
            if member.needs_check and await self._moves.check_alive(member):
                self._admit_requests(member)

    def _choose_waiter(self) -> "Waiter | None":
        """Choose the request whose model comes next: the longest waiting one of the key whose last choice is oldest.
        Models that have just failed are skipped.
        """
        now = loop_time()
        candidates = [m for m in self.members.values() if m.state is not TurnState.AWAKE and m.retry_at <= now]
        waiters = (waiter for member in candidates for waiter in member.waiting)
        return min(waiters, key=lambda each: (self._last_choice.get(each.key, float("-inf")), each.since), default=None)

    def _members_to_release(self, target: Member) -> "list[Member]":
        """Choose the fewest members that have to leave for the target: first those whose minimum time is over, and of
        these the least recently used.
        """
        members = list(self.members.values())
        if target.resident:
            return []
        staying = [m for m in members if m.is_on_gpu and m is not target and not m.resident]
        now, leaving = loop_time(), []
        for member in sorted(staying, key=lambda m: (m.stays_until > now, bool(m.running), m.last_used)):
            if fits([*(m for m in staying if m not in leaving), target], members, self._limits.memory):
                break
            if set(member.turns.gpus) & set(target.turns.gpus):
                leaving.append(member)
        for member in tuple(leaving):
            remaining = [m for m in staying if m not in leaving or m is member]
            if fits([*remaining, target], members, self._limits.memory):
                leaving.remove(member)
        return leaving

    async def _release(self, member: Member, is_wanted: Callable[[], bool]) -> bool:
        """Take a member off its GPUs once its requests have ended. Return whether it left. It stays if `is_wanted`
        returns False meanwhile, or if the engine cannot be moved.
        """
        if member.state is TurnState.AWAKE:
            member.state = TurnState.DRAINING
            if not await self._drain(member, is_wanted):
                if member.is_dead:
                    member.needs_check, member.state = True, TurnState.CHECKING
                else:
                    self._admit_requests(member)
                return False
        await self._moves.release_gpus(member)
        if member.is_on_gpu:
            await asyncio.sleep(_RETRY_S)
        return not member.is_on_gpu

    async def _drain(self, member: Member, is_wanted: Callable[[], bool]) -> bool:
        deadline, cancelled = loop_time() + self._limits.drain, False
        while member.running:
            if self._yielding.is_requested and not cancelled:
                deadline = self._yielding.cut_at
            if not is_wanted() and not cancelled:
                return False
            if loop_time() >= deadline and cancelled:
                member.running.clear()  # their tasks were cancelled, but do not end
            elif loop_time() >= deadline:
                _LOG.warning("%s: %d requests are broken off: its turn is over", member.name, len(member.running))
                for seat in tuple(member.running):
                    seat.end()
                deadline, cancelled = loop_time() + _CANCEL_S, True
            self._changed.clear()
            if member.running:
                await self._pause(max(0.0, deadline - loop_time()))
        return True

    async def _activate(self, member: Member, is_requested: bool = False) -> None:
        asleep = [m for m in self.members.values() if m.state in (TurnState.ASLEEP, TurnState.SUSPENDED)]
        if await self._moves.activate(member, [m for m in asleep if m is not member]):
            self._admit_requests(member)
            if is_requested:  # a client that stopped waiting can still come again
                member.last_used = loop_time()

    def _admit_requests(self, member: Member) -> None:
        """Mark a model as awake, and start the requests that wait for it."""
        member.state = TurnState.AWAKE
        if member.waiting:
            member.stays_until = loop_time() + self._limits.stay
        self._on_awake()

    # ---- while no request waits

    async def _idle_step(self) -> "float | None":
        """Make a move while no request waits. Return what `_step` does."""
        now = loop_time()
        waiting = [m.retry_at - now for m in self.members.values() if m.waiting and m.state is not TurnState.AWAKE]
        if waiting:  # for a model that failed just now
            return min(waiting)
        quiet = now - max(m.last_used for m in self.members.values())
        if quiet < _QUIET_S or any(m.running or m.waiting for m in self.members.values()):
            return _QUIET_S
        if await self._release_excess() or await self._prepare_one() or await self._take_image():
            return None
        until_idle = self._seconds_until_idle()
        if await (self._keep_one_active() if until_idle > 0 else self._release_one()):
            return None
        if (now := loop_time()) - self._last_watch < _WATCH_S:
            pauses = (m.retry_at - now for m in self.members.values())
            ahead = (self._last_watch + _WATCH_S - now, until_idle, *pauses)
            return min((each for each in ahead if each > 0), default=0.0)  # the first can be rounded to 0
        self._last_watch = now
        for member in self.members.values():
            if member.state in (TurnState.AWAKE, TurnState.ASLEEP, TurnState.DOWN, TurnState.FAILED):
                await self._moves.refresh_state(member)
        return None

    async def _yield_step(self) -> "float | None":
        """Make a move while the GPUs are requested for something else: all models leave them. Returns as
        `_step` does.
        """
        now = loop_time()
        refresh = now - self._last_watch >= _WATCH_S  # an engine may be started by others
        for member in self.members.values():
            member.needs_check = False  # an engine is checked when it wakes
            if member.state is TurnState.UNKNOWN or (refresh and member.state in (TurnState.ASLEEP, TurnState.DOWN)):
                await self._moves.refresh_state(member)
        self._last_watch = now if refresh else self._last_watch
        candidates = [m for m in self.members.values() if m.is_on_gpu and m.retry_at <= now]
        for member in candidates:
            if not self._yielding.is_requested:
                return None
            if await self._release(member, lambda: self._yielding.is_requested):
                await self._moves.check_released(member)
            elif self._yielding.is_requested:
                member.retry_at = loop_time() + _WATCH_S
        if candidates:
            return None
        pauses = [m.retry_at - loop_time() for m in self.members.values() if m.is_on_gpu]
        return min([self._last_watch + _WATCH_S - loop_time(), self._yielding.remaining_s, *pauses])

    async def _release_excess(self) -> bool:
        """Take one model off its GPUs if more are on them than fit. Others can start or wake an engine, also before the
        gateway starts.
        """
        active = [m for m in self._alternating if m.is_on_gpu]
        if fits(active, list(self.members.values()), self._limits.memory):
            return False
        leaving = min(active, key=lambda member: (member.state is TurnState.AWAKE, member.last_used))
        return await self._release(leaving, lambda: True)

    async def _prepare_one(self) -> bool:
        """Activate an engine that has not slept yet, and let it sleep once: the first sleep takes many times as long as
        later ones.
        """
        for member in self.members.values():
            if (
                (len(self._alternating) == 1 and self._limits.idle is None and not member.turns.image)
                or member.prepared
                or not member.can_sleep
                or member.retry_at > loop_time()
            ):
                continue
            if member.failures and self._seconds_until_idle() <= 0:
                continue  # until a request comes for it
            if member.state is TurnState.AWAKE:
                await self._release(member, lambda: True)
                return True
            if member.state is TurnState.CHECKING or (member.state is TurnState.DOWN and member.turns.unit):
                return await self._activate_idle(member)
            if member.state is TurnState.ASLEEP:
                member.prepared = True
        return False

    async def _take_image(self) -> bool:
        """Take a missing image while no request waits. The model's engine is down for some seconds."""
        for member in self.members.values():
            if member.turns.image and member.state is TurnState.SUSPENDED and member.has_image is None:
                await self._moves.take_image(member)
                return True
        return False

    @property
    def _alternating(self) -> "list[Member]":
        return [member for member in self.members.values() if not member.resident]

    async def _activate_resident(self) -> bool:
        """Activate a model that never leaves its GPUs and is down."""
        states = (TurnState.DOWN, TurnState.CHECKING)
        inactive = [m for m in self.members.values() if m.resident and m.state in states and m.retry_at <= loop_time()]
        if not inactive or not await self._moves.can_activate(inactive[0]):
            return False
        await self._activate(inactive[0])
        return True

    async def _keep_one_active(self) -> bool:
        """Activate the model that was used last if none is on the GPUs; else check one that is not checked yet."""
        candidates = [m for m in self._alternating if m.retry_at <= loop_time()]
        if any(m.is_on_gpu for m in self._alternating):
            candidates = [m for m in candidates if m.state is TurnState.CHECKING]
        candidates = [m for m in candidates if m.turns.unit or m.state is not TurnState.DOWN]
        member = max(candidates, key=lambda each: each.last_used, default=None)
        return member is not None and await self._activate_idle(member)

    def _seconds_until_idle(self) -> float:
        """Return the seconds until the models leave their GPUs if no request comes."""
        if self._limits.idle is None:
            return math.inf
        return max(self._started_at, *(m.last_used for m in self.members.values())) + self._limits.idle - loop_time()

    async def _release_one(self) -> bool:
        """Take one model off its GPUs. Models that could not be stopped before come last."""
        candidates = [m for m in self._alternating if m.is_on_gpu and m.retry_at <= loop_time()]
        member = min(candidates, key=lambda each: each.state is TurnState.FAILED, default=None)
        if member is None or not await self._release(member, lambda: True):
            return False
        await self._moves.check_released(member)
        return True

    async def _activate_idle(self, member: Member) -> bool:
        """Activate a model that no request waits for. Return whether the models in its way left."""
        leaving = self._members_to_release(member)
        for each in leaving:
            await self._release(each, lambda: True)
        if any(each.is_on_gpu for each in leaving):
            return False
        await self._activate(member)
        return True
