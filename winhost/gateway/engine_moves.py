"""Brings one engine onto its GPUs, or off them, and checks that it did what it said. Where it did not, it is stopped:
then nothing of it is left on the GPU, and it starts anew when its turn comes.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from .engine_control import FAULTS, WrongAnswer
from .gateway_metrics import TurnMetrics
from .turn_settings import TurnLimits
from .turn_state import Member, TurnState
from .yielding import Yielding

_LOG = logging.getLogger("gateway")
_BETWEEN_S = 0.1
_UP_S = 0.5  # between looks at an engine that starts
_LATER_S = 1.0
_LONGEST_PAUSE_S = 60.0
_MOST_OF_IT = 0.9  # others take and give back memory meanwhile


class KeeperFault(Exception):
    """The keeper could not be asked, or could not do it. Says why."""


class NotThereYet(KeeperFault):
    """Nobody listens at the keeper's socket, or the unit has no file: both may still be on their way when the gateway
    starts, and neither says anything about the engine.
    """


class NotNow(KeeperFault):
    """Its GPUs are wanted for something else, and a start takes too long to wait for its end."""


@dataclass(frozen=True)
class Image:
    """The image of an engine's process on disk. there: one is; used: this start of the engine was from it."""

    there: bool = False
    used: bool = False


class Keeper(Protocol):
    """The program that may start and stop units, and sees the GPUs. Raises KeeperFault."""

    async def start(self, unit: str) -> None: ...

    async def stop(self, unit: str) -> None: ...

    async def kill(self, unit: str) -> None: ...

    async def runs(self, unit: str) -> bool: ...

    async def suspend(self, unit: str) -> None: ...

    async def resume(self, unit: str) -> None: ...

    async def image(self, unit: str) -> "Image": ...

    async def take_image(self, unit: str) -> None: ...

    async def confirm_image(self, unit: str) -> None: ...

    async def free_mib(self) -> dict[int, int]: ...


