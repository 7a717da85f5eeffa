"""The desktop wants the GPUs: models leave them and come back, on a clock that jumps and in the program itself."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.running import METRICS_KEY, MODEL, Gateway, gateway, settings_for
from tests.gateway.test_gateway import wait_until
from tests.gateway.test_turns import engines, now, run_story
from tests.gateway.test_turns_with_random_clients import (
    DRAIN_S,
    HOLD_S,
    SILENCE_S,
    STAY_S,
    TOTAL,
    Asked,
    World,
    lived,
    model_of,
    worlds,
)
from tests.gateway.turning import Turning, turning
from tests.gateway.virtual_time import in_virtual_time
from tests.gateway.vllm_protocol import Gpu, ProtocolEngine
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.gateway.gateway_settings import parse_settings
from winhost.gateway.keeper_client import KeeperFault
from winhost.gateway.settings_values import WrongSettings
from winhost.gateway.turn_state import TurnState

GAME_S = 200  # seconds that one asks for


def yielding(found: Turning) -> Any:
    return found.turns.yielding


def used(found: Turning) -> int:
    return sum(found.gpu.used.values())


WAYS = {
    "asleep": ({}, TurnState.ASLEEP, 1874),
    "suspended": ({"suspend": True}, TurnState.SUSPENDED, 4),
    "stopped": ({"between": "stop"}, TurnState.DOWN, 0),
}


@each_row("way", list(WAYS))
def test_models_leave_as_they_do_between_their_turns_and_come_back(way: str) -> None:
    model, state, left = WAYS[way]

    async def story(found: Turning) -> None:
        assert found.member("a").state is TurnState.AWAKE
        yielding(found).request_gpus("desk", GAME_S)
        await asyncio.sleep(15)
        assert (found.member("a").state, used(found)) == (state, left)
        assert await found.ask("a", "x") == "turn ended"
        await asyncio.sleep(GAME_S + 60)
        assert found.member("a").state is TurnState.AWAKE, "the model that was used last is kept awake, as before"
        assert await found.ask("a", "x") in ("a: x", "a: x again")

    run_story(story, turning(engines("a"), model=model, yields={}))


def test_an_engine_that_hangs_is_killed_and_not_asked_to_sleep() -> None:
    async def story(found: Turning) -> None:
        assert found.units
        found.units.asked.clear()
        found.turns.note_death("a")
        yielding(found).request_gpus("desk", GAME_S)
        await asyncio.sleep(15)
        assert found.turns.models_on_gpus == []
        assert [what for what, _ in found.units.asked if what != "look"] == ["kill"]
        yielding(found).resume("desk")
        assert await found.ask("a", "x") == "a: x"
        found.turns.note_failure(
            "a"
        )  # one request that went wrong is no reason to kill the engine that was started anew
        await asyncio.sleep(5)
        assert [what for what, _ in found.units.asked if what != "look"] == ["kill", "start"]

    run_story(story, turning(engines("a"), yields={}))


def test_without_a_keeper_they_sleep_on_their_own_word() -> None:
    async def story(found: Turning) -> None:
        yielding(found).request_gpus("desk", GAME_S)
        await asyncio.sleep(15)
        assert found.member("a").state is TurnState.ASLEEP
        yielding(found).resume("desk")
        assert await found.ask("a", "x") == "a: x"

    run_story(story, turning(engines("a"), keeper=False, yields={}), by_hand=True)


def test_a_running_answer_has_the_time_of_drain_and_one_that_waits_is_told_at_once() -> None:
    async def story(found: Turning) -> None:
        short = asyncio.ensure_future(found.ask("a", "short", seconds=8))
        long = asyncio.ensure_future(found.ask("a", "long", seconds=500))
        waiting = asyncio.ensure_future(found.ask("b", "x"))
        await asyncio.sleep(1)
        began = now()
        yielding(found).request_gpus("desk", GAME_S)
        assert (await waiting, now() - began) == ("turn ended", 0)
        assert await short == "a: short"
        assert await long == "turn ended"
        assert now() - began == pytest.approx(10)
        await asyncio.sleep(5)
        assert found.turns.models_on_gpus == []

    run_story(story, turning(engines(), drain=300, hold=900, yields={"drain": 10}))


def test_a_start_is_broken_off() -> None:
    async def story(found: Turning) -> None:
        yielding(found).request_gpus("desk", GAME_S)
        await asyncio.sleep(15)
        yielding(found).resume("desk")
        asking = asyncio.ensure_future(found.ask("a", "x"))
        await asyncio.sleep(10)
        assert found.member("a").state is TurnState.STARTING
        yielding(found).request_gpus("desk", GAME_S)
        await asyncio.sleep(3)
        assert (await asking, found.turns.models_on_gpus, used(found)) == ("turn ended", [], 0)
        assert found.member("a").failures == 0

    run_story(story, turning(engines("a", dev_mode=False), model={"between": "stop"}, hold=300, yields={}))


def test_who_asks_asks_again_or_the_models_come_back() -> None:
    async def story(found: Turning) -> None:
        for _ in range(10):
            yielding(found).request_gpus("desk", 60)
            await asyncio.sleep(30)
            assert found.turns.models_on_gpus == []
        await asyncio.sleep(30 + 10)
        assert found.turns.models_on_gpus == ["a"]
        yielding(found).request_gpus("desk", 100_000)
        assert yielding(found).remaining_s == 300, "no request asks for longer than `longest`"

    run_story(story, turning(engines("a"), yields={}))


def test_each_key_asks_for_itself() -> None:
    async def story(found: Turning) -> None:
        for key in ("desk", "other"):
            yielding(found).request_gpus(key, GAME_S)
        yielding(found).resume("desk")
        assert yielding(found).is_requested
        yielding(found).resume("other")
        assert not yielding(found).is_requested

    run_story(story, turning(engines("a"), yields={}))


def test_an_engine_that_somebody_starts_meanwhile_leaves_as_well() -> None:
    async def story(found: Turning) -> None:
        for _ in range(5):
            yielding(found).request_gpus("desk", 300)
            await asyncio.sleep(60)
        await found.engines["a"].stop()
        await found.engines["a"].start()
        yielding(found).request_gpus("desk", 300)
        await asyncio.sleep(60)
        assert found.turns.models_on_gpus == []

    run_story(story, turning(engines("a"), yields={}))


def test_one_that_nobody_can_take_off_does_not_keep_the_others_there() -> None:
    async def story(found: Turning) -> None:
        units = found.units
        assert units
        stop, tried = units.stop, []

        async def refused(unit: str) -> None:
            tried.append(unit)
            if "-a." in unit:
                raise KeeperFault("it has no rights")
            await stop(unit)

        units.stop = refused  # type: ignore[method-assign]
        yielding(found).request_gpus("desk", 300)
        await asyncio.sleep(200)
        assert found.member("b").state is TurnState.DOWN
        assert 2 < len(tried) < 40, "it is tried again, and not all the time"

    run_story(story, turning(engines("ab", awake=30_000), model={"between": "stop"}, yields={}))


def test_the_administrators_file_decides_over_every_key(tmp_path: Path) -> None:
    mode = tmp_path / "mode"

    async def story(found: Turning) -> None:
        mode.write_text("now\n")
        await asyncio.sleep(15)
        assert (found.turns.models_on_gpus, yielding(found).is_requested) == ([], True)
        mode.write_text("never\n")
        await asyncio.sleep(15)
        yielding(found).request_gpus("desk", GAME_S)
        await asyncio.sleep(15)
        assert (found.turns.models_on_gpus, yielding(found).is_requested) == (["a"], False)
        mode.write_text("what\n")
        await asyncio.sleep(2)
        assert yielding(found).mode == "never"
        mode.unlink()
        await asyncio.sleep(2)
        assert yielding(found).mode == "auto"

    run_story(story, turning(engines("a"), yields={"mode": str(mode)}))


def test_a_model_that_nothing_takes_off_its_gpu_is_refused() -> None:
    models = [{"name": "a", "engine": {"socket": "/run/a.sock"}}]
    with pytest.raises(WrongSettings, match="yields: a has no `turns`"):
        parse_settings(json.dumps({"listen": {"socket": "/run/door.sock"}, "models": models, "yields": {}}))


# ---- random worlds

# When, for how long, and whether it is over before that.
WISHES = st.lists(
    st.tuples(st.integers(0, 600).map(lambda value: value / 10), st.sampled_from([3, 30, 90]), st.booleans()),
    min_size=1,
    max_size=4,
)
YIELD_DRAIN_S = 15


async def wish(found: Turning, key: str, begins: float, at: float, seconds: int, resumes: bool) -> None:
    await asyncio.sleep(begins + at)
    yielding(found).request_gpus(key, seconds)
    if resumes:
        await asyncio.sleep(seconds / 2)
        yielding(found).resume(key)


async def watch(found: Turning, wrong: list[str]) -> None:
    """After its drain nobody's request is with an engine while the GPUs are wanted."""
    while True:
        await asyncio.sleep(0.5)
        late = now() > yielding(found).cut_at + 6
        if yielding(found).is_requested and late and found.turns.running:
            wrong.append(f"{now()}: {found.turns.running} requests")


