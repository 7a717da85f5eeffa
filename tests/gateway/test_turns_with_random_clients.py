"""Random clients, models and faults, on a clock that jumps: what holds for every request and every GPU.

`make test` tries some; `make real` a few thousand.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.turning import SILENCE_S, Turning, turning
from tests.gateway.virtual_time import in_virtual_time
from tests.gateway.vllm_protocol import UNPINNED, Gpu, ProtocolEngine, Times
from winhost.gateway.turn_state import TurnState

TOTAL, HOLD_S, DRAIN_S, STAY_S = 81_559, 3600, 40, 5
FAULTS = ("lie asleep", "corrupt", "no wake", "die asleep", "die waking", "hang", "slow start")


@dataclass(frozen=True)
class Asked:
    """A request: its time, its model, the duration of its answer, and when its client goes away."""

    at: float
    model: str
    seconds: float
    leaves: float | None


@dataclass(frozen=True)
class World:
    """begins: when the first client comes, while engines start or later; faults: when, at which engine, and what."""

    names: str
    begins: float
    awake: int
    level: int
    suspend: bool
    between: str
    times: Times
    memory: bool
    idle: int | None
    requests: tuple[Asked, ...]
    faults: tuple[tuple[float, str, str], ...]


@st.composite
def worlds(draw: st.DrawFn, faults: bool) -> World:
    names = "abcd"[: draw(st.integers(2, 4))]
    times = st.integers(0, 600).map(lambda value: value / 10)
    request = st.builds(
        Asked,
        times,
        st.sampled_from(names),
        st.sampled_from([0.1, 1.0, 10.0, 30.0]),
        st.none() | st.sampled_from([0.5, 5.0, 30.0]),
    )
    memory = draw(st.booleans())
    # Where nobody said what a model takes, its first sleep is believed.
    named = [name for name in (*FAULTS, "dies") if memory or name != "lie asleep"]
    fault = st.tuples(times, st.sampled_from(names), st.sampled_from(named))
    between = draw(st.sampled_from(["sleep", "sleep", "sleep", "stop"]))
    level = draw(st.sampled_from([1, 1, 2])) if between == "sleep" else 1
    return World(
        names,
        draw(st.sampled_from([900.0, 900.0, 900.0, 100.0, 0.0])),
        draw(st.sampled_from([70_000, 70_000, 34_000, 24_000])),
        level,
        between == "sleep" and draw(st.booleans()),
        between,
        draw(st.sampled_from([Times(), UNPINNED])),
        memory,
        draw(st.sampled_from([None, 3, 30])),
        tuple(draw(st.lists(request, min_size=5, max_size=25))),
        tuple(draw(st.lists(fault, min_size=1, max_size=4))) if faults else (),
    )


def model_of(world: World) -> dict[str, Any]:
    if world.between == "stop":
        return {"between": "stop"}
    return {"level": world.level, "reloads": True, "suspend": world.suspend}


async def lived(world: World, found: Turning) -> list[str]:
    """What became of each request. Ends when the last one has."""

    async def one(number: int, asked: Asked) -> str:
        await asyncio.sleep(asked.at)
        work = asyncio.ensure_future(found.ask(asked.model, f"{number}", asked.seconds))
        if asked.leaves is not None:
            await asyncio.wait({work}, timeout=asked.leaves)
            work.cancel()
        return (await asyncio.gather(work, return_exceptions=True))[0] if not work.cancelled() else "left"

    async def goes_wrong(at: float, name: str, fault: str) -> None:
        await asyncio.sleep(at)
        if fault == "dies":
            await found.engines[name].die()
        else:
            found.engines[name].faults.add(fault)

    found.turns.start()
    await asyncio.sleep(world.begins)
    faults = [asyncio.ensure_future(goes_wrong(*each)) for each in world.faults]
    outcomes = await asyncio.gather(*(one(number, asked) for number, asked in enumerate(world.requests)))
    await asyncio.gather(*faults)
    await asyncio.sleep(3000)
    found.turns.stop()
    return [str(each) if not isinstance(each, asyncio.CancelledError) else "left" for each in outcomes]


def live(world: World) -> None:
    gpu = Gpu(TOTAL)
    engines = [ProtocolEngine(name, gpu, world.awake, times=world.times) for name in world.names]
    idle = {} if world.idle is None else {"idle": world.idle}
    found = turning(
        engines, memory=world.memory, model=model_of(world), hold=HOLD_S, drain=DRAIN_S, stay=STAY_S, start=700, **idle
    )
    outcomes = in_virtual_time(lived(world, found))  # a deadlock raises
    assert gpu.broken_rules == []
    assert sum(gpu.used.values()) <= TOTAL
    if not world.memory:  # it is not known what they take, so one at a time
        assert sum(member.state is TurnState.AWAKE for member in found.turns._members().values()) <= 1
    for number, (asked, outcome) in enumerate(zip(world.requests, outcomes, strict=True)):
        check(world, f"{asked.model}: {number}", asked, outcome)
    for _, _, took in found.outcomes:
        assert took <= HOLD_S + max(SILENCE_S, DRAIN_S) + 40
    assert (found.turns.running, found.turns.waiting) == (0, 0)
    if world.idle is not None:
        assert not any(member.is_on_gpu for member in found.turns._members().values())


def check(world: World, right: str, asked: Asked, outcome: str) -> None:
    """The right answer, or a reason: none is lost, and none answered by the wrong model or from wrong weights."""
    allowed = {right}
    if asked.leaves is not None:
        allowed.add("left")
    if world.faults:
        allowed.add("broke off")
    assert outcome in allowed, world


FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.costly
@FEW
@given(worlds(faults=False))
def test_no_request_is_lost(world: World) -> None:
    live(world)


@pytest.mark.costly
@FEW
@given(worlds(faults=True))
def test_whatever_fails_every_request_gets_its_answer_or_a_reason(world: World) -> None:
    live(world)


@pytest.mark.real
@pytest.mark.timeout(1200)
@MANY
@given(st.booleans().flatmap(lambda faults: worlds(faults=faults)))
def test_no_request_is_lost_in_many_worlds(world: World) -> None:
    live(world)