class EngineMoves:
    """One at a time in a group: two engines that sleep, wake or start together on a GPU crash or mis-size memory."""

    def __init__(self, limits: TurnLimits, keeper: "Keeper | None", metrics: TurnMetrics, yielding: Yielding) -> None:
        self._limits, self._keeper, self._metrics, self._yielding = limits, keeper, metrics, yielding

    # ---- off the GPU

    async def rest(self, member: Member) -> None:
        """Afterwards it is ASLEEP, SUSPENDED, DOWN or FAILED. Nobody has requests with it."""
        if member.state is TurnState.FAILED:
            await self.look(member)
        if not member.on_the_gpu:
            return
        if member.dead or not member.sleeps or member.state is TurnState.FAILED:  # a dead one answers no call to sleep
            await self.stop(member, from_image=member.dead and member.imaged is True)
            return
        if member.turns.image and await self._imaged(member):
            await self.stop(member, from_image=True)
            return
        member.state = TurnState.FALLING_ASLEEP
        member.control.hang_up()
        before = await self._free()
        began = _now()
        try:
            await member.control.sleep(member.turns.level, self._limits.swap)
        except FAULTS as error:
            await self._give_up(member, "sleep", error)
            return
        took = self._metrics.slept if member.prepared else self._metrics.slept_first
        took.add(member.name, _now() - began)
        member.state, member.prepared = TurnState.ASLEEP, True
        gave = {gpu: free - before.get(gpu, free) for gpu, free in (await self._free()).items()}
        for gpu, mib in gave.items():  # what it gave back, it will need again
            member.freed_mib[gpu] = max(member.freed_mib.get(gpu, 0), mib)
        member.gave_back = all(gave.get(gpu, mib) >= mib * _MOST_OF_IT for gpu, mib in member.needs_mib().items())
        if member.turns.suspend:
            await self._suspend(member, before)

    async def _suspend(self, member: Member, awake: Mapping[int, int]) -> None:
        """awake: MiB that were free before it slept."""
        try:
            await self._unit(member)[0].suspend(self._unit(member)[1])
            member.state = TurnState.SUSPENDED
            for gpu, free in (await self._free()).items():
                member.left_mib[gpu] = max(member.left_mib.get(gpu, 0), free - awake.get(gpu, free))
        except KeeperFault as error:
            _LOG.warning("%s sleeps and is not suspended: %s", member.name, error)

    async def take_image(self, member: Member) -> None:
        """Take an image of a suspended engine, which ends with that: DOWN. Where none can be taken, the engine stays
        SUSPENDED.
        """
        keeper, unit = self._unit(member)
        began = _now()
        try:
            await keeper.take_image(unit)
        except KeeperFault as error:
            member.imaged = False
            _LOG.warning("%s: no image of its process: %s", member.name, error)
            return
        self._metrics.imaged.add(member.name, _now() - began)
        _LOG.info("%s: its process was written to disk in %.1f s", member.name, _now() - began)
        member.state, member.imaged = TurnState.DOWN, True

    async def _imaged(self, member: Member) -> bool:
        if member.imaged is None:
            try:
                member.imaged = (await self._unit(member)[0].image(self._unit(member)[1])).there or None
            except KeeperFault as error:
                _LOG.warning("%s: whether it has an image is not known: %s", member.name, error)
        return member.imaged is True

    async def stop(self, member: Member, *, from_image: bool = False) -> None:
        """Afterwards it is DOWN, or FAILED where nobody may stop it. from_image: its next start is from its image, and
        answers as it does now.
        """
        if not from_image:
            member.baseline, member.imaged = None, None
        member.doubted = False
        try:
            keeper, unit = self._unit(member)
            began = _now()
            member.control.hang_up()
            await (keeper.kill if member.dead else keeper.stop)(unit)
        except KeeperFault as error:
            member.state = TurnState.FAILED
            _LOG.error("%s cannot be stopped: %s", member.name, error)
            return
        self._metrics.stopped.add(member.name, _now() - began)
        member.state, member.prepared, member.dead = TurnState.DOWN, from_image, False

    def _unit(self, member: Member) -> "tuple[Keeper, str]":
        if self._keeper is None or member.turns.unit is None:
            raise KeeperFault("no unit is known for it")
        return self._keeper, member.turns.unit

    async def _give_up(self, member: Member, what: str, error: Exception) -> None:
        self._metrics.failed[member.name, what] += 1
        member.failures += 1
        member.not_before = _now() + min(_LONGEST_PAUSE_S, 2.0**member.failures - 2)  # the first time at once
        _LOG.error("%s: %s failed: %s %s", member.name, what, type(error).__name__, error)
        # What an engine is like that ended says nothing against its image.
        await self.stop(member, from_image=what == "answer" and member.imaged is True)

    # ---- onto the GPU

    async def can_rise(self, member: Member) -> bool:
        """Tell whether others need make room for it: not for one that is down, and that nobody here can start."""
        if member.turns.unit is None and member.state in (TurnState.DOWN, TurnState.FAILED):
            await self.look(member)
            if member.state in (TurnState.DOWN, TurnState.FAILED):
                member.not_before = _now() + _LATER_S
                return False
        return True

    async def rise(self, member: Member, resting: Collection[Member]) -> bool:
        """Start or wake it; True if it is AWAKE then, and answers as before. resting: the others of its group that keep
        a process.
        """
        what = "start"
        if member.state not in (TurnState.ASLEEP, TurnState.SUSPENDED):
            await self.look(member)
        if not await self._room(member, resting):
            member.not_before = _now() + _LATER_S
            return False
        began, took, before = _now(), None, member.state
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
            await self._confirm(member)
        if took is not None:
            took.add(member.name, _now() - began)
            self._metrics.moved(member.name, _now() - began)
        member.failures, member.doubted, member.dead = 0, False, False
        return True

    async def _confirm(self, member: Member) -> None:
        """An image from which an engine started that nobody confirms is not used again."""
        try:
            await self._unit(member)[0].confirm_image(self._unit(member)[1])
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
        member.not_before = _now() + _LATER_S

    async def look(self, member: Member) -> None:
        """Afterwards it is ASLEEP, DOWN, AWAKE or FAILED as before, or CHECKING: up, and not by our doing."""
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
        until = _now() + self._limits.start
        while not await member.control.healthy():
            if self._yielding.asked:
                raise NotNow("its GPUs are wanted for something else")
            if _now() >= until:
                raise WrongAnswer("it did not come up in time")
            if not await keeper.runs(unit):
                raise WrongAnswer("its unit ended before it answered")
            await asyncio.sleep(_UP_S)
        if member.turns.image:
            await self._from_image(member, await keeper.image(unit))

    async def _from_image(self, member: Member, image: Image) -> None:
        """An engine that was restored is as it was when its image was taken: asleep, and off its GPU."""
        if image.used:
            member.state, member.imaged = TurnState.SUSPENDED, True
            await self._wake(member)
        else:  # a cold start after all: another process, which answers by other kernels
            member.baseline, member.prepared = None, False
            member.imaged = None

    async def _check(self, member: Member) -> None:
        """Its answer is what it was before it slept. Raises one of FAULTS."""
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
        raise WrongAnswer("it answers otherwise than before it slept")

    async def alive(self, member: Member) -> bool:
        """Tell whether an engine that failed a request still answers another. If not, it is stopped."""
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

    async def _room(self, member: Member, resting: Collection[Member]) -> bool:
        """Waking without room leaves an engine that nothing but a restart helps, so the driver is asked before."""
        if member.state in (TurnState.CHECKING, TurnState.FAILED) or await self._freed(member):
            return True
        # They said that they sleep. Of one that gave its memory back, somebody else has it now.
        liars = [
            m for m in resting if m.turns.unit and not m.gave_back and set(m.turns.cards) & set(member.turns.cards)
        ]
        for liar in liars:
            await self._give_up(liar, "release", WrongAnswer("its memory was not released"))
        return bool(liars) and await self._freed(member)

    async def see_released(self, member: Member) -> None:
        """It went off its GPUs for nobody, so that nobody would miss what it kept."""
        kept = member.state is TurnState.ASLEEP and member.turns.unit and not member.gave_back
        if kept and not await self._freed(member):
            await self._give_up(member, "release", WrongAnswer("its memory was not released"))

    async def _freed(self, member: Member) -> bool:
        until = _now() + self._limits.release
        while True:
            free = await self._free()
            lacking = {gpu: need for gpu, need in member.needs_mib().items() if free.get(gpu, need) < need}
            if not lacking:
                return True
            if _now() >= until:
                _LOG.warning("%s needs %s MiB by GPU, and free are %s", member.name, lacking, free)
                return False
            await asyncio.sleep(_BETWEEN_S)

    async def _free(self) -> "dict[int, int]":
        """MiB by GPU; nothing where nobody can say it, and engines are believed."""
        try:
            return await self._keeper.free_mib() if self._keeper else {}
        except KeeperFault as error:
            _LOG.warning("the free memory of GPUs cannot be read: %s", error)
            return {}


def _now() -> float:
    return asyncio.get_running_loop().time()