def live(world: World, wishes: list[tuple[float, int, bool]]) -> None:
    gpu = Gpu(TOTAL)
    all_engines = [ProtocolEngine(name, gpu, world.awake, times=world.times) for name in world.names]
    limits: dict[str, Any] = {"hold": HOLD_S, "drain": DRAIN_S, "stay": STAY_S, "start": 700}
    if world.idle is not None:
        limits["idle"] = world.idle
    yields = {"drain": YIELD_DRAIN_S}
    found = turning(all_engines, memory=world.memory, model=model_of(world), yields=yields, **limits)
    wrong: list[str] = []

    async def whole() -> list[str]:
        watching = asyncio.ensure_future(watch(found, wrong))
        wishing = [
            asyncio.ensure_future(wish(found, f"{number}", world.begins, *each)) for number, each in enumerate(wishes)
        ]
        outcomes = await lived(world, found)
        watching.cancel()
        await asyncio.gather(*wishing)
        return outcomes

    outcomes = in_virtual_time(whole())
    assert (gpu.broken_rules, wrong) == ([], [])
    for number, (asked, outcome) in enumerate(zip(world.requests, outcomes, strict=True)):
        check(world, f"{asked.model}: {number}", asked, outcome)
    for _, _, took in found.outcomes:
        assert took <= HOLD_S + max(SILENCE_S, DRAIN_S) + 40
    assert (found.turns.running, found.turns.waiting) == (0, 0)
    assert any(member.is_on_gpu for member in found.turns._members().values()) is (world.idle is None)


