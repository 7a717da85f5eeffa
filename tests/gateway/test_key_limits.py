"""Limits of API keys, and the answers beyond them."""

import json
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.running import MODEL, OTHER_KEY, Gateway, gateway, settings_for
from tests.gateway.test_gateway import metric, wait_until
from tests.rows import each_row
from winhost.gateway.key_limits import CountedRequest, KeyLimits, OverLimit, TokenCount, parse_key_limits

BOB = {"Authorization": f"Bearer {OTHER_KEY}"}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Clock, **per_key: Any) -> KeyLimits:
    return KeyLimits(parse_key_limits(per_key), clock)


def use_tokens(found: KeyLimits, key: str = "alice", tokens: int = 0) -> float:
    """Use these tokens with one request. Return the seconds to wait if it is refused."""
    try:
        with CountedRequest(found, key) as count:
            count._reported[b"total"] = tokens
        return 0
    except OverLimit as over:
        return over.retry_after


def test_without_limits_there_are_none() -> None:
    found = limits(Clock())
    with ExitStack() as opened:
        assert len([opened.enter_context(CountedRequest(found, "alice")) for _ in range(10_000)]) == 10_000


def test_a_key_has_so_many_requests_at_a_time() -> None:
    found = limits(Clock(), concurrent=2, keys={"bob": {"concurrent": 1}})
    with CountedRequest(found, "alice"), CountedRequest(found, "alice"), CountedRequest(found, "bob"):
        assert (use_tokens(found), use_tokens(found, "bob"), use_tokens(found, "carol")) == (1, 1, 0)
    assert (use_tokens(found), use_tokens(found, "bob")) == (0, 0)


def test_a_key_has_so_many_requests_per_minute() -> None:
    clock = Clock()
    found = limits(clock, requests_per_minute=30)
    assert [use_tokens(found) for _ in range(31)] == [0] * 30 + [2]
    assert use_tokens(found, "bob") == 0
    clock.now += 2
    assert [use_tokens(found), use_tokens(found)] == [0, 2]
    clock.now += 3600
    assert [use_tokens(found) for _ in range(31)] == [0] * 30 + [2]


def test_a_request_may_take_more_tokens_than_are_left_and_the_next_ones_wait() -> None:
    clock = Clock()
    found = limits(clock, tokens_per_minute=6_000, keys={"bob": {"tokens_per_minute": 60_000}})
    assert [use_tokens(found, tokens=5_000), use_tokens(found, tokens=2_001), use_tokens(found)] == [0, 0, 11]
    assert [use_tokens(found, "bob", 50_000), use_tokens(found, "bob")] == [0, 0]
    clock.now += 11
    assert use_tokens(found) == 0


def counted(parts: list[bytes], hides: bool = False) -> tuple[bytes, int]:
    count = TokenCount()
    count.hides_usage = hides
    return b"".join(map(count.feed, parts)) + count.end(), count.tokens


EVENT = b'data: {"choices":[{"text":"\\"total_tokens\\": 9999"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":30,"total_tokens":42}}\n\n'
DONE = b"data: [DONE]\n\n"


@each_row("size", [1, 7, 40, 10_000])
def test_tokens_are_those_that_the_engine_reports_however_they_come(size: int) -> None:
    stream = EVENT * 3 + USAGE + DONE
    cut = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert counted(cut) == (stream, 42)
    assert counted(cut, hides=True) == (EVENT * 3 + DONE, 42)
    windows = [each.replace(b"\n", b"\r\n") for each in cut]
    assert counted(windows, hides=True) == ((EVENT * 3 + DONE).replace(b"\n", b"\r\n"), 42)


def test_an_event_is_a_token_where_the_engine_reports_none() -> None:
    assert counted([EVENT, EVENT, EVENT]) == (EVENT * 3, 3)
    assert counted([EVENT, EVENT[:-1]], hides=True) == (EVENT + EVENT[:-1], 1)


def test_an_answer_that_is_no_stream_is_counted_too() -> None:
    answer = b'{"choices":[],"usage":{"total_tokens": 7}}'
    assert counted([answer[:35], answer[35:]]) == (answer, 7)


# ---- at the door


@pytest.fixture
def limited(short: Path, python: str) -> "Any":
    def made(**per_key: Any) -> AbstractContextManager[Gateway]:
        return gateway(short, settings_for(short, per_key=per_key), python)

    return made


def refusal(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str, str]:
    status, headers, body = answer
    error = json.loads(body)["error"]
    return status, headers["retry-after"], f"{error['type']}: {error['code']}: {error['message']}"


def test_who_asks_too_often_is_told_when_to_come_again(limited: Any) -> None:
    with limited(requests_per_minute=1, keys={"bob": {"requests_per_minute": 60}}) as door:
        assert door.complete("first")[0] == 200
        status, after, message = refusal(door.complete("second"))
        assert (status, message) == (
            429,
            "rate_limit_error: rate_limit_exceeded: This API key may have 1 requests per minute.",
        )
        assert 0 < int(after) <= 60
        assert door.ask("/v1/completions", {"model": MODEL, "prompt": "other"}, BOB)[0] == 200
        assert door.ask("/v1/models")[0] == 200  # what no engine gets is free
        assert len(door.engine.requests) == 2
        assert metric(door, 'winhost_gateway_refused_total{reason="rate_limit_exceeded"}') == "1"


def test_a_key_has_so_many_requests_open(limited: Any) -> None:
    with limited(concurrent=1) as door, door.connected() as to:
        to.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "slow 1000", "stream": True}))
        assert wait_until(lambda: len(door.engine.requests) == 1)
        assert refusal(door.complete("second"))[0] == 429
        assert door.ask("/v1/completions", {"model": MODEL, "prompt": "other"}, BOB)[0] == 200
        to.close()
        assert wait_until(lambda: door.complete("third")[0] == 200)


def test_tokens_count_whatever_the_answer_is(short: Path, python: str) -> None:
    for kind, more in {
        "a": {},
        "b": {"stream": True},
        "c": {"stream": True, "stream_options": {"include_usage": True}},
    }.items():
        folder = short / kind
        folder.mkdir()
        with gateway(folder, settings_for(folder, per_key={"tokens_per_minute": 1_000}), python) as door:
            status, _, body = door.complete("takes 3000", **more)
            assert (status, b"total_tokens" in body) == (200, kind != "b"), "its client did not ask for it"
            status, after, message = refusal(door.complete("second"))
            assert (status, "1000 tokens per minute" in message) == (429, True)
            assert 60 < int(after) <= 121
