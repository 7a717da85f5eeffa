"""A swap behind the gateway, against what the two engines themselves take for it. Nothing has to be drained."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import cast

from bench.measure import Case
from tests.gateway.protocol_server import AWAKE_MIB, TOTAL_MIB, served
from tests.gateway.turning import Units, turning
from tests.gateway.vllm_protocol import Gpu, ProtocolEngine, Times
from winhost.gateway.engine_control import EngineControl
from winhost.gateway.engines import Engines
from winhost.gateway.gateway_settings import PublishedModel
from winhost.gateway.keeper_client import KeeperClient
from winhost.gateway.settings_values import SocketOrPort
from winhost.gateway.turns import SeatedRequest, Turn, Turns

# Of two 7.6B models on one GPU, shorter: the ratio is what counts.
TIMES = Times(start=0.01, sleep=0.41, wake=0.78)
FIRST_SCALE, LATER_SCALE = 0.03, 0.3


class _Swapping:
    """Two engines behind turns, and two that are moved by hand. All speak HTTP on Unix sockets."""

    def __init__(self, folder: Path, first: bool) -> None:
        self._folder, self._first = folder, first
        self._times = TIMES.scaled(FIRST_SCALE if first else LATER_SCALE)
        self._loop = asyncio.new_event_loop()
        self._ends = AsyncExitStack()
        self._loop.run_until_complete(self._prepare())

    async def _prepare(self) -> None:
        pair, alone = Gpu(TOTAL_MIB), Gpu(TOTAL_MIB)
        self._taking = [ProtocolEngine(name, pair, AWAKE_MIB, times=self._times) for name in "ab"]
        self._moved = [ProtocolEngine(name, alone, AWAKE_MIB, times=self._times) for name in "cd"]
        settings = turning(self._taking, stay=0).settings
        self._engines = Engines(settings.limits)
        for engine in (*self._taking, *self._moved):
            await engine.start()
            await engine.answer("POST", "/sleep?level=1", None)
            await self._ends.enter_async_context(served(engine, self._folder / f"{engine.name}.sock"))
        self._controls = [self._control(engine.name) for engine in self._moved]
        await self._controls[0].wake(1, 60)
        self._turns = Turns(settings, lambda model: self._control(model.name), cast(KeeperClient, Units(self._taking)))
        self._turns.start()
        for name in "aba":
            await self._use(name)

    def _control(self, name: str) -> EngineControl:
        place = SocketOrPort(socket=str(self._folder / f"{name}.sock"))
        return self._engines.control(PublishedModel(name, place, name, "completion"))

    async def _use(self, name: str) -> None:
        with SeatedRequest(self._turns, "bench") as seat:
            async with Turn(self._turns, seat, name, self._turns.deadline()):
                pass

    def behind_the_gateway(self) -> None:
        awake = next(engine for engine in self._taking if not engine.level)
        other = next(engine for engine in self._taking if engine.level)
        awake.slept = not self._first
        self._loop.run_until_complete(self._use(other.name))

    def by_themselves(self) -> None:
        self._moved[0].slept = not self._first
        self._loop.run_until_complete(self._swap_by_hand())
        self._controls.reverse()
        self._moved.reverse()

    async def _swap_by_hand(self) -> None:
        await self._controls[0].sleep(1, 60)
        await self._controls[1].wake(1, 60)

    async def _end(self) -> None:
        self._turns.stop()
        await asyncio.sleep(0)
        self._engines.close()
        await self._ends.aclose()

    def close(self) -> None:
        self._loop.run_until_complete(self._end())
        self._loop.close()


@contextmanager
def first_swap(folder: Path) -> Iterator[Case]:
    """One in which the engine sleeps for the first time since its start."""
    with _held_against_engines(folder, True, "first swap") as case:
        yield case


@contextmanager
def later_swap(folder: Path) -> Iterator[Case]:
    """Any other."""
    with _held_against_engines(folder, False, "later swap") as case:
        yield case


@contextmanager
def _held_against_engines(folder: Path, first: bool, what: str) -> Iterator[Case]:
    swapping = _Swapping(folder, first)
    try:
        work, yardstick = swapping.behind_the_gateway, swapping.by_themselves
        yield Case(
            f"{what} of models that take turns", "sleep of one engine and wake of the other", work, yardstick, 1.1
        )
    finally:
        swapping.close()
