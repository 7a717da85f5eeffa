"""Bodies of requests: the order of clients, the memory for them, their limits, and the process that parses large
ones.
"""

import asyncio
import json
import os
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.running import KEY, MODEL, OTHER_KEY, Gateway, gateway, parse_answer, read_to_end, settings_for
from tests.gateway.test_gateway import metric, read_answer, wait_until
from tests.gateway.test_gateway_start import tls_settings
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.gateway import body_process
from winhost.gateway.body_process import SMALL_BYTES, BodyProcess, EngineBody, check_shape
from winhost.gateway.gateway_settings import GatewaySettings, Limits, parse_settings
from winhost.gateway.request_rules import ErrorAnswer

OwnDoor = Callable[..., AbstractContextManager[Gateway]]
MEBI = 1 << 20
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def open_waiting_client(door: Gateway, length: int, key: str = KEY) -> socket.socket:
    """Open a connection, and send a head that announces a body of this length and waits for `100 Continue`. If two
    clients do this at the same time, either may be first: a test waits for the answer to the first one.
    """
    to = door.connected()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    )
    to.sendall(f"{head}Content-Length: {length}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n".encode())
    return to


def of_length(length: int, **more: Any) -> bytes:
    bare = len(json.dumps({"model": MODEL, "prompt": "", **more}))
    return json.dumps({"model": MODEL, "prompt": "x" * (length - bare), **more}).encode()


def waiting(door: Gateway, count: int) -> bool:
    return wait_until(lambda: metric(door, "winhost_gateway_requests_waiting") == str(count))


def has_nothing(to: socket.socket) -> bool:
    to.setblocking(False)
    try:
        return not to.recv(1)
    except BlockingIOError:
        return True
    finally:
        to.settimeout(PATIENCE_S)


# ---- before it is read


def test_a_place_is_taken_before_a_body_is_read(own_door: OwnDoor) -> None:
    with own_door(requests=1, waiting=2) as door, ExitStack() as opened:
        places = []
        for _ in range(3):
            places.append(opened.enter_context(open_waiting_client(door, 100)))
            assert places[-1].recv(100) == CONTINUE
        assert read_answer(opened.enter_context(open_waiting_client(door, 100))) == 503
        assert metric(door, 'winhost_gateway_refused_total{reason="busy"}') == "1"
        places[0].sendall(of_length(100))
        assert parse_answer(read_to_end(places[0]))[0] == 200


def test_a_key_with_all_places_gives_one_to_another_key(own_door: OwnDoor) -> None:
    with own_door(requests=1, waiting=2) as door, ExitStack() as opened:
        crowd = []
        for _ in range(3):
            crowd.append(opened.enter_context(open_waiting_client(door, 100)))
            assert crowd[-1].recv(100) == CONTINUE
        other = opened.enter_context(open_waiting_client(door, 100, OTHER_KEY))
        assert other.recv(100) == CONTINUE
        assert read_answer(crowd[2]) == 503  # the newest
        other.sendall(of_length(100))
        assert parse_answer(read_to_end(other))[0] == 200


def test_only_so_many_bytes_are_held_and_half_of_them_for_a_key(own_door: OwnDoor) -> None:
    size = 2 * SMALL_BYTES
    with own_door(body_bytes=size, bodies_bytes=2 * size, hold=PATIENCE_S) as door, ExitStack() as opened:
        first = opened.enter_context(open_waiting_client(door, size))
        assert first.recv(100) == CONTINUE
        second = opened.enter_context(open_waiting_client(door, size))
        assert waiting(door, 2)
        other = opened.enter_context(open_waiting_client(door, size, OTHER_KEY))
        assert other.recv(100) == CONTINUE
        last = opened.enter_context(open_waiting_client(door, size, OTHER_KEY))
        assert waiting(door, 4)
        small = opened.enter_context(open_waiting_client(door, 100))
        assert small.recv(100) == CONTINUE  # it needs no room
        assert metric(door, "winhost_gateway_held_body_bytes") == str(2 * size)
        assert [has_nothing(second), has_nothing(last)] == [True, True]
        for to in (first, second, other, last):
            if to in (second, last):
                assert to.recv(100) == CONTINUE
            to.sendall(of_length(size))
            assert parse_answer(read_to_end(to))[0] == 200
        assert metric(door, "winhost_gateway_held_body_bytes") == "0"


def test_who_goes_away_gives_back_the_room_for_a_body(own_door: OwnDoor) -> None:
    size = 2 * SMALL_BYTES
    with own_door(body_bytes=size, bodies_bytes=size, hold=PATIENCE_S) as door, open_waiting_client(door, size) as to:
        with open_waiting_client(door, size) as gone:
            gone.sendall(b"{")
            assert waiting(door, 2)
        assert to.recv(100) == CONTINUE
        to.sendall(of_length(size))
        assert parse_answer(read_to_end(to))[0] == 200