def check(world: World, right: str, asked: Asked, outcome: str) -> None:
    allowed = {right, "turn ended"}
    if asked.leaves is not None:
        allowed.add("left")
    if world.faults:
        allowed.add("broke off")
    assert outcome in allowed, world


@pytest.mark.costly
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.booleans().flatmap(lambda faults: worlds(faults=faults)), WISHES)
def test_whenever_gpus_are_wanted_no_request_is_lost(world: World, wishes: list[tuple[float, int, bool]]) -> None:
    live(world, wishes)


@pytest.mark.real
@pytest.mark.timeout(1200)
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.booleans().flatmap(lambda faults: worlds(faults=faults)), WISHES)
def test_whenever_gpus_are_wanted_no_request_is_lost_in_many_worlds(
    world: World, wishes: list[tuple[float, int, bool]]
) -> None:
    live(world, wishes)


# ---- the program

DESK_KEY = "wh-desktop-key-of-these-tests-0001"
DESK = {"Authorization": f"Bearer {DESK_KEY}"}
DESK_LINE = f"desk sha256:{sha256(DESK_KEY.encode()).hexdigest()} yield"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("y")
    wanted = settings_for(
        folder, yields={"drain": 1}, limits={"hold": 5, "drain": 5}, key_changes=str(folder / "changes")
    )
    wanted["models"][0]["turns"] = {"gpus": [0], "version": "0.24.0"}
    words = [sys.executable, "-m", "tests.gateway.protocol_server", "tiny", str(folder / "engine.sock"), "0.01"]
    engine = subprocess.Popen(words, cwd=Path(__file__).parents[2])
    try:
        with gateway(folder, wanted, engine_up=False, more_keys=DESK_LINE) as found:
            yield found
    finally:
        engine.kill()
        engine.wait(PATIENCE_S)


