"""Move an engine onto its GPUs or off them, and check that it did what it reported. An engine that did not is stopped,
so that it leaves nothing on the GPU, and is started again at its next turn.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping

from .engine_control import FAULTS, UnexpectedAnswer
from .gateway_metrics import TurnMetrics
from .keeper_client import KeeperClient, KeeperFault, KeeperNotReady
from .turn_settings import TurnLimits
from .turn_state import Member, TurnState
from .yielding import Yielding, loop_time

_LOG = logging.getLogger("gateway")
_MEMORY_PAUSE_S = 0.1
_START_PAUSE_S = 0.5  # between checks of an engine that starts
_RETRY_S = 1.0
_MAX_BACKOFF_S = 60.0
_RELEASED_SHARE = 0.9  # of the expected memory: other processes allocate and free some meanwhile


class StartCancelled(KeeperFault):
    """The GPUs are requested for something else, and a start takes too long to wait for its end."""


class EngineMoves:
    """Move the engines of a group one at a time. Two engines that sleep, wake or start on a GPU at the same time crash,
    or measure its free memory wrongly.
    """

    def __init__(
        self, limits: TurnLimits, keeper: "KeeperClient | None", metrics: TurnMetrics, yielding: Yielding
    ) -> None:
        self._limits, self._keeper, self._metrics, self._yielding = limits, keeper, metrics, yielding

    # ---- off the GPU

    async def release_gpus(self, member: Member) -> None:
        """Take a model without requests off its GPUs. Afterwards it is ASLEEP, SUSPENDED, DOWN or FAILED."""
        if member.state is TurnState.FAILED:
            await self.refresh_state(member)
        if not member.is_on_gpu:
            return
        # A dead engine does not answer a call to sleep.
        if member.is_dead or not member.can_sleep or member.state is TurnState.FAILED:
            await self.stop(member, from_image=member.is_dead and member.has_image is True)
            return
        if member.turns.image and await self._check_image(member):
            await self.stop(member, from_image=True)
            return
        member.state = TurnState.FALLING_ASLEEP
        member.control.retire_connections()
        before = await self._free_mib()
        began = loop_time()
        try:
            await member.control.sleep(member.turns.level, self._limits.swap)
        except FAULTS as error:
            await self._stop_after_failure(member, "sleep", error)
            return
        durations = self._metrics.slept if member.prepared else self._metrics.slept_first
        durations.add(member.name, loop_time() - began)
        member.state, member.prepared = TurnState.ASLEEP, True
        released = {gpu: free - before.get(gpu, free) for gpu, free in (await self._free_mib()).items()}
        for gpu, mib in released.items():  # it will need the same memory when it wakes
            member.sleep_freed_mib[gpu] = max(member.sleep_freed_mib.get(gpu, 0), mib)
        member.memory_released = all(
            released.get(gpu, mib) >= mib * _RELEASED_SHARE for gpu, mib in member.required_mib().items()
        )
        if member.turns.suspend:
            await self._suspend(member, before)

    async def _suspend(self, member: Member, free_before: Mapping[int, int]) -> None:
        """Suspend a sleeping engine. free_before: MiB that were free before it slept, by GPU."""
        try:
            keeper, unit = self._require_unit(member)
            await keeper.suspend(unit)
            member.state = TurnState.SUSPENDED
            for gpu, free in (await self._free_mib()).items():
                freed = free - free_before.get(gpu, free)
                member.suspend_freed_mib[gpu] = max(member.suspend_freed_mib.get(gpu, 0), freed)
        except KeeperFault as error:
            _LOG.warning("%s sleeps and is not suspended: %s", member.name, error)

    async def take_image(self, member: Member) -> None:
        """Write the process of a suspended engine to disk, which ends it: DOWN. If that fails, it stays SUSPENDED."""
        keeper, unit = self._require_unit(member)
        began = loop_time()
        try:
            await keeper.take_image(unit)
        except KeeperFault as error:
            member.has_image = False
            _LOG.warning("%s: no image of its process: %s", member.name, error)
            return
        self._metrics.image_taken.add(member.name, loop_time() - began)
        _LOG.info("%s: its process was written to disk in %.1f s", member.name, loop_time() - began)
        member.state, member.has_image = TurnState.DOWN, True

    async def _check_image(self, member: Member) -> bool:
        """Tell whether an image of the engine is on disk. Asks the keeper if that is not known."""
        if member.has_image is None:
            try:
                keeper, unit = self._require_unit(member)
                member.has_image = (await keeper.image(unit)).exists or None
            except KeeperFault as error:
                _LOG.warning("%s: whether it has an image is not known: %s", member.name, error)
        return member.has_image is True

    async def stop(self, member: Member, *, from_image: bool = False) -> None:
        """Stop an engine. Afterwards it is DOWN, or FAILED if it cannot be stopped. from_image: its next start is from
        its image, so that its answers stay the same.
        """
        if not from_image:
            member.baseline, member.has_image = None, None
        member.needs_check = False
        try:
            keeper, unit = self._require_unit(member)
            began = loop_time()
            member.control.retire_connections()
            await (keeper.kill if member.is_dead else keeper.stop)(unit)
        except KeeperFault as error:
            member.state = TurnState.FAILED
            _LOG.error("%s cannot be stopped: %s", member.name, error)
            return
        self._metrics.stopped.add(member.name, loop_time() - began)
        member.state, member.prepared, member.is_dead = TurnState.DOWN, from_image, False

    def _require_unit(self, member: Member) -> "tuple[KeeperClient, str]":
        if self._keeper is None or member.turns.unit is None:
            raise KeeperFault("no unit is known for it")
        return self._keeper, member.turns.unit

    async def _stop_after_failure(self, member: Member, move: str, error: Exception) -> None:
        self._metrics.failed[member.name, move] += 1
        member.failures += 1
        member.retry_at = loop_time() + min(_MAX_BACKOFF_S, 2.0**member.failures - 2)  # at once after the first failure
        _LOG.error("%s: %s failed: %s %s", member.name, move, type(error).__name__, error)
        # That an engine ended does not show that its image is bad.
        await self.stop(member, from_image=move == "answer" and member.has_image is True)

    # ---- onto the GPU

    async def can_activate(self, member: Member) -> bool:
        """Tell whether the engine can be brought onto its GPUs: not if it is down and has no unit to start."""
        if member.turns.unit is None and member.state in (TurnState.DOWN, TurnState.FAILED):
            await self.refresh_state(member)
            if member.state in (TurnState.DOWN, TurnState.FAILED):
                member.retry_at = loop_time() + _RETRY_S
                return False
        return True

    async def activate(self, member: Member, asleep: Collection[Member]) -> bool:
        """Start or wake an engine. Return whether it is awake and answers as before. asleep: the other members of its
        group that sleep or are suspended.
        """
        move = "start"
        if member.state not in (TurnState.ASLEEP, TurnState.SUSPENDED):
            await self.refresh_state(member)
        if not await self._has_memory(member, asleep):
            member.retry_at = loop_time() + _RETRY_S
            return False
        began, durations, before = loop_time(), None, member.state
        try:
            if member.state in (TurnState.ASLEEP, TurnState.SUSPENDED):
                move, durations = "wake", self._metrics.woken
                await self._wake(member)
            elif member.state is TurnState.DOWN:
                durations = self._metrics.started
                await self._start(member)
            await self._check(member)
        except (*FAULTS, KeeperFault) as error:
            await self._handle_failed_activation(member, move, before, error)
            return False
        if member.has_image:
            await self._confirm_image(member)
        if durations is not None:
            durations.add(member.name, loop_time() - began)
            self._metrics.record_move(member.name, loop_time() - began)
        member.failures, member.needs_check, member.is_dead = 0, False, False
        return True

    async def _confirm_image(self, member: Member) -> None:
        """Confirm the image that an engine started from; an unconfirmed image is not used again."""
        try:
            keeper, unit = self._require_unit(member)
            await keeper.confirm_image(unit)
        except KeeperFault as error:
            _LOG.warning("%s: its image was not confirmed: %s", member.name, error)

    async def _handle_failed_activation(self, member: Member, move: str, before: TurnState, error: Exception) -> None:
        if isinstance(error, StartCancelled):
            await self.stop(member)
            return
        if not isinstance(error, KeeperNotReady):
            await self._stop_after_failure(member, move, error)
            return
        if not member.failures:
            _LOG.warning("%s: %s waits: %s", member.name, move, error)
        member.state, member.failures = before, member.failures or 1
        member.retry_at = loop_time() + _RETRY_S

    async def refresh_state(self, member: Member) -> None:
        """Read the state of an engine. Afterwards it is ASLEEP or DOWN, still AWAKE or FAILED, or CHECKING: it was
        brought up by others.
        """
        try:
            if not await member.control.is_healthy():
                member.state = TurnState.DOWN
                if not member.has_image:
                    member.baseline, member.prepared = None, False
            elif member.state is TurnState.FAILED:
                return
            elif member.can_sleep and await member.control.is_sleeping():
                member.state = TurnState.ASLEEP
            elif member.state is not TurnState.AWAKE:
                member.state, member.baseline, member.prepared = TurnState.CHECKING, None, False
        except FAULTS as error:
            await self._stop_after_failure(member, "look", error)

    async def _wake(self, member: Member) -> None:
        if member.state is TurnState.SUSPENDED:
            keeper, unit = self._require_unit(member)
            await keeper.resume(unit)
        member.state = TurnState.WAKING
        await member.control.wake(member.turns.level, self._limits.swap)

    async def _start(self, member: Member) -> None:
        keeper, unit = self._require_unit(member)
        member.state = TurnState.STARTING
        await keeper.start(unit)
        deadline = loop_time() + self._limits.start
        while not await member.control.is_healthy():
            if self._yielding.is_requested:
                raise StartCancelled("its GPUs are requested for something else")
            if loop_time() >= deadline:
                raise UnexpectedAnswer("it did not come up in time")
            if not await keeper.runs(unit):
                raise UnexpectedAnswer("its unit ended before it answered")
            await asyncio.sleep(_START_PAUSE_S)
        if not member.turns.image:
            return
        if (await keeper.image(unit)).used:  # it is suspended, as it was when its image was taken
            member.state, member.has_image = TurnState.SUSPENDED, True
            await self._wake(member)
        else:  # a cold start: another process, whose kernels may compute other answers
            member.baseline, member.prepared, member.has_image = None, False, None

    async def _check(self, member: Member) -> None:
        """Check that an engine answers as before it slept. Raises one of FAULTS."""
        if member.state is TurnState.FAILED:
            raise UnexpectedAnswer("it failed before, and nobody restarted it")
        if not member.can_sleep:
            await member.control.fixed_answer()
            return
        for _ in range(2):
            answer = await member.control.canary_answer()
            if member.baseline in (None, answer):
                member.baseline = answer
                return
        raise UnexpectedAnswer("it answers differently than before it slept")

    async def check_alive(self, member: Member) -> bool:
        """Check whether an engine that failed a request still answers, and stop it if not. Return the result."""
        member.needs_check = False
        try:
            if member.is_dead:
                raise UnexpectedAnswer("it ended, or it hangs")
            await member.control.fixed_answer()
        except FAULTS as error:
            await self._stop_after_failure(member, "answer", error)
            return False
        return True

    # ---- memory

    async def _has_memory(self, member: Member, asleep: Collection[Member]) -> bool:
        """Wait until the driver reports enough free memory for an engine, and return whether it did. An engine that
        wakes without it has to be restarted.
        """
        if member.state in (TurnState.CHECKING, TurnState.FAILED) or await self._wait_for_memory(member):
            return True
        # Engines that reported that they sleep, but still have memory.
        offenders = [
            m for m in asleep if m.turns.unit and not m.memory_released and set(m.turns.gpus) & set(member.turns.gpus)
        ]
        for offender in offenders:
            await self._stop_after_failure(offender, "release", UnexpectedAnswer("its memory was not released"))
        return bool(offenders) and await self._wait_for_memory(member)

    async def check_released(self, member: Member) -> None:
        """Check that a sleeping engine freed its memory, where no other model of the group is activated next."""
        holds_memory = member.state is TurnState.ASLEEP and member.turns.unit and not member.memory_released
        if holds_memory and not await self._wait_for_memory(member):
            await self._stop_after_failure(member, "release", UnexpectedAnswer("its memory was not released"))

    async def _wait_for_memory(self, member: Member) -> bool:
        deadline = loop_time() + self._limits.release
        while True:
            free = await self._free_mib()
            missing = {gpu: need for gpu, need in member.required_mib().items() if free.get(gpu, need) < need}
            if not missing:
                return True
            if loop_time() >= deadline:
                _LOG.warning("%s needs %s MiB by GPU, and free are %s", member.name, missing, free)
                return False
            await asyncio.sleep(_MEMORY_PAUSE_S)

    async def _free_mib(self) -> "dict[int, int]":
        """Read the free MiB by GPU; empty if the keeper cannot read them. Engines are trusted then."""
        try:
            return await self._keeper.free_mib() if self._keeper else {}
        except KeeperFault as error:
            _LOG.warning("the free memory of GPUs cannot be read: %s", error)
            return {}
