"""A day of requests in virtual time: four models on one GPU, a quiet night, a desktop that takes the GPU in the
evening, and an engine that dies. Every request gets its answer, or an error, before its deadline.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.test_yielding import now, watch, yielding
from tests.gateway.turning import SILENCE_S, Turning, turning
from tests.gateway.virtual_time import in_virtual_time
from tests.gateway.vllm_protocol import Gpu, ProtocolEngine
from winhost.gateway.turn_state import TurnState

DAY_S = 24 * 3600
NAMES = {"assistant": 12.0, "coder": 6.0, "translator": 2.0, "embedder": 1.0}  # and how often each is asked for
KEYS = ("alice", "batch", "carol")
HOLD_S, DRAIN_S, YIELD_DRAIN_S, IDLE_S = 300, 40, 15, 600
LEASE_S, SAYS_EVERY_S = 30, 5  # of the watcher at the desktop
DESK = [(18 * 3600, 19.5 * 3600), (21 * 3600, 21.25 * 3600)]
NIGHT = (1 * 3600, 6 * 3600)
DIES = 11 * 3600


def arrivals(chance: random.Random) -> Iterator[tuple[float, str, str, float]]:
    """Return the requests: time, key, model, and duration of the answer. There are none from one to six o'clock."""
    at = 0.0
    while (at := at + chance.expovariate(1 / 20 if 8 * 3600 < at < 20 * 3600 else 1 / 90)) < DAY_S:
        if not NIGHT[0] < at < NIGHT[1]:
            (model,) = chance.choices([*NAMES], [*NAMES.values()])
            yield at, chance.choice(KEYS), model, min(60.0, chance.lognormvariate(0.5, 1.0))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1, marks=pytest.mark.costly),
        pytest.param(2, marks=pytest.mark.real),
    ],
)
def test_no_request_of_a_day_is_lost_or_late(seed: int) -> None:
    chance = random.Random(seed)
    gpu = Gpu(81_559)
    engines = [ProtocolEngine(name, gpu, 34_000) for name in NAMES]
    found = turning(
        engines,
        yields={"drain": YIELD_DRAIN_S},
        hold=HOLD_S,
        drain=DRAIN_S,
        stay=5,
        start=700,
        idle=IDLE_S,
        waiting=1000,
    )
    asked = list(arrivals(chance))
    assert len(asked) > 2000
    wrong: list[str] = []
    run_story: list[tuple[float, float, str, str]] = []  # when it was asked, how long it took, for what, and what came
    slept: list[bool] = []

    async def client(at: float, key: str, model: str, seconds: float, number: int) -> None:
        await asyncio.sleep(at)
        outcome = await found.ask(model, f"{number}", seconds, key)
        run_story.append((at, found.outcomes[-1][2], f"{model}: {number}", outcome))

    async def desktop(begins: float, ends: float) -> None:
        await asyncio.sleep(begins)
        while now() < opened + ends:
            yielding(found).request_gpus("desk", LEASE_S)
            await asyncio.sleep(SAYS_EVERY_S)
        yielding(found).resume("desk")

    async def night() -> None:
        await asyncio.sleep(NIGHT[0] + IDLE_S + 400)
        slept.append(nobody_on(found))

    async def death() -> None:
        await asyncio.sleep(DIES)
        await found.engines["assistant"].die()

    opened = 0.0

    async def day() -> None:
        nonlocal opened
        found.turns.start()
        await asyncio.sleep(1500)  # the engines start and sleep once
        opened = now()
        watching = asyncio.ensure_future(watch(found, wrong))
        await asyncio.gather(
            *(client(*each, number) for number, each in enumerate(asked)),
            *(desktop(*each) for each in DESK),
            night(),
            death(),
        )
        watching.cancel()
        found.turns.stop()

    in_virtual_time(day())
    assert (gpu.broken_rules, wrong, slept) == ([], [], [True])
    assert len(run_story) == len(asked), "each request came to an end"
    outcomes: Counter[str] = Counter()
    for at, took, right, outcome in run_story:
        outcomes["right" if outcome == right else outcome] += 1
        # A request counts with its end, too: it may run into the time of the desktop, or be with the engine that dies.
        desk = any(begins <= at + took + 1 and at <= ends for begins, ends in DESK)
        died = right.startswith("assistant") and at <= DIES <= at + took + 1
        allowed = {right, *({"turn ended"} if desk else ()), *({"broke off"} if died else ())}
        assert outcome in allowed, (at, took, right, outcome)
        assert took <= HOLD_S + max(SILENCE_S, DRAIN_S, 61), (at, took, right, outcome)
    assert outcomes["right"] > 0.8 * len(asked)


def nobody_on(found: Turning) -> bool:
    members: dict[str, Any] = found.turns._members()
    return not any(member.is_on_gpu or member.state is TurnState.AWAKE for member in members.values())
