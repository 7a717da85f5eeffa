"""Engines are killed and hang at random times, in virtual time. Every client gets what a standby promises."""

import asyncio
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.two_engines import CHAT, COMPLETION, MODEL, STEP_S, TwinEngine, Twins, tokens_of, twins
from tests.gateway.virtual_time import in_virtual_time

HOLD_S = 30
NOTICED_S = 1
STUCK_S = 12  # ten times that, where a stream that it has begun tells of it
APART_S = NOTICED_S + 2  # a token at least comes between two faults
FEW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@dataclass(frozen=True)
class Asked:
    """A request: its time, its prompt, and when its client goes away."""

    at: float
    tokens: int
    seed: int
    kind: str
    most: int | None
    leaves: float | None


@dataclass(frozen=True)
class Fault:
    """after: the one before; how: it is killed, hangs, or is stuck behind a server that is well; the engine is back
    after `down` seconds, but one that is not killed only once that can have been noticed.
    """

    after: float
    engine: int
    how: str
    down: float

    @property
    def noticed(self) -> float:
        return {"killed": 0, "hangs": NOTICED_S, "stuck": STUCK_S}[self.how]


def tenths(least: int, most: int) -> st.SearchStrategy[float]:
    return st.integers(least * 10, most * 10).map(lambda value: value / 10 + 0.013)


def requests(kinds: tuple[str, ...]) -> st.SearchStrategy[list[Asked]]:
    each = st.builds(
        Asked,
        tenths(0, 12),
        st.integers(1, 60),
        st.integers(0, 50),
        st.sampled_from(kinds),
        st.none() | st.integers(1, 40),
        st.none() | st.sampled_from([0.5, 3.0]),
    )
    return st.lists(each, min_size=1, max_size=8)


def faults(apart: float) -> st.SearchStrategy[list[Fault]]:
    each = st.builds(
        Fault,
        tenths(0, 3).map(lambda value: value + apart),
        st.integers(0, 1),
        st.sampled_from(("killed", "hangs", "stuck")),
        tenths(0, 2),
    )
    return st.lists(each, min_size=1, max_size=5)


def body_of(asked: Asked) -> tuple[str, dict[str, Any]]:
    prompt = f"{asked.tokens}/{asked.seed}"
    more: dict[str, Any] = {} if asked.most is None else {"max_tokens": asked.most}
    if asked.most is None:
        more["max_tokens"] = 10_000
    if asked.kind == "whole":
        return COMPLETION, {"model": MODEL, "prompt": f"{prompt}|", **more}
    more |= {"stream": True, "stream_options": {"include_usage": True}}
    if asked.kind == "seed":
        more["seed"] = 1
    if asked.kind == "completion":
        return COMPLETION, {"model": MODEL, "prompt": f"{prompt}|", **more}
    return CHAT, {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **more}


@dataclass
class Seen:
    asked: Asked
    status: int
    text: str
    whole: bool
    error: str
    finish: list[str]
    usage: dict[str, int] | None
    ids: int
    seconds: float


def seen(asked: Asked, status: int, body: bytes, whole: bool, seconds: float) -> Seen:
    if asked.kind == "whole" and status == 200:
        choice = json.loads(body)["choices"][0] if whole else {"text": "", "finish_reason": ""}
        return Seen(asked, status, choice["text"], whole, "", [choice["finish_reason"]], None, 1, seconds)
    if status != 200:
        return Seen(asked, status, "", False, json.loads(body)["error"]["code"] if body else "", [], None, 0, seconds)
    events = [json.loads(each[6:]) for each in body.decode().split("\n\n") if each.startswith("data: {")]
    error = next((each["error"]["code"] for each in events if "error" in each), "")
    choices = [each["choices"][0] for each in events if each.get("choices")]
    texts = [each["text"] if "text" in each else each["delta"].get("content") or "" for each in choices]
    finish = [each["finish_reason"] for each in choices if each["finish_reason"]]
    usage = next((each["usage"] for each in events if each.get("usage")), None)
    told_roles = sum("role" in each.get("delta", {}) for each in choices)
    assert told_roles <= 1
    assert body.count(b"[DONE]") == whole, body
    ids = len({(each["id"], each["created"]) for each in events if "id" in each})
    return Seen(asked, status, "".join(texts), whole, error, finish, usage, ids, seconds)


