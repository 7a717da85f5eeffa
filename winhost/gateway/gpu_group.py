"""Models that share GPUs: one queue of requests, and one task that moves the engines, one after another.

A request to a model that is awake goes on at once. Others wait. API keys take turns, and the longest waiting request of
the key whose turn it is decides which model comes next. The models in its way stay for their minimum time, finish their
requests and leave the GPU, the least recently used first. The settings can let all models leave their GPUs after some
time without requests.
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
_QUIET_S = 2.0  # without requests, before anything is done that no request waits for
_WATCH_S = 15.0
_CUT_S = 5.0  # for requests whose time is over
_AGAIN_S = 1.0
_LEAST_S = 0.01


class GpuGroup:
    """The models of one group. `run` goes on for as long as the gateway does. awoke: called when requests to one of
    them may begin.
    """

    def __init__(
        self,
        members: "list[Member]",
        limits: TurnLimits,
        moves: EngineMoves,
        metrics: TurnMetrics,
        awoke: Callable[[], None],
        yielding: Yielding,
    ) -> None:
        self.members = {member.name: member for member in members}
        self._limits, self._moves, self._metrics, self._awoke = limits, moves, metrics, awoke
        self._yielding = yielding
        self._chose: dict[str, float] = {}  # when a request of a key last said which model comes next
        self._changed = asyncio.Event()
        self._began = self._watched = float("-inf")
        self.stopped = False

    # ---- requests

    def awake(self, name: str) -> bool:
        return self.members[name].state is TurnState.AWAKE

    def joined(self, waiter: Waiter) -> None:
        """Note that a request begins to wait."""
        self.members[waiter.model].waiting.append(waiter)
        self._changed.set()

    def began(self, waiter: Waiter) -> None:
        """Note that a request goes to its engine."""
        member = self.members[waiter.model]
        member.waiting.remove(waiter)
        member.running.add(waiter.seat)
        if waiter.asleep:
            self._metrics.held.add(member.name, loop_time() - waiter.since)

    def left(self, waiter: Waiter) -> None:
        """Note that a request neither waits nor runs any more."""
        member = self.members[waiter.model]
        if waiter in member.waiting:
            member.waiting.remove(waiter)
        if waiter.seat in member.running:
            member.running.discard(waiter.seat)
            member.last_use = loop_time()
        self._changed.set()

    def not_up(self, name: str) -> None:
        """Note that nothing listened where the engine should be."""
        if self.members[name].state is TurnState.AWAKE:
            self.members[name].state = TurnState.DOWN
            self._changed.set()

    def doubt(self, name: str) -> None:
        """Note that the engine took a request and failed it."""
        member = self.members[name]
        if member.state is TurnState.AWAKE:  # in other states it is checked anyway
            member.doubted, member.state = True, TurnState.CHECKING
            self._changed.set()

    def died(self, name: str) -> None:
        """Note that the engine ended or hangs."""
        member = self.members[name]
        if member.state is TurnState.DRAINING:
            member.dead = True
            self._changed.set()
        elif member.state is TurnState.AWAKE or member.doubted:
            member.dead = True
            member.doubted, member.state = True, TurnState.CHECKING
            self._changed.set()

    def expected(self, name: str) -> float:
        """Seconds until a new request may find this model awake, if others stay and it takes as long as last time."""
        ahead = [m for m in self.members.values() if m.state is TurnState.AWAKE and m.name != name]
        stay = max([0.0, *(member.stays_until - loop_time() for member in ahead)]) + self._limits.stay
        return stay + self._metrics.last_move(name)

    def yielding_changed(self, begins: bool) -> None:
        """Look again who wants the GPUs. begins: something else begins to want them, which ends requests that wait."""
        for member in self.members.values() if begins else ():
            for waiter in tuple(member.waiting):
                waiter.seat.end()
        self._changed.set()

    # ---- turns

    async def run(self) -> None:
        """Move engines, one after another."""
        self._began = loop_time()
        while not self.stopped:
            self._changed.clear()
            try:
                pause = await (self._give_way() if self._yielding.asked else self._step())
            except Exception as error:  # noqa: BLE001 - whatever it was, requests wait for the next step
                _LOG.error("turns: %s", type(error).__name__)
                pause = _AGAIN_S
            if pause is not None:
                await self._pause(max(_LEAST_S, pause))

    async def _pause(self, seconds: float) -> None:
        """Wait until something changes, for at most this many seconds."""
        timer = asyncio.get_running_loop().call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    async def _step(self) -> "float | None":
        """Make one move. Returns how many seconds there is nothing to do unless something changes; None if there may be
        something to do at once.
        """
        await self._look_at_those_in_doubt()
        chosen = self._chosen()
        if chosen is None:
            return None if await self._resident_up() else await self._idle()
        target = self.members[chosen.model]
        if not await self._moves.can_rise(target):
            return None
        for member in (leaving := self._in_the_way(target)):
            if member.state is TurnState.AWAKE and member.stays_until > loop_time():
                return member.stays_until - loop_time()
        for member in leaving:
            if not await self._leave(member, lambda: bool(target.waiting)):
                return None
        self._chose[chosen.key] = loop_time()
        await self._bring_up(target, asked=True)
        return None

    async def _look_at_those_in_doubt(self) -> None:
        for member in self.members.values():
            if member.state is TurnState.UNKNOWN:
                await self._moves.look(member)
            if member.doubted and await self._moves.alive(member):
                self._admit(member)

    def _chosen(self) -> "Waiter | None":
        """The request whose model comes next: the longest waiting one of the key that chose longest ago. Models that
        have just failed are passed over.
        """
        now = loop_time()
        able = [m for m in self.members.values() if m.state is not TurnState.AWAKE and m.not_before <= now]
        asked = (waiter for member in able for waiter in member.waiting)
        return min(asked, key=lambda each: (self._chose.get(each.key, float("-inf")), each.since), default=None)

    def _in_the_way(self, target: Member) -> "list[Member]":
        """The fewest members that have to leave, first those whose time is over and that were used least recently."""
        everyone = list(self.members.values())
        if target.resident:
            return []
        staying = [m for m in everyone if m.on_the_gpu and m is not target and not m.resident]
        now, leaving = loop_time(), []
        for member in sorted(staying, key=lambda m: (m.stays_until > now, bool(m.running), m.last_use)):
            if fits([*(m for m in staying if m not in leaving), target], everyone, self._limits.memory):
                break
            if set(member.turns.gpus) & set(target.turns.gpus):
                leaving.append(member)
        for member in tuple(leaving):
            without = [m for m in staying if m not in leaving or m is member]
            if fits([*without, target], everyone, self._limits.memory):
                leaving.remove(member)
        return leaving

    async def _leave(self, member: Member, wanted: Callable[[], bool]) -> bool:
        """Take a member off the GPU once its requests have ended. Returns whether it left: it stays if that is no
        longer wanted or could not be done.
        """
        if member.state is TurnState.AWAKE:
            member.state = TurnState.DRAINING
            if not await self._drained(member, wanted):
                if member.dead:
                    member.doubted, member.state = True, TurnState.CHECKING
                else:
                    self._admit(member)
                return False
        await self._moves.leave_gpu(member)
        if member.on_the_gpu:
            await asyncio.sleep(_AGAIN_S)
        return not member.on_the_gpu

    async def _drained(self, member: Member, wanted: Callable[[], bool]) -> bool:
        until, cut = loop_time() + self._limits.drain, False
        while member.running:
            if self._yielding.asked and not cut:
                until = self._yielding.cut_at
            if not wanted() and not cut:
                return False
            if loop_time() >= until and cut:
                member.running.clear()  # their tasks were cancelled, and do not end
            elif loop_time() >= until:
                _LOG.warning("%s: %d requests are broken off: its turn is over", member.name, len(member.running))
                for seat in tuple(member.running):
                    seat.end()
                until, cut = loop_time() + _CUT_S, True
            self._changed.clear()
            if member.running:
                await self._pause(max(0.0, until - loop_time()))
        return True

    async def _bring_up(self, member: Member, asked: bool = False) -> None:
        asleep = [m for m in self.members.values() if m.state in (TurnState.ASLEEP, TurnState.SUSPENDED)]
        if await self._moves.rise(member, [m for m in asleep if m is not member]):
            self._admit(member)
            if asked:  # a client that gave up waiting has this long to come again
                member.last_use = loop_time()

    def _admit(self, member: Member) -> None:
        """Let the requests go on that wait for this model, which is awake."""
        member.state = TurnState.AWAKE
        if member.waiting:
            member.stays_until = loop_time() + self._limits.stay
        self._awoke()

    # ---- while nobody waits

    async def _idle(self) -> "float | None":
        """Make a move while no request waits. Returns as `_step` does."""
        now = loop_time()
        waiting = [m.not_before - now for m in self.members.values() if m.waiting and m.state is not TurnState.AWAKE]
        if waiting:  # for a model that failed just now
            return min(waiting)
        quiet = now - max(m.last_use for m in self.members.values())
        if quiet < _QUIET_S or any(m.running or m.waiting for m in self.members.values()):
            return _QUIET_S
        if await self._one_too_many() or await self._prepare() or await self._take_image():
            return None
        left = self._until_idle()
        if await (self._keep_one_up() if left > 0 else self._release_one()):
            return None
        if (now := loop_time()) - self._watched < _WATCH_S:
            pauses = (m.not_before - now for m in self.members.values())
            ahead = (self._watched + _WATCH_S - now, left, *pauses)
            return min((each for each in ahead if each > 0), default=0.0)  # rounding may leave 0 of the first
        self._watched = now
        for member in self.members.values():
            if member.state in (TurnState.AWAKE, TurnState.ASLEEP, TurnState.DOWN, TurnState.FAILED):
                await self._moves.look(member)
        return None

    async def _give_way(self) -> "float | None":
        """Make a move while something else wants the GPUs: all models leave them. Returns as `_step` does."""
        now = loop_time()
        look = now - self._watched >= _WATCH_S  # somebody else may start one
        for member in self.members.values():
            member.doubted = False  # it is checked when it wakes
            if member.state is TurnState.UNKNOWN or (look and member.state in (TurnState.ASLEEP, TurnState.DOWN)):
                await self._moves.look(member)
        self._watched = now if look else self._watched
        able = [m for m in self.members.values() if m.on_the_gpu and m.not_before <= now]
        for member in able:
            if not self._yielding.asked:
                return None
            if await self._leave(member, lambda: self._yielding.asked):
                await self._moves.see_released(member)
            elif self._yielding.asked:
                member.not_before = loop_time() + _WATCH_S
        if able:
            return None
        pauses = [m.not_before - loop_time() for m in self.members.values() if m.on_the_gpu]
        return min([self._watched + _WATCH_S - loop_time(), self._yielding.left, *pauses])

    async def _one_too_many(self) -> bool:
        """Take one model off if more are up than fit: somebody else started or woke it, or did before this program
        began.
        """
        up = [m for m in self._taking_turns if m.on_the_gpu]
        if fits(up, list(self.members.values()), self._limits.memory):
            return False
        leaving = min(up, key=lambda member: (member.state is TurnState.AWAKE, member.last_use))
        return await self._leave(leaving, lambda: True)

    async def _prepare(self) -> bool:
        """Bring each engine up and let it sleep once: the first sleep takes many times as long as later ones."""
        for member in self.members.values():
            if (
                (len(self._taking_turns) == 1 and self._limits.idle is None and not member.turns.image)
                or member.prepared
                or not member.sleeps
                or member.not_before > loop_time()
            ):
                continue
            if member.failures and self._until_idle() <= 0:
                continue  # until somebody asks for it
            if member.state is TurnState.AWAKE:
                await self._leave(member, lambda: True)
                return True
            if member.state is TurnState.CHECKING or (member.state is TurnState.DOWN and member.turns.unit):
                return await self._bring_up_quietly(member)
            if member.state is TurnState.ASLEEP:
                member.prepared = True
        return False

    async def _take_image(self) -> bool:
        """Take a missing image while nobody waits: for some seconds the model's engine is not there."""
        for member in self.members.values():
            if member.turns.image and member.state is TurnState.SUSPENDED and member.imaged is None:
                await self._moves.take_image(member)
                return True
        return False

    @property
    def _taking_turns(self) -> "list[Member]":
        return [member for member in self.members.values() if not member.resident]

    async def _resident_up(self) -> bool:
        """Bring up a model that never leaves its GPUs and is down."""
        gone = (TurnState.DOWN, TurnState.CHECKING)
        found = [m for m in self.members.values() if m.resident and m.state in gone and m.not_before <= loop_time()]
        if not found or not await self._moves.can_rise(found[0]):
            return False
        await self._bring_up(found[0])
        return True

    async def _keep_one_up(self) -> bool:
        """Bring up the model that was used last if none is on the GPUs; else check one that is up unchecked."""
        able = [m for m in self._taking_turns if m.not_before <= loop_time()]
        if any(m.on_the_gpu for m in self._taking_turns):
            able = [m for m in able if m.state is TurnState.CHECKING]
        able = [m for m in able if m.turns.unit or m.state is not TurnState.DOWN]
        member = max(able, key=lambda each: each.last_use, default=None)
        return member is not None and await self._bring_up_quietly(member)

    def _until_idle(self) -> float:
        """Seconds without requests after which the models leave their GPUs."""
        if self._limits.idle is None:
            return math.inf
        return max(self._began, *(m.last_use for m in self.members.values())) + self._limits.idle - loop_time()

    async def _release_one(self) -> bool:
        """Take one model off its GPUs; those that nobody could stop before come last."""
        able = [m for m in self._taking_turns if m.on_the_gpu and m.not_before <= loop_time()]
        member = min(able, key=lambda each: each.state is TurnState.FAILED, default=None)
        if member is None or not await self._leave(member, lambda: True):
            return False
        await self._moves.see_released(member)
        return True

    async def _bring_up_quietly(self, member: Member) -> bool:
        leaving = self._in_the_way(member)
        for each in leaving:
            await self._leave(each, lambda: True)
        if any(each.on_the_gpu for each in leaving):
            return False
        await self._bring_up(member)
        return True
