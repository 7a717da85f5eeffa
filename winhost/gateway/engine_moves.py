"""Bring an engine onto its GPUs or off them, and check that it did what it said. An engine that did not is stopped:
then nothing of it is left on the GPU, and it starts afresh at its next turn.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping

from .engine_control import FAULTS, WrongAnswer
from .gateway_metrics import TurnMetrics
from .keeper_client import KeeperClient, KeeperFault, NotThereYet
from .turn_settings import TurnLimits
from .turn_state import Member, TurnState
from .yielding import Yielding, loop_time

_LOG = logging.getLogger("gateway")
_BETWEEN_S = 0.1
_UP_S = 0.5  # between looks at an engine that starts
_LATER_S = 1.0
_LONGEST_PAUSE_S = 60.0
_MOST_OF_IT = 0.9  # of the memory: others take and free some meanwhile


class NotNow(KeeperFault):
    """The GPUs are wanted for something else, and a start takes too long to wait for its end."""


class EngineMoves:
    """Move the engines of a group one at a time: two that sleep, wake or start together on a GPU crash or mis-size
    memory.
    """

    def __init__(
        self, limits: TurnLimits, keeper: "KeeperClient | None", metrics: TurnMetrics, yielding: Yielding
    ) -> None:
        self._limits, self._keeper, self._metrics, self._yielding = limits, keeper, metrics, yielding

    # ---- off the GPU

    async def leave_gpu(self, member: Member) -> None:
        """Take a model without requests off its GPUs. Afterwards it is ASLEEP, SUSPENDED, DOWN or FAILED."""
        if member.state is TurnState.FAILED:
            await self.look(member)
        if not member.on_the_gpu:
            return
        if (
            member.dead or not member.sleeps or member.state is TurnState.FAILED
        ):  # a dead engine answers no call to sleep
            await self.stop(member, from_image=member.dead and member.imaged is True)
            return
        if member.turns.image and await self._has_image(member):
            await self.stop(member, from_image=True)
            return
        member.state = TurnState.FALLING_ASLEEP
        member.control.hang_up()
        before = await self._free()
        began = loop_time()
        try:
            await member.control.sleep(member.turns.level, self._limits.swap)
        except FAULTS as error:
            await self._give_up(member, "sleep", error)
            return
        took = self._metrics.slept if member.prepared else self._metrics.slept_first
        took.add(member.name, loop_time() - began)
        member.state, member.prepared = TurnState.ASLEEP, True
        gave = {gpu: free - before.get(gpu, free) for gpu, free in (await self._free()).items()}
        for gpu, mib in gave.items():  # it will need again what it freed
            member.freed_mib[gpu] = max(member.freed_mib.get(gpu, 0), mib)
        member.gave_back = all(gave.get(gpu, mib) >= mib * _MOST_OF_IT for gpu, mib in member.needs_mib().items())
        if member.turns.suspend:
            await self._suspend(member, before)

    async def _suspend(self, member: Member, awake: Mapping[int, int]) -> None:
        """Suspend a sleeping engine. awake: MiB that were free before it slept."""
        try:
            keeper, unit = self._unit(member)
            await keeper.suspend(unit)
            member.state = TurnState.SUSPENDED
            for gpu, free in (await self._free()).items():
                member.left_mib[gpu] = max(member.left_mib.get(gpu, 0), free - awake.get(gpu, free))
        except KeeperFault as error:
            _LOG.warning("%s sleeps and is not suspended: %s", member.name, error)

    async def take_image(self, member: Member) -> None:
        """Take an image of a suspended engine, which ends it: DOWN. If none can be taken, it stays SUSPENDED."""
        keeper, unit = self._unit(member)
        began = loop_time()
        try:
            await keeper.take_image(unit)
        except KeeperFault as error:
            member.imaged = False
            _LOG.warning("%s: no image of its process: %s", member.name, error)
            return
        self._metrics.imaged.add(member.name, loop_time() - began)
        _LOG.info("%s: its process was written to disk in %.1f s", member.name, loop_time() - began)
        member.state, member.imaged = TurnState.DOWN, True

    async def _has_image(self, member: Member) -> bool:
        if member.imaged is None:
            try:
                keeper, unit = self._unit(member)
                member.imaged = (await keeper.image(unit)).there or None
            except KeeperFault as error:
                _LOG.warning("%s: whether it has an image is not known: %s", member.name, error)
        return member.imaged is True

    async def stop(self, member: Member, *, from_image: bool = False) -> None:
        """Stop an engine. Afterwards it is DOWN, or FAILED if nobody may stop it. from_image: it starts from its image
        next, and answers then as it does now.
        """
        if not from_image:
            member.baseline, member.imaged = None, None
        member.doubted = False
        try:
            keeper, unit = self._unit(member)
            began = loop_time()
            member.control.hang_up()
            await (keeper.kill if member.dead else keeper.stop)(unit)
        except KeeperFault as error:
            member.state = TurnState.FAILED
            _LOG.error("%s cannot be stopped: %s", member.name, error)
            return
        self._metrics.stopped.add(member.name, loop_time() - began)
        member.state, member.prepared, member.dead = TurnState.DOWN, from_image, False

    def _unit(self, member: Member) -> "tuple[KeeperClient, str]":
        if self._keeper is None or member.turns.unit is None:
            raise KeeperFault("no unit is known for it")
        return self._keeper, member.turns.unit

    async def _give_up(self, member: Member, what: str, error: Exception) -> None:
        self._metrics.failed[member.name, what] += 1
        member.failures += 1
        member.not_before = loop_time() + min(_LONGEST_PAUSE_S, 2.0**member.failures - 2)  # the first time at once
        _LOG.error("%s: %s failed: %s %s", member.name, what, type(error).__name__, error)
        # An engine that ended is no evidence against its image.
        await self.stop(member, from_image=what == "answer" and member.imaged is True)

    # ---- onto the GPU

    async def can_rise(self, member: Member) -> bool:
        """Tell whether others have to make room for it: not if it is down and nobody here can start it."""
        if member.turns.unit is None and member.state in (TurnState.DOWN, TurnState.FAILED):
            await self.look(member)
            if member.state in (TurnState.DOWN, TurnState.FAILED):
                member.not_before = loop_time() + _LATER_S
                return False
        return True

    async def rise(self, member: Member, asleep: Collection[Member]) -> bool:
        """Start or wake an engine; True if it is awake then and answers as before. asleep: the other members of its
        group that sleep or are suspended.
        """
        what = "start"
        if member.state not in (TurnState.ASLEEP, TurnState.SUSPENDED):
            await self.look(member)
        if not await self._room(member, asleep):
            member.not_before = loop_time() + _LATER_S
            return False
        began, took, before = loop_time(), None, member.state
        try:
            if member.state in (TurnState.ASLEEP, TurnState.SUSPENDED):
                what, took = "wake", self._metrics.woken
                await self._wake(member)
            elif member.state is TurnState.DOWN:
                took = self._metrics.started
                await self._start(member)
            await self._check(member)
        except (*FAULTS, KeeperFault) as error:
            await self._did_not_rise(member, what, before, error)
            return False
        if member.imaged:
            await self._confirm_image(member)
        if took is not None:
            took.add(member.name, loop_time() - began)
            self._metrics.moved(member.name, loop_time() - began)
        member.failures, member.doubted, member.dead = 0, False, False
        return True

    async def _confirm_image(self, member: Member) -> None:
        """Confirm the image that an engine started from; an unconfirmed image is not used again."""
        try:
            keeper, unit = self._unit(member)
            await keeper.confirm_image(unit)
        except KeeperFault as error:
            _LOG.warning("%s: its image was not confirmed: %s", member.name, error)

    async def _did_not_rise(self, member: Member, what: str, before: TurnState, error: Exception) -> None:
        if isinstance(error, NotNow):
            await self.stop(member)
            return
        if not isinstance(error, NotThereYet):
            await self._give_up(member, what, error)
            return
        if not member.failures:
            _LOG.warning("%s: %s waits: %s", member.name, what, error)
        member.state, member.failures = before, member.failures or 1
        member.not_before = loop_time() + _LATER_S

    async def look(self, member: Member) -> None:
        """Find out the state of an engine. Afterwards it is ASLEEP, DOWN, AWAKE or FAILED as before, or CHECKING:
        somebody else brought it up.
        """
        try:
            if not await member.control.healthy():
                member.state = TurnState.DOWN
                if not member.imaged:
                    member.baseline, member.prepared = None, False
            elif member.state is TurnState.FAILED:
                return
            elif member.sleeps and await member.control.sleeping():
                member.state = TurnState.ASLEEP
            elif member.state is not TurnState.AWAKE:
                member.state, member.baseline, member.prepared = TurnState.CHECKING, None, False
        except FAULTS as error:
            await self._give_up(member, "look", error)

    async def _wake(self, member: Member) -> None:
        if member.state is TurnState.SUSPENDED:
            keeper, unit = self._unit(member)
            await keeper.resume(unit)
        member.state = TurnState.WAKING
        await member.control.wake(member.turns.level, self._limits.swap)

    async def _start(self, member: Member) -> None:
        keeper, unit = self._unit(member)
        member.state = TurnState.STARTING
        await keeper.start(unit)
        until = loop_time() + self._limits.start
        while not await member.control.healthy():
            if self._yielding.asked:
                raise NotNow("its GPUs are wanted for something else")
            if loop_time() >= until:
                raise WrongAnswer("it did not come up in time")
            if not await keeper.runs(unit):
                raise WrongAnswer("its unit ended before it answered")
            await asyncio.sleep(_UP_S)
        if not member.turns.image:
            return
        if (await keeper.image(unit)).used:  # it is asleep and off its GPU, as when its image was taken
            member.state, member.imaged = TurnState.SUSPENDED, True
            await self._wake(member)
        else:  # a cold start after all: another process, whose kernels may give other answers
            member.baseline, member.prepared, member.imaged = None, False, None

    async def _check(self, member: Member) -> None:
        """Check that it answers as before it slept. Raises one of FAULTS."""
        if member.state is TurnState.FAILED:
            raise WrongAnswer("it failed before, and nobody restarted it")
        if not member.sleeps:
            await member.control.answers()
            return
        for _ in range(2):
            found = await member.control.canary()
            if member.baseline in (None, found):
                member.baseline = found
                return
        raise WrongAnswer("it answers differently than before it slept")

    async def alive(self, member: Member) -> bool:
        """Tell whether an engine that failed a request still answers. If not, it is stopped."""
        member.doubted = False
        try:
            if member.dead:
                raise WrongAnswer("it ended, or it hangs")
            await member.control.answers()
        except FAULTS as error:
            await self._give_up(member, "answer", error)
            return False
        return True

    # ---- memory

    async def _room(self, member: Member, asleep: Collection[Member]) -> bool:
        """Tell whether there is memory for it, by the driver: an engine that wakes without room has to be restarted."""
        if member.state in (TurnState.CHECKING, TurnState.FAILED) or await self._freed(member):
            return True
        # These said that they sleep. The memory of those that freed it is in use by somebody else.
        liars = [m for m in asleep if m.turns.unit and not m.gave_back and set(m.turns.gpus) & set(member.turns.gpus)]
        for liar in liars:
            await self._give_up(liar, "release", WrongAnswer("its memory was not released"))
        return bool(liars) and await self._freed(member)

    async def see_released(self, member: Member) -> None:
        """Check that an engine freed its memory when it left its GPUs for no other model of the group."""
        kept = member.state is TurnState.ASLEEP and member.turns.unit and not member.gave_back
        if kept and not await self._freed(member):
            await self._give_up(member, "release", WrongAnswer("its memory was not released"))

    async def _freed(self, member: Member) -> bool:
        until = loop_time() + self._limits.release
        while True:
            free = await self._free()
            lacking = {gpu: need for gpu, need in member.needs_mib().items() if free.get(gpu, need) < need}
            if not lacking:
                return True
            if loop_time() >= until:
                _LOG.warning("%s needs %s MiB by GPU, and free are %s", member.name, lacking, free)
                return False
            await asyncio.sleep(_BETWEEN_S)

    async def _free(self) -> "dict[int, int]":
        """Free MiB by GPU; empty if nobody can tell, and then engines are believed."""
        try:
            return await self._keeper.free_mib() if self._keeper else {}
        except KeeperFault as error:
            _LOG.warning("the free memory of GPUs cannot be read: %s", error)
            return {}