async def client(pair: Twins, asked: Asked) -> Seen | None:
    """Run a client; None if it went away."""
    await asyncio.sleep(asked.at)
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        status, body, whole = await asyncio.wait_for(pair.ask(*body_of(asked)), asked.leaves)
    except TimeoutError:
        return None
    return seen(asked, status, body, whole, loop.time() - began)


async def break_engines(engines: tuple[TwinEngine, ...], breaks: list[Fault]) -> None:
    for fault in breaks:
        await asyncio.sleep(fault.after)
        engine = engines[fault.engine]
        engine.hangs, engine.stuck = fault.how == "hangs", fault.how == "stuck"
        if fault.how == "killed":
            await engine.kill()
        await asyncio.sleep(fault.noticed + fault.down)
        await engine.kill()
        await engine.start()


def played(asked: list[Asked], breaks: list[Fault]) -> list[Seen]:
    async def play() -> list[Seen]:
        with tempfile.TemporaryDirectory(prefix="door-") as folder:
            async with twins(Path(folder), hold=HOLD_S, within=NOTICED_S) as pair:
                breaking = asyncio.ensure_future(break_engines((pair.first, pair.second), breaks))
                found = await asyncio.gather(*(client(pair, each) for each in asked))
                await breaking
                await asyncio.sleep(1)  # the gateway notices that the last client went away
                held = pair.door._pairs[MODEL]
                assert held.memory._free_bytes == 67_108_864
                assert not any(
                    engine.open_connections or engine._requests or engine._watcher for engine in held.engines
                )
                return [each for each in found if each]

    return in_virtual_time(play())


def check_text(found: Seen, complete: bool) -> None:
    """Check that the text is the answer, or its beginning if it is not complete, and that its tokens are counted."""
    tokens = tokens_of(f"{found.asked.tokens}/{found.asked.seed}")
    most = len(tokens) if found.asked.most is None else min(found.asked.most, len(tokens))
    whole = "".join(tokens[:most])
    assert whole.startswith(found.text)
    assert found.ids == 1 or not found.text
    if not complete:
        return
    assert len(found.finish) == 1
    assert found.text == whole
    if found.usage:
        given = found.usage["completion_tokens"]
        assert "".join(tokens[:given]) == found.text
        assert found.usage == {**found.usage, "prompt_tokens": 10, "total_tokens": 10 + given}


@given(asked=requests(("chat", "completion", "whole")), breaks=faults(APART_S))
@settings(suppress_health_check=FEW)
def test_no_stream_is_lost_or_doubled_where_one_engine_fails_at_a_time(asked: list[Asked], breaks: list[Fault]) -> None:
    for found in played(asked, breaks):
        assert (found.status, found.whole, found.error) == (200, True, ""), found
        check_text(found, complete=True)
        # Each fault costs what it takes to notice it, to ask again, and the tokens that were not told.
        # Where no stream of a stuck engine tells of it, its end does.
        stuck = sum(each.noticed + each.down for each in breaks if each.how == "stuck")
        assert found.seconds <= (found.asked.tokens + 3) * STEP_S + len(breaks) * (NOTICED_S + 3 * STEP_S) + stuck


@given(asked=requests(("chat", "completion", "whole", "seed")), breaks=faults(0))
@settings(suppress_health_check=FEW)
def test_whatever_fails_every_answer_is_whole_or_says_that_it_is_not(asked: list[Asked], breaks: list[Fault]) -> None:
    for found in played(asked, breaks):
        assert found.whole != bool(found.error), found
        assert found.error in ("", "engine-broke-off", "engine-not-up"), found
        check_text(found, complete=found.whole)


@pytest.mark.real
@given(asked=requests(("chat", "completion", "whole", "seed")), breaks=faults(0))
@settings(suppress_health_check=FEW, max_examples=600)
def test_hundreds_of_worlds(asked: list[Asked], breaks: list[Fault]) -> None:
    for found in played(asked, breaks):
        assert found.whole != bool(found.error), found
        check_text(found, complete=found.whole)