def ask(door: Gateway, body: Any, headers: dict[str, str] | None = DESK) -> tuple[int, Any]:
    status, _, answer = door.ask("/winhost/yield", body, headers)
    return status, json.loads(answer)


def test_its_key_yields_and_resumes_and_opens_nothing_else(door: Gateway) -> None:
    try:
        status, told_state = ask(door, {"state": "yield", "seconds": 60})
        assert (status, told_state["mode"], told_state["seconds"]) == (200, "auto", 60)
        status, headers, body = door.complete("hello")
        assert (status, json.loads(body)["error"]["code"]) == (503, "yielded")
        assert 1 <= int(headers["retry-after"]) <= 60
        assert [door.ask(path)[0] for path in ("/health", "/ready")] == [200, 503]
        assert wait_until(lambda: ask(door, None)[1]["state"] == "yielded")
        assert "winhost_gateway_yielded 1" in door.metrics()
        assert ask(door, {"state": "resume"})[1]["state"] == "serving"
        assert wait_until(lambda: door.complete("hello")[0] == 200)
        for path in ("/v1/models", "/metrics", "/nothing"):
            status, _, body = door.ask(path, headers=DESK)
            assert (status, json.loads(body)["error"]["code"]) == (403, "yield-key")
        assert door.ask("/v1/completions", {"model": MODEL, "prompt": "x"}, DESK)[0] == 403
    finally:
        ask(door, {"state": "resume"})


def test_what_a_key_asked_for_is_over_when_it_is_revoked(door: Gateway) -> None:
    """It may be in wrong hands. What another one asked for is not, even by the same name later."""
    changes, others = door.log_file.parent / "changes", "wh-another-key-of-these-tests-0002"
    other = f"other sha256:{sha256(others.encode()).hexdigest()} yield\n"
    try:
        ask(door, {"state": "yield", "seconds": 300})
        changes.write_text(other)
        assert wait_until(lambda: ask(door, None, {"Authorization": f"Bearer {others}"})[0] == 200)
        assert ask(door, None)[1]["state"] != "serving", "keys that change otherwise end nothing"
        changes.write_text(f"{other}{DESK_LINE} revoked=2026-11-28T00:00:00Z planned\n")
        assert wait_until(lambda: ask(door, None)[0] == 401)
        assert ask(door, None, {"Authorization": f"Bearer {others}"})[1]["state"] == "serving"
        assert wait_until(lambda: door.complete("hello")[0] == 200)
    finally:
        changes.write_text("")
        assert wait_until(lambda: ask(door, {"state": "resume"})[0] == 200)


def test_its_answer_has_the_id_that_its_client_gave(door: Gateway) -> None:
    status, headers, _ = door.ask("/winhost/yield", headers={**DESK, "X-Request-Id": "watch-1"})
    assert (status, headers["x-request-id"]) == (200, "watch-1")
    assert "id=watch-1-" in door.log


def test_no_other_key_and_no_other_request_does_it(door: Gateway) -> None:
    wanted = {"state": "yield", "seconds": 60}
    status, told_error = ask(door, wanted, None)
    assert (status, told_error["error"]["code"]) == (403, "no-yield-key")
    assert ask(door, wanted, {"Authorization": f"Bearer {METRICS_KEY}"})[0] == 403
    assert ask(door, wanted, {})[0] == 401
    for wrong in ({"state": "stop"}, {"state": "yield", "seconds": 0}, {**wanted, "more": 1}, [], b"{", b"x" * 2000):
        assert ask(door, wrong)[0] in (400, 413), wrong
    assert door.ask("/winhost/yield?x=1", wanted, DESK)[0] == 403
    assert ask(door, None)[1]["state"] == "serving"