def test_a_large_body_may_come_in_chunks(own_door: OwnDoor) -> None:
    text = of_length(3 * SMALL_BYTES)
    with own_door(body_bytes=4 * SMALL_BYTES, bodies_bytes=4 * SMALL_BYTES) as door:
        head = door.request("/v1/completions", text).partition(b"Content-Length")[0]
        chunks = b"".join(
            b"%x\r\n%b\r\n" % (len(text[at : at + 9_000]), text[at : at + 9_000]) for at in range(0, len(text), 9_000)
        )
        status, _, body = parse_answer(door.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"))
        assert (status, json.loads(body)["choices"][0]["text"]) == (200, json.loads(text)["prompt"])
        assert metric(door, "winhost_gateway_held_body_bytes") == "0"


# ---- its shape


LIMITS = Limits(elements=100, depth=4)


@each_row(
    "text",
    [
        "[[[[1]]]]",
        '[{"a": [{}]}]',
        '["[[[[[[[[", {"{{{{{{{": "}}}]]]"}]',
        r'["\"[[[[[[", "\\", ["\\\"[[[["]]',
        "[" + "1," * 98 + "1]",
        '["' + "," * 200 + '"]',
        "{}" * 50,
    ],
)
def test_a_body_may_have_so_many_elements_and_levels(text: str) -> None:
    check_shape(bytearray(text.encode()), LIMITS)


@each_row(
    ("code", "text"),
    [
        ("too-deep", "[[[[[1]]]]]"),
        ("too-deep", '[{"a": [{"b": {}}]}]'),
        ("too-deep", "[[[[["),
        ("too-deep", "]]]]][[[[["),
        ("too-deep", r'["\\", [[[["\\"]]]]]'),
        ("too-many-elements", "[" + "1," * 100 + "1]"),
        ("too-many-elements", "[]" * 101),
        ("too-many-elements", '""' * 500 + '",' * 101),
    ],
)
def test_one_that_has_more_is_refused_before_it_is_parsed(code: str, text: str) -> None:
    with pytest.raises(ErrorAnswer) as caught:
        check_shape(bytearray(text.encode()), LIMITS)
    assert (caught.value.status, caught.value.code) == (413, code)


def depth_of(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)


ODD = st.text(alphabet='[]{},"\\a', max_size=8)
DOCUMENTS = st.recursive(
    st.integers() | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=3),
    max_leaves=12,
)


@given(DOCUMENTS)
def test_levels_are_those_that_a_parser_finds(document: Any) -> None:
    text, depth = bytearray(json.dumps(document).encode()), depth_of(document)
    check_shape(text, Limits(depth=max(1, depth)))
    if depth > 1:
        with pytest.raises(ErrorAnswer):
            check_shape(text, Limits(depth=depth - 1))


def test_a_body_that_is_too_deep_is_refused(own_door: OwnDoor) -> None:
    with own_door(depth=8) as door:
        for size in (0, 2 * SMALL_BYTES):  # by the gateway itself, and by its process
            deep = {"model": MODEL, "prompt": "x" * size, "tools": json.loads("[" * 8 + "]" * 8)}
            status, _, body = door.ask("/v1/completions", deep)
            assert (status, json.loads(body)["error"]["code"]) == (413, "too-deep")
        assert door.engine.requests == []


# ---- by whom it is read


def settings(**limits: int) -> GatewaySettings:
    model = {"name": MODEL, "served_as": "tiny", "engine": {"socket": "/run/engine.sock"}}
    return parse_settings(json.dumps({"listen": {"socket": "/run/door.sock"}, "models": [model], "limits": limits}))


def reading(work: Callable[[BodyProcess], Coroutine[Any, Any, None]], **limits: int) -> None:
    async def whole() -> None:
        process = BodyProcess(settings(**limits))
        try:
            await work(process)
        finally:
            await process.close()

    asyncio.run(whole())


async def read(process: BodyProcess, text: bytes) -> EngineBody:
    until = asyncio.get_running_loop().time() + PATIENCE_S
    parts = [text[at : at + 100_000] for at in range(0, len(text), 100_000)]
    return await process.read(parts, "/v1/completions", key="alice", deadline=until)


@pytest.mark.costly
def test_a_large_body_is_read_in_another_process_while_everybody_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    def not_here(*_: Any) -> EngineBody:
        raise AssertionError("it is read by the process that has everybody's streams")

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def work(process: BodyProcess) -> None:
        effective_keys = asyncio.ensure_future(count())
        found = await read(process, of_length(8 * MEBI, stream=True))
        effective_keys.cancel()
        asked = {**json.loads(of_length(8 * MEBI, stream=True)), "model": "tiny"}
        assert json.loads(b"".join(found.parts)) == asked | {"stream_options": {"include_usage": True}}
        assert max(map(len, found.parts)) <= 131_072  # no step of the loop has more in hand
        assert turns > 8 * MEBI // 131_072

    monkeypatch.setattr(body_process, "prepare_for_engine", not_here)
    reading(work)


