"""Models that take turns on a GPU, with engines that speak vLLM's protocol, in virtual time."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.gateway.turning import Turning, turning
from tests.gateway.virtual_time import Deadlock, in_virtual_time
from tests.gateway.vllm_protocol import UNPINNED, Gpu, ProtocolEngine, Times
from tests.rows import each_row
from winhost.gateway.engine_control import EngineControl
from winhost.gateway.gateway_settings import parse_settings
from winhost.gateway.turn_state import TurnState
from winhost.gateway.turns import Busy, SeatedRequest, Turn, Turns

Story = Callable[[Turning], Awaitable[None]]


def engines(names: str = "ab", total: int = 81_559, awake: int = 70_000, **more: Any) -> list[ProtocolEngine]:
    gpu = Gpu(total)
    return [ProtocolEngine(name, gpu, awake, **more) for name in names]


def run_story(story: Story, found: Turning, by_hand: bool = False) -> Turning:
    """Run a story after the moves that are made while no request waits. by_hand: others started the engines."""

    async def whole() -> None:
        for engine in found.engines.values() if by_hand else ():
            await engine.start()
            await engine.answer("POST", "/sleep?level=1", None)
        found.turns.start()
        await asyncio.sleep(600)
        await story(found)
        found.turns.stop()

    in_virtual_time(whole())
    assert found.gpu.broken_rules == []
    return found


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_deadlock_is_seen() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        in_virtual_time(forever())


def test_the_first_sleep_is_over_before_anybody_waits() -> None:
    async def story(found: Turning) -> None:
        states = [found.member(name).state for name in "ab"]
        assert states == [TurnState.AWAKE, TurnState.ASLEEP]
        began = now()
        assert await found.ask("b", "x") == "b: x"
        assert now() - began < 2

    found = run_story(story, turning(engines()))
    assert [engine.starts for engine in found.engines.values()] == [1, 1]


def test_a_request_to_a_sleeper_is_held_and_answered() -> None:
    async def story(found: Turning) -> None:
        answers = await asyncio.gather(*(found.ask(name, f"{number}") for number in range(5) for name in "ab"))
        assert answers == [f"{name}: {number}" for number in range(5) for name in "ab"]

    run_story(story, turning(engines()))


@each_row("between", ["sleep", "stop"])
def test_connections_to_an_engine_are_hung_up_before_it_leaves_the_gpu(between: str) -> None:
    retirements: list[tuple[str, bool]] = []

    async def story(found: Turning) -> None:
        leaving = next(name for name in "ab" if found.member(name).state is TurnState.AWAKE)
        engine = found.engines[leaving]
        found.member(leaving).control.retire_connections = lambda: retirements.append(
            (leaving, engine.up and not engine.level)
        )
        other = "ab".replace(leaving, "")
        assert await found.ask(other, "x") == f"{other}: x"
        assert retirements == [(leaving, True)]

    run_story(story, turning(engines(), model={} if between == "sleep" else {"between": "stop"}))


def test_a_running_answer_is_finished_before_its_engine_sleeps() -> None:
    async def story(found: Turning) -> None:
        long = asyncio.ensure_future(found.ask("a", "long", seconds=25))
        await asyncio.sleep(1)
        began = now()
        assert await found.ask("b", "short") == "b: short"
        assert await long == "a: long"
        assert 23 < now() - began < 30

    run_story(story, turning(engines()))


def test_one_that_never_ends_is_broken_off_when_its_turn_is_over() -> None:
    async def story(found: Turning) -> None:
        long = asyncio.ensure_future(found.ask("a", "long", seconds=5000))
        await asyncio.sleep(1)
        assert await found.ask("b", "short") == "b: short"
        assert await long == "turn ended"

    run_story(story, turning(engines(), drain=20))


def test_a_model_keeps_its_turn_for_a_while() -> None:
    async def story(found: Turning) -> None:
        assert await found.ask("b", "x") == "b: x"
        began = now()
        assert await found.ask("a", "x") == "a: x"
        assert 30 < now() - began < 35

    run_story(story, turning(engines(), stay=30))


def test_the_one_that_was_not_used_for_longest_goes() -> None:
    async def story(found: Turning) -> None:
        for name in "abcab":
            await found.ask(name, "x")
            await asyncio.sleep(20)
        assert found.member("c").state is TurnState.AWAKE
        await found.ask("d", "x")
        states = {name: found.member(name).state for name in "abcd"}
        assert [name for name, state in states.items() if state is TurnState.AWAKE] == ["a", "b", "d"]

    run_story(story, turning(engines("abcd", awake=24_000)))


def test_what_waits_too_long_is_told_when_to_come_again() -> None:
    async def story(found: Turning) -> None:
        long = asyncio.ensure_future(found.ask("a", "long", seconds=400))
        await asyncio.sleep(1)
        began = now()
        assert await found.ask("b", "x") == "busy"
        assert now() - began == pytest.approx(10)
        assert await found.ask("a", "x") == "a: x"  # nobody waits for b any more, so a goes on
        assert await long == "a: long"

    run_story(story, turning(engines(), hold=10, drain=300))


def test_they_are_told_to_come_when_an_engine_may_have_started() -> None:
    async def story(found: Turning) -> None:
        assert await found.ask("b", "x") == "b: x"
        with pytest.raises(Busy) as busy, SeatedRequest(found.turns, "alice") as seat:
            async with Turn(found.turns, seat, "a", now() + 10):
                pass
        assert 47 < busy.value.retry_after <= 60, "its last start took 47 s"

    run_story(story, turning(engines(dev_mode=False), model={"between": "stop"}, hold=300))


def test_more_than_may_wait_are_told_at_once() -> None:
    async def story(found: Turning) -> None:
        waiting = [asyncio.ensure_future(found.ask("b", "x")) for _ in range(3)]
        await asyncio.sleep(0)
        began = now()
        assert (await found.ask("b", "x"), now() - began) == ("busy", 0)
        assert [await each for each in waiting] == ["b: x", "b: x again", "b: x again"]

    run_story(story, turning(engines(), requests=1, waiting=2))


def turns_of(**limits: int) -> Turns:
    settings = {
        "listen": {"socket": "/run/door.sock"},
        "models": [{"name": "a", "engine": {"socket": "/run/a.sock"}}],
        "limits": limits,
    }
    return Turns(parse_settings(json.dumps(settings)), lambda each: EngineControl(each, None), None)  # type: ignore[arg-type]


def test_a_stream_that_has_begun_keeps_its_seat_while_its_engine_starts_anew() -> None:
    async def story() -> list[str]:
        turns = turns_of(requests=1, waiting=3)

        async def holds(key: str, begun: bool) -> str:
            try:
                with SeatedRequest(turns, key) as seat:
                    seat.answer_started = begun
                    await asyncio.sleep(10)
            except Busy:
                return "busy"
            return "kept"

        alice = [asyncio.ensure_future(holds("alice", begun)) for begun in (True, False, False, True)]
        await asyncio.sleep(1)
        return [await holds("bob", False), *await asyncio.gather(*alice)]

    assert in_virtual_time(story()) == ["kept", "kept", "kept", "busy", "kept"]


def test_in_a_burst_as_many_run_and_as_many_wait_as_may() -> None:
    async def burst() -> list[str]:
        turns, outcomes = turns_of(requests=8, waiting=8), []

        async def ask() -> None:
            try:
                with SeatedRequest(turns, "alice") as seat:
                    async with Turn(turns, seat, "a", turns.deadline()):
                        await asyncio.sleep(1)
                        outcomes.append("answered")
            except Busy:
                outcomes.append("busy")

        await asyncio.gather(*(ask() for _ in range(17)))
        return outcomes

    assert in_virtual_time(burst()) == ["busy", *["answered"] * 16]


async def crowd_and_one(found: Turning, crowd: str, one: str) -> list[str]:
    """Send two hundred requests of a key for these models, and then one of another key. Return the order of the
    answers.
    """
    answered: list[str] = []

    async def ask(name: str, key: str) -> None:
        assert (await found.ask(name, "x", seconds=10, key=key)).startswith(f"{name}: ")
        answered.append(key)

    asked = [asyncio.ensure_future(ask(name, "crowd")) for _ in range(200 // len(crowd)) for name in crowd]
    await asyncio.sleep(1)
    asked.append(asyncio.ensure_future(ask(one, "one")))
    await asyncio.gather(*asked)
    return answered


def test_a_crowd_of_one_key_delays_another_key_by_one_request() -> None:
    async def story(found: Turning) -> None:
        assert (await crowd_and_one(found, "a", "a")).index("one") == 2, "the one that ran, and the next of the crowd"

    run_story(story, turning(engines("a"), requests=1, hold=100_000))


def test_a_crowd_of_one_key_delays_another_key_by_one_turn() -> None:
    async def story(found: Turning) -> None:
        order = await crowd_and_one(found, "ab", "c")
        assert order.index("one") <= 2 * 4, "after the four of the turn that was, and those of one more"

    run_story(story, turning(engines("abc"), requests=4, hold=100_000, stay=5))


def test_keys_choose_in_turn_which_model_comes_next() -> None:
    async def story(found: Turning) -> None:
        order: list[str] = []

        async def ask(name: str, key: str) -> None:
            await found.ask(name, "x", key=key)
            order.append(name)

        first = [asyncio.ensure_future(ask(name, "crowd")) for name in "bcd"]
        await asyncio.sleep(0.1)  # they are older
        await asyncio.gather(*first, ask("e", "one"))
        assert order.index("e") <= 1

    run_story(story, turning(engines("abcde"), hold=100_000))


def test_where_all_seats_are_taken_the_newest_of_the_crowd_gives_its_own_away() -> None:
    async def story(found: Turning) -> None:
        crowd = [asyncio.ensure_future(found.ask("a", str(number), 100, "crowd")) for number in range(4)]
        await asyncio.sleep(1)
        assert await found.ask("a", "x", 1, "crowd") == "busy"
        other = asyncio.ensure_future(found.ask("a", "y", 1, "other"))
        await asyncio.sleep(1)
        assert [each.done() and each.result() for each in crowd] == [False, False, False, "busy"]
        assert await other == "a: y"
        assert [await each for each in crowd[:3]] == ["a: 0", "a: 1", "a: 2"]
        assert (found.turns.running, found.turns.waiting) == (0, 0)

    run_story(story, turning(engines("a"), requests=2, waiting=2, hold=100_000))


@pytest.mark.parametrize("fault", ["lie asleep", "die asleep"])
def test_one_that_does_not_sleep_as_it_says_is_restarted(fault: str) -> None:
    async def story(found: Turning) -> None:
        found.engines["a"].faults.add(fault)
        assert await found.ask("b", "x") == "b: x"
        await asyncio.sleep(20)
        assert await found.ask("a", "x") == "a: x"
        assert found.engines["a"].starts == 2

    run_story(story, turning(engines(), hold=300))


def test_what_suspending_freed_because_a_sleep_had_not_is_not_needed_twice() -> None:
    async def story(found: Turning) -> None:
        found.engines["a"].faults.add("lie asleep")
        for name in "bababa":
            assert (await found.ask(name, "x")).startswith(f"{name}: ")
            await asyncio.sleep(20)

    run_story(story, turning(engines(), model={"level": 1, "suspend": True}, hold=300))


@pytest.mark.parametrize("fault", ["no wake", "corrupt", "die waking"])
def test_one_that_does_not_wake_as_it_was_is_restarted_and_nobody_sees_it(fault: str) -> None:
    async def story(found: Turning) -> None:
        found.engines["b"].faults.add(fault)
        assert await asyncio.gather(found.ask("b", "x"), found.ask("b", "y")) == ["b: x", "b: y"]
        assert found.engines["b"].starts == 2

    run_story(story, turning(engines(), hold=300))


def test_a_request_that_is_not_answered_makes_the_engine_show_that_it_lives() -> None:
    async def story(found: Turning) -> None:
        found.engines["a"].faults.add("hang")
        assert await found.ask("a", "x") == "broke off"
        assert await found.ask("a", "y") == "a: y"
        found.engines["a"].dead = True  # every one hangs from now on
        assert await found.ask("a", "x") == "broke off"
        assert await found.ask("a", "z") == "a: z"
        assert found.engines["a"].starts == 2

    run_story(story, turning(engines(), hold=300))


def test_an_engine_that_ended_is_started_for_the_next_request() -> None:
    async def story(found: Turning) -> None:
        await found.engines["a"].die()
        assert await found.ask("a", "x") == "a: x"

    run_story(story, turning(engines(), hold=300))


def test_nobody_is_woken_where_somebody_else_has_the_memory() -> None:
    async def story(found: Turning) -> None:
        found.gpu.used["a game"] = 30_000
        assert await found.ask("b", "x") == "busy"
        del found.gpu.used["a game"]
        assert await found.ask("b", "x") == "b: x"
        assert found.engines["a"].starts == 1, "it gave its memory back, and is not to blame"

    run_story(story, turning(engines(), hold=60))


def test_level_2_reads_its_weights_again() -> None:
    async def story(found: Turning) -> None:
        assert [await found.ask(name, "x") for name in "abab"] == ["a: x", "b: x"] * 2
        assert {engine.starts for engine in found.engines.values()} == {1}

    run_story(story, turning(engines(), model={"level": 2, "reloads": True}))


def test_engines_without_sleep_are_stopped_and_started() -> None:
    async def story(found: Turning) -> None:
        assert [await found.ask(name, "x") for name in "abab"] == ["a: x", "b: x"] * 2

    found = run_story(story, turning(engines(dev_mode=False), model={"between": "stop"}, hold=300))
    assert all(engine.asked and not engine.slept for engine in found.engines.values())


def test_a_sleeper_is_suspended_and_comes_back() -> None:
    async def story(found: Turning) -> None:
        assert found.member("b").state is TurnState.SUSPENDED
        assert found.gpu.used["b"] == 4
        began = now()
        assert await found.ask("b", "x") == "b: x"
        assert 3 < now() - began < 6

    run_story(story, turning(engines(), model={"suspend": True}))


def test_a_sleeper_is_written_to_disk_once_and_starts_from_there() -> None:
    async def story(found: Turning) -> None:
        assert found.units is not None
        assert (found.member("b").state, found.gpu.used.get("b")) == (TurnState.DOWN, None)
        began = now()
        assert await found.ask("b", "x") == "b: x"
        assert 5 < now() - began < 20  # a goes, b is restored, resumed and woken
        assert await found.ask("a", "x") == "a: x"
        assert await found.ask("b", "y") == "b: y"
        asked = [what for what, unit in found.units.asked if "-b." in unit]
        assert (asked.count("take"), asked.count("confirm"), asked.count("suspend")) == (1, 2, 1)
        assert found.engines["b"].starts == 1

    run_story(story, turning(engines(), model={"suspend": True, "image": True}))


def test_an_image_that_answers_otherwise_is_used_once_and_never_again() -> None:
    async def story(found: Turning) -> None:
        assert found.units is not None
        found.engines["b"].corrupt = True
        assert await found.ask("b", "x") == "b: x"
        assert found.engines["b"].starts == 2  # restored, given up, started cold
        assert [what for what, unit in found.units.asked if "-b." in unit].count("confirm") == 0

    run_story(story, turning(engines(), model={"suspend": True, "image": True}, hold=300))


def test_an_engine_that_ended_is_restored_and_answers_as_before() -> None:
    async def story(found: Turning) -> None:
        assert found.units is not None
        engine = found.engines["a"]
        assert [what for what, _ in found.units.asked].count("take") == 1  # it is alone, and takes no turns
        for corrupt, starts in ((False, 1), (True, 2)):
            asked = asyncio.ensure_future(found.ask("a", "x", seconds=5))
            await asyncio.sleep(1)
            await engine.die()
            assert await asked == "broke off"
            engine.corrupt = corrupt
            assert await found.ask("a", "y") == "a: y"
            assert engine.starts == starts  # the one that answers otherwise is given up, and started cold

    run_story(story, turning(engines("a"), model={"suspend": True, "image": True}, hold=300))


def test_a_resident_stays_beside_those_that_take_turns_and_starts_anew_while_they_are_asked() -> None:
    async def story(found: Turning) -> None:
        a = found.engines["a"]
        assert await asyncio.gather(*(found.ask(name, "x") for name in "bca")) == ["b: x", "c: x", "a: x"]
        assert (found.member("a").state, a.starts) == (TurnState.AWAKE, 1)
        asked = asyncio.ensure_future(found.ask("a", "x", seconds=5))
        busy = asyncio.ensure_future(found.ask("b", "x", seconds=100))
        await asyncio.sleep(1)
        await a.die()
        assert await asked == "broke off"
        await asyncio.sleep(60)  # nobody asks for it
        assert (found.member("a").state, a.starts, busy.done()) == (TurnState.AWAKE, 2, False)
        assert await busy == "b: x"
        await asyncio.sleep(900)
        assert (found.member("a").state, found.member("b").state) == (TurnState.AWAKE, TurnState.ASLEEP)
        assert found.turns.is_ready("a")
        found.member("a").state = TurnState.DOWN  # which is no rest of its own
        assert not found.turns.is_ready("a")

    run_story(story, turning(engines("abc", awake=30_000, total=70_000), resident="a", hold=300, idle=600))


def test_an_engine_whose_image_cannot_be_written_stays_suspended() -> None:
    async def story(found: Turning) -> None:
        assert found.units is not None
        assert found.member("b").state is TurnState.SUSPENDED
        assert await found.ask("b", "x") == "b: x"
        await asyncio.sleep(600)
        assert [what for what, unit in found.units.asked if "-b." in unit].count("take") == 1

    found = turning(engines(), model={"suspend": True, "image": True})
    assert found.units is not None
    found.units.image_fails = True
    run_story(story, found)


def test_what_suspending_freed_has_to_be_free_again() -> None:
    async def story(found: Turning) -> None:
        b = found.member("b")
        assert b.required_mib() == {0: 70_000 - 4}
        found.gpu.used["a game"] = 12_000  # beside what a leaves, enough for the sleeper and not for what was suspended
        assert await found.ask("b", "x") == "busy"
        del found.gpu.used["a game"]
        assert await found.ask("b", "x") == "b: x"

    run_story(story, turning(engines(), memory=False, model={"suspend": True}, hold=60))


@pytest.mark.parametrize("names", ["a", "ab"])
@pytest.mark.parametrize(
    ("model", "resting", "left", "back"),
    [
        ({}, TurnState.ASLEEP, 1_874, 2),
        ({"level": 2, "reloads": True}, TurnState.ASLEEP, 1_874, 10),
        ({"suspend": True}, TurnState.SUSPENDED, 4, 6),
        ({"suspend": True, "image": True}, TurnState.DOWN, 0, 20),
        ({"between": "stop"}, TurnState.DOWN, 0, 200),
    ],
    ids=["sleeps", "level 2", "suspended", "image", "stopped"],
)
def test_after_a_while_without_requests_every_gpu_is_given_back(
    names: str, model: dict[str, Any], resting: TurnState, left: int, back: float
) -> None:
    async def story(found: Turning) -> None:
        def used() -> int:
            return max(found.gpu.used.get(name, 0) for name in names)

        assert {found.member(name).state for name in names} == {resting}
        assert used() <= left
        for _ in range(2):
            began = now()
            assert await found.ask("a", "x") == "a: x"
            assert now() - began < back
            await asyncio.sleep(250)
            assert found.member("a").state is TurnState.AWAKE
            assert await found.ask("a", "y", seconds=400) == "a: y"
            await asyncio.sleep(250)
            assert found.member("a").state is TurnState.AWAKE, "it counts from the end of an answer"
            await asyncio.sleep(100)
            assert found.member("a").state is resting
            assert used() <= left

    run_story(story, turning(engines(names), model=model, hold=300, idle=300))


def test_one_that_keeps_its_memory_while_nobody_asks_is_stopped_until_somebody_does() -> None:
    async def story(found: Turning) -> None:
        assert await found.ask("a", "x") == "a: x"
        found.engines["a"].faults.add("lie asleep")
        await asyncio.sleep(3_000)
        assert (found.member("a").state, found.gpu.used.get("a", 0)) == (TurnState.DOWN, 0)
        assert found.engines["a"].starts == 1
        assert await found.ask("a", "x") == "a: x"
        await asyncio.sleep(3_000)
        assert found.member("a").state is TurnState.ASLEEP

    run_story(story, turning(engines("a"), hold=300, idle=300))


def test_an_engine_that_starts_for_longer_than_its_client_waits_stays_as_long_as_after_a_request() -> None:
    async def story(found: Turning) -> None:
        assert found.member("a").state is TurnState.DOWN
        assert await found.ask("a", "x") == "busy"
        await asyncio.sleep(120)
        assert await found.ask("a", "x") == "a: x"
        assert found.engines["a"].starts == 2
        await asyncio.sleep(100)
        assert found.member("a").state is TurnState.DOWN

    slow = engines("a", times=Times(start=150))
    run_story(story, turning(slow, model={"between": "stop"}, hold=60, idle=40, start=700))


@each_row("fits", [True, False])
def test_one_that_nobody_can_stop_keeps_no_other_on_its_gpus(fits: bool) -> None:
    async def story(found: Turning) -> None:
        found.engines["a"].faults.add("no wake")
        assert await found.ask("a", "x") == "busy"
        assert found.member("a").state is TurnState.FAILED
        if fits:
            assert await found.ask("b", "x") == "b: x"
        else:  # nobody but an administrator wakes it
            await found.engines["b"].answer("POST", "/wake_up", None)
        await asyncio.sleep(3_000)
        assert found.member("b").state is TurnState.ASLEEP

    run_story(story, turning(engines(awake=40_000), memory=fits, keeper=False, hold=60, idle=300), by_hand=True)


def test_two_that_fit_are_awake_together() -> None:
    async def story(found: Turning) -> None:
        assert [await found.ask(name, "x") for name in "abab"][:2] == ["a: x", "b: x"]
        assert {found.member(name).state for name in "ab"} == {TurnState.AWAKE}

    run_story(story, turning(engines(awake=40_000)))


def test_without_a_keeper_engines_sleep_and_wake_all_the_same() -> None:
    async def story(found: Turning) -> None:
        assert [await found.ask(name, "x") for name in "abab"] == ["a: x", "b: x"] * 2
        found.engines["b"].faults.add("no wake")
        assert await found.ask("a", "y") == "a: y"
        assert await found.ask("b", "y") == "busy"
        assert found.member("b").state is TurnState.FAILED
        await found.engines["b"].die()
        await asyncio.sleep(60)
        assert await found.ask("a", "z") == "a: z"

    run_story(story, turning(engines(), keeper=False, hold=60), by_hand=True)


def test_without_a_keeper_that_answers_requests_do_not_wait_for_ever() -> None:
    async def story(found: Turning) -> None:
        assert found.units
        found.units.broken = True
        assert await found.ask("b", "x") == "b: x"  # sleep and wake need none
        found.engines["a"].faults.add("no wake")
        assert await found.ask("a", "x") == "busy"
        found.units.broken = False
        assert await found.ask("a", "x") == "a: x"

    run_story(story, turning(engines(), hold=200))


@each_row("between", ["sleep", "stop"])
def test_a_keeper_that_comes_after_the_gateway_costs_no_more_than_a_second(between: str) -> None:
    found = turning(engines(), model={"between": between})
    units = found.units
    assert units

    async def whole() -> None:
        units.there_at = now() + 4
        found.turns.start()
        await asyncio.sleep(3)
        assert not found.turns.is_ready("a")
        await asyncio.sleep(2.5)
        assert units.asked[:1] in ([("start", f"winhost-engine-{name}.service")] for name in "ab")
        await asyncio.sleep(600)
        assert await found.ask("a", "x") == "a: x"
        assert [engine.starts for engine in found.engines.values()] in ([1, 0], [1, 1])
        found.turns.stop()

    in_virtual_time(whole())


def test_a_keeper_that_restarts_leaves_a_sleeper_asleep() -> None:
    async def story(found: Turning) -> None:
        assert found.units
        found.units.there_at = now() + 4
        began = now()
        assert await found.ask("b", "x") == "b: x"
        assert found.engines["b"].starts == 1
        assert 4 < now() - began < 9

    run_story(story, turning(engines(), model={"suspend": True}))


def test_unpinned_engines_sleep_slowly_each_time_and_no_request_is_lost() -> None:
    async def story(found: Turning) -> None:
        began = now()
        assert await found.ask("b", "x") == "b: x"
        assert 12 < now() - began < 15

    run_story(story, turning(engines(times=UNPINNED)))