def test_of_a_crowd_of_bodies_few_are_read_in_each_round_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = 0
    when: list[int] = []

    def noted(*_: Any) -> EngineBody:
        when.append(rounds)
        return EngineBody(MODEL, [])

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def work(process: BodyProcess) -> None:
        effective_keys = asyncio.ensure_future(count())
        for size, in_a_round in ((SMALL_BYTES, 1), (SMALL_BYTES // 3, 3)):
            when.clear()
            await asyncio.gather(*(read(process, of_length(size)) for _ in range(100)))
            assert (len(when), max(Counter(when).values())) == (100, in_a_round)
        effective_keys.cancel()

    monkeypatch.setattr(body_process, "prepare_for_engine", noted)
    reading(work)


def test_what_is_wrong_with_a_large_body_is_said() -> None:
    async def work(process: BodyProcess) -> None:
        for text, code in (
            (of_length(MEBI)[:-1], "body"),
            (of_length(MEBI).replace(b"org", b"alt"), "model_not_found"),
            (b"[" * MEBI, "too-many-elements"),
            (b'{"model": "' + b"\xff" * MEBI + b'"}', "body"),
        ):
            with pytest.raises(ErrorAnswer) as caught:
                await read(process, text)
            assert (caught.value.code, caught.value.param) == (code, "model" if code == "model_not_found" else None)

    reading(work)


def test_where_the_process_is_killed_the_next_body_has_another() -> None:
    async def work(process: BodyProcess) -> None:
        await read(process, of_length(MEBI))
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ErrorAnswer) as caught:
            await read(process, of_length(MEBI))
        assert (caught.value.status, caught.value.code) == (503, "body-not-read")
        assert caught.value.headers == {"Retry_After": "5"}
        assert (await read(process, of_length(MEBI))).model == MODEL

    reading(work)


def test_who_leaves_in_the_middle_spoils_nothing() -> None:
    async def work(process: BodyProcess) -> None:
        for turns in (1, 3, 10, 30):
            leaving = asyncio.ensure_future(read(process, of_length(MEBI)))
            for _ in range(turns):
                await asyncio.sleep(0)
            leaving.cancel()
            assert (await read(process, of_length(2 * MEBI))).model == MODEL

    reading(work)


# ---- an attack


def memory_mib(process: int) -> int:
    """Return the peak memory of a process."""
    lines = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


@pytest.mark.costly
@pytest.mark.parametrize("tls", [False, True])
def test_large_bodies_at_once_take_little_memory_and_hold_up_nobody(short: Path, python: str, tls: bool) -> None:
    port, secured = tls_settings(short)
    context = ssl.create_default_context(cafile=str(short / "cert.pem"))

    def connected(door: Gateway) -> socket.socket:
        if not tls:
            return door.connected()
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def attack(door: Gateway) -> int:
        with closing(connected(door)) as to:
            to.sendall(door.request("/v1/completions", of_length(16 * MEBI - 100)))
            return parse_answer(read_to_end(to))[0]

    with gateway(short, secured if tls else settings_for(short), python) as door:
        before = memory_mib(door.process.pid)
        with closing(connected(door)) as to, ThreadPoolExecutor(4) as pool:
            to.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "slow 10", "stream": True}))
            assert [each.result(PATIENCE_S) for each in [pool.submit(attack, door) for _ in range(4)]] == [200] * 4
            assert b"[DONE]" in parse_answer(read_to_end(to))[2]
        # Each body once, and less than as much again for what is on its way.
        assert memory_mib(door.process.pid) - before < 4 * 16 * 2


@pytest.mark.costly
def test_however_many_send_large_bodies_only_so_many_bytes_are_held(short: Path, python: str) -> None:
    limits = {"body_bytes": 4 * MEBI, "bodies_bytes": 8 * MEBI, "hold": PATIENCE_S}
    with gateway(short, settings_for(short, limits=limits), python) as door, ThreadPoolExecutor(40) as pool:
        before = memory_mib(door.process.pid)
        request = door.request("/v1/completions", of_length(4 * MEBI - 100))
        answers = [pool.submit(lambda: parse_answer(door.raw(request))[0]) for _ in range(40)]
        assert [each.result(PATIENCE_S) for each in answers] == [200] * 40
        # 160 MiB came. Beside the bodies, some 0.4 MiB of each connection are on their way.
        assert memory_mib(door.process.pid) - before < 3 * 8 + 40 * 0.5
