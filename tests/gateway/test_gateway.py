"""The gateway as it runs before an engine: raw connections on one side, a stand-in for vLLM on the other."""

import json
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.running import (
    KEY,
    METRICS_KEY,
    MODEL,
    OTHER_KEY,
    Gateway,
    dechunked,
    gateway,
    parse_answer,
    read_to_end,
    settings_for,
)
from tests.gateway.test_routes import TARGETS
from tests.gateway.test_strict_http import CASES, sent
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.gateway.api_keys import new_key

OwnDoor = Callable[..., AbstractContextManager[Gateway]]


def statuses(raw: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.[01] (\d{3}) ", raw)]


def wait_until(what: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    return what()


def read_answer(to: socket.socket) -> int:
    """Read the next answer of a connection that stays open, and return its status. Head and body may come
    separately.
    """
    raw = b""
    while not (found := re.search(rb"(?i)content-length: (\d+)\r\n(?:.*\r\n)*\r\n", raw)) or (
        len(raw) < found.end() + int(found[1])
    ):
        part = to.recv(1000)
        assert part, raw
        raw += part
    return statuses(raw)[0]


def metric(door: Gateway, line: str) -> str | None:
    text = door.metrics()
    return next((each.rpartition(" ")[2] for each in text.splitlines() if each.startswith(line)), None)


# ---- what does not come through


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_is_refused_no_engine_gets(door: Gateway, case: dict[str, Any]) -> None:
    before = len(door.engine.requests)
    assert statuses(door.raw(sent(case))) == case["statuses"]
    assert len(door.engine.requests) - before == case.get("engine", 0)


def test_a_byte_at_a_time_is_read_alike(door: Gateway) -> None:
    with door.connected() as to:
        for byte in door.request("/v1/completions", {"model": MODEL, "prompt": "bytes"}):
            to.sendall(bytes([byte]))
        assert parse_answer(read_to_end(to))[0] == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nothing_but_the_allow_list_reaches_an_engine(door: Gateway, method: str) -> None:
    before = len(door.engine.requests)
    for target in TARGETS:
        status, _, body = door.ask(target, {"model": MODEL} if method == "POST" else None)
        assert status in (400, 404), target
        assert status == 400 or json.loads(body)["error"]["code"] == "not-published"
    assert len(door.engine.requests) == before


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_a_route_takes_one_method(door: Gateway, method: str) -> None:
    before = len(door.engine.requests)
    status, headers, _ = door.ask("/v1/completions", {"model": MODEL, "prompt": "a"}, method=method)
    assert (status, headers["allow"]) == (405, "POST")
    assert len(door.engine.requests) == before


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer x", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Bearer  {KEY}", KEY,
     f"Bearer {KEY.upper()}", f"Bearer {'a' * 600}", f"Bearer {KEY}, Bearer {KEY}",
     "Bearer ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ"],
)  # fmt: skip
def test_without_a_key_nothing_is_told(door: Gateway, header: str) -> None:
    before = len(door.engine.requests)
    for path in ("/v1/models", "/metrics", "/sleep", "/v1/nothing"):
        raw = door.request(path, headers={"Authorization": header} if header else {})
        status, headers, body = parse_answer(door.raw(raw.decode().encode("latin-1")))
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert MODEL.encode() not in body
    assert len(door.engine.requests) == before


def test_a_field_that_is_not_on_the_list_is_named_and_no_engine_gets_it(door: Gateway) -> None:
    before = len(door.engine.requests)
    refused = {"priority": -1, "cache_salt": "a", "kv_transfer_params": {"remote_host": "10.0.0.1"}, "n": 1000}
    for name, value in refused.items():
        status, _, body = door.complete("a", **{name: value})
        error = json.loads(body)["error"]
        assert (status, error["type"], error["param"]) == (400, "invalid_request_error", name)
        assert "`body." in error["message"]
    part = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}
    status, _, body = door.ask("/v1/chat/completions", chat)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_media_url")
    large = {"model": MODEL, "prompt": "a" * 300_000, "priority": 1}  # read in another thread
    assert door.ask("/v1/completions", large)[0] == 400
    assert len(door.engine.requests) == before
    assert metric(door, 'winhost_gateway_refused_total{reason="unknown_parameter"}') == "4"


def test_what_settings_allow_reaches_the_engine(python: str, short: Path) -> None:
    settings = settings_for(short)
    settings["models"][0]["body"] = {"fields": ["priority"], "media": ["images.example.org"], "most": {"n": 32}}
    with gateway(short, settings, python) as door:
        assert door.complete("a", priority=3, n=32)[0] == 200
        assert json.loads(door.engine.requests[-1][2])["priority"] == 3
        assert door.complete("a", cache_salt="b")[0] == 400


def test_a_body_is_checked_before_an_engine_gets_it(door: Gateway) -> None:
    before = len(door.engine.requests)
    assert door.ask("/v1/completions", b"[1]")[0] == 400
    assert door.ask("/v1/completions", {"model": "other"})[0] == 404
    assert door.ask("/v1/completions", {"model": "tiny"})[0] == 404  # the engine's own name is not published
    plain = door.request("/v1/completions", {"model": MODEL}).replace(b"application/json", b"text/plain")
    assert parse_answer(door.raw(plain))[0] == 415
    assert len(door.engine.requests) == before


@pytest.mark.costly
def test_slow_heads_and_bodies_end(door: Gateway, own_door: OwnDoor) -> None:
    with own_door(head=1) as hasty, hasty.connected() as head, door.connected() as body:
        head.sendall(b"GET /health HT")
        body.sendall(door.request("/v1/completions", {"model": MODEL})[:-3])
        assert read_to_end(head) == b""
        status, headers, told = parse_answer(read_to_end(body))
        assert (status, headers["connection"], json.loads(told)["error"]["code"]) == (408, "close", "too-slow")


def test_too_many_requests_ahead_of_their_answers_end_the_connection(door: Gateway) -> None:
    slow = door.request("/v1/completions", {"model": MODEL, "prompt": "hang"}).replace(b"Connection: close\r\n", b"")
    assert len(statuses(door.raw(slow + b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 40))) == 0


# ---- what comes through


def test_an_engine_gets_its_own_name_and_nothing_of_the_client_but_the_body(door: Gateway) -> None:
    extra = {**door.headers, "Cookie": "a=b", "X-Forwarded-For": "10.0.0.1", "Accept-Encoding": "gzip"}
    status, headers, body = door.ask("/v1/completions?x=y", {"model": MODEL, "prompt": "hällo", "n": 1}, extra)
    assert (status, json.loads(body)["choices"][0]["text"]) == (200, "hällo")
    method, path, got = door.engine.requests[-1]
    assert (method, path, json.loads(got)) == ("POST", "/v1/completions", {"model": "tiny", "prompt": "hällo", "n": 1})
    assert headers["server"] == "winhost"
    assert headers["x-request-id"] in door.log


GIVEN = {
    "req_0af7651916cd43dd-8448.eb2": True,
    "a" * 64: True,
    "a" * 65: False,
    "": False,
    "two words": False,
    'a"b': False,
    "key=bob": False,
    "10.0.0.1:8000": False,
    "___prefill_addr_10.0.0.1": False,  # vLLM's connectors would connect there
    KEY: False,
    KEY[:20]: False,
    f"x-{KEY}-1": False,
    f"half.{KEY[10:22]}": False,
    OTHER_KEY: False,  # of somebody else
    "1": True,  # which is in the key as well, and tells nothing of it
}


@each_row(("given", "taken"), GIVEN.items())
def test_an_id_of_a_client_comes_back_and_no_engine_gets_it_twice(door: Gateway, given: str, taken: bool) -> None:
    for _ in range(2):
        _, headers, _ = door.ask(
            "/v1/completions", {"model": MODEL, "prompt": "a"}, {**door.headers, "X-Request-Id": given}
        )
        assert (headers["x-request-id"] == given) == taken
        assert door.engine.ids[-1].startswith(headers["x-request-id"])
    assert len(set(door.engine.ids[-2:])) == 2
    assert all(f"id={each} " in door.log for each in door.engine.ids[-2:])


def test_nobody_without_a_key_says_a_word_in_the_log(door: Gateway) -> None:
    for path in ("/v1/models", "/health"):
        assert door.ask(path, headers={"X-Request-Id": "canary"})[1]["x-request-id"] != "canary"


def test_each_line_of_the_log_is_made_of_keys_and_values(door: Gateway) -> None:
    door.complete("a")
    door.raw(door.request("/v1/completions", {"model": MODEL, "prompt": "die", "stream": True}))
    door.ask("/v1/completions", {"model": "org/none", "prompt": "a"})
    lines = [dict(each.split("=", 1) for each in shlex.split(line)) for line in door.log.splitlines()]
    assert {each["level"] for each in lines} <= {"info", "warning", "error"}
    assert any(each["msg"].startswith("listening on") for each in lines)
    served, broken, refused = [each for each in lines if each["msg"] == "request"][-3:]
    assert (served["status"], served["key"], served["model"]) == ("200", "alice", MODEL)
    assert float(served["first_byte_s"]) <= float(served["request_s"])
    assert int(served["sent_bytes"]) > 0
    assert (broken["status"], broken["error"]) == ("200", "engine-broke-off")
    assert (refused["status"], refused["error"]) == ("404", "model_not_found")


def test_models_have_the_names_that_are_published(door: Gateway) -> None:
    assert [each["id"] for each in json.loads(door.ask("/v1/models")[2])["data"]] == [MODEL]
    assert json.loads(door.ask("/v1/models/org%2Ftiny")[2])["id"] == MODEL


def test_a_large_body_comes_through_whole(door: Gateway) -> None:
    prompt = "wörd " * 60_000
    assert json.loads(door.complete(prompt)[2])["choices"][0]["text"] == prompt


def test_who_waits_to_be_asked_for_the_body_is_asked(door: Gateway) -> None:
    head, body = door.request("/v1/completions", {"model": MODEL, "prompt": "a"}).split(b"\r\n\r\n")
    with door.connected() as to:
        to.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert to.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        to.sendall(body)
        assert parse_answer(read_to_end(to))[0] == 200


def test_a_connection_is_used_again(door: Gateway) -> None:
    request = door.request("/v1/completions", {"model": MODEL, "prompt": "a"})
    again = request.replace(b"Connection: close\r\n", b"")
    assert statuses(door.raw(again * 5 + request)) == [200] * 6


def test_a_stream_comes_as_the_engine_says_it(door: Gateway) -> None:
    with door.connected() as to:
        to.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "held", "stream": True}))
        parts = b""
        while b"held/0" not in parts:  # a gateway that keeps it until its end never sends this
            parts += to.recv(65536)
        door.engine.first_came.set()
        parts += read_to_end(to)
    status, headers, body = parse_answer(parts)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert body.count(b"data: ") == 4


def test_streams_at_once_are_not_mixed_up(door: Gateway) -> None:
    def one(number: int) -> bool:
        status, _, body = door.complete(f"words-{number}", stream=True)
        texts = [json.loads(line[6:])["choices"][0]["text"] for line in body.split(b"\n\n")[:3]]
        return status == 200 and texts == [f"words-{number}/{each} " for each in range(3)]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(64)))


@pytest.mark.real
def test_of_five_hundred_streams_at_once_none_is_refused_and_each_is_whole(own_door: OwnDoor) -> None:
    """The limits are those of a deployment: 256 requests run and the others wait. Each has its own prompt."""
    with own_door(hold=PATIENCE_S) as door, ExitStack() as closing:
        streams: list[tuple[str, socket.socket]] = []
        for number in range(500):
            prompt, to = f"held {number}", closing.enter_context(door.connected())
            to.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": prompt, "stream": True}))
            streams.append((prompt, to))
        assert wait_until(lambda: metric(door, "winhost_gateway_requests_waiting") == "244")
        assert wait_until(lambda: len(door.engine.requests) == 256)
        assert metric(door, "winhost_gateway_requests_running") == "256"
        door.engine.first_came.set()
        for prompt, to in streams:
            status, _, body = parse_answer(read_to_end(to))
            texts = [json.loads(line[6:])["choices"][0]["text"] for line in body.split(b"\n\n")[:3]]
            assert (status, texts) == (200, [f"{prompt}/{each} " for each in range(3)])
            assert body.endswith(b"data: [DONE]\n\n")


def test_a_client_of_an_older_http_gets_a_stream_without_chunks(door: Gateway) -> None:
    request = door.request("/v1/completions", {"model": MODEL, "prompt": "old", "stream": True})
    head, _, body = door.raw(request.replace(b"HTTP/1.1", b"HTTP/1.0")).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert [json.loads(line[6:])["choices"][0]["text"] for line in body.split(b"\n\n")[:3]] == [
        f"old/{each} " for each in range(3)
    ]
    assert body.endswith(b"\n\ndata: [DONE]\n\n")


@pytest.mark.costly
def test_no_more_is_read_of_a_stream_than_its_client_takes(own_door: OwnDoor) -> None:
    with own_door(receive=PATIENCE_S) as door, door.connected() as to:
        to.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "flood 64", "stream": True}))
        begun = to.recv(1000)
        time.sleep(1)
        assert door.engine.flooded < 16
        raw = begun + read_to_end(to)
    assert raw.count(b"x") >= 64 << 20
    assert raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_no_request_goes_on_while_answers_before_it_are_not_read(own_door: OwnDoor) -> None:
    with own_door(receive=PATIENCE_S) as door, door.connected() as to:
        request = door.request("/v1/completions", {"model": MODEL, "prompt": "x" * 30_000})
        request = request.replace(b"Connection: close\r\n", b"")
        sent = 0
        while len(door.engine.requests) == sent and sent < 100:
            to.sendall(request)
            sent += 1
            for _ in range(25):
                if len(door.engine.requests) < sent:
                    time.sleep(0.02)
        assert len(door.engine.requests) < 50
        read = b""
        while read.count(b"HTTP/1.1 200 ") < sent:
            read += to.recv(65536)


def test_an_engines_errors_are_its_own(door: Gateway) -> None:
    status, headers, body = door.complete("unavailable")
    assert (status, headers["retry-after"]) == (503, "7")
    assert b"paused" in body


# ---- what goes wrong


def test_a_stream_that_breaks_off_never_looks_whole(door: Gateway) -> None:
    raw = door.raw(door.request("/v1/completions", {"model": MODEL, "prompt": "die", "stream": True}))
    body, whole = dechunked(raw.partition(b"\r\n\r\n")[2])
    assert not whole
    assert b"[DONE]" not in body
    assert json.loads(body.split(b"data: ")[-1])["error"]["code"] == "engine-broke-off"


@pytest.mark.parametrize("prompt", ["die at once", "hang"])
def test_an_engine_that_says_nothing_is_an_error(door: Gateway, prompt: str) -> None:
    status, _, body = door.complete(prompt)
    assert (status, json.loads(body)["error"]["code"]) == (502, "engine-broke-off")


def test_an_engine_is_told_that_its_client_is_gone(door: Gateway) -> None:
    def those(bodies: Iterable[bytes]) -> int:
        """Count only the requests of this test: the engine may notice late that clients of other tests are gone."""
        return sum(b'"hang on"' in body or b'"slow 601"' in body for body in bodies)

    with door.connected() as waiting, door.connected() as streaming:
        waiting.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "hang on"}))
        streaming.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "slow 601", "stream": True}))
        streaming.recv(1000)
        assert wait_until(lambda: those(body for *_, body in door.engine.requests) == 2)
    assert wait_until(lambda: those(door.engine.gone) == 2)
    assert wait_until(lambda: metric(door, "winhost_gateway_requests_running") == "0")


def test_a_request_waits_for_an_engine_that_starts(own_door: OwnDoor) -> None:
    with own_door(engine_up=False, hold=PATIENCE_S) as door:
        later = threading.Timer(1, door.engine.start)
        later.start()
        try:
            assert door.complete("patience")[0] == 200
        finally:
            later.join(PATIENCE_S)


@pytest.mark.costly
def test_it_waits_so_long_and_no_longer(door: Gateway) -> None:
    door.engine.stop()
    try:
        status, headers, body = door.complete("nobody")
        assert (status, headers["retry-after"]) == (503, "10")
        assert json.loads(body)["error"]["code"] == "engine-not-up"
        assert door.ask("/health", headers={})[0] == 200
        status, headers, body = door.ask("/ready", headers={})
        assert (status, headers["retry-after"], json.loads(body)["error"]["code"]) == (503, "10", "not-ready")
    finally:
        door.engine.start()
    assert wait_until(lambda: door.ask("/ready", headers={})[0] == 200)
    assert json.loads(door.engine.requests[-1][2])["max_tokens"] == 1  # a completion says so, no port that is open


def test_readiness_costs_an_engine_little(door: Gateway) -> None:
    assert wait_until(lambda: door.ask("/ready", headers={})[0] == 200)
    before = len(door.engine.requests)
    assert {door.ask("/ready", headers={})[0] for _ in range(20)} == {200}
    assert len(door.engine.requests) == before


def test_who_finds_no_place_is_told_when_to_come_again(own_door: OwnDoor) -> None:
    with own_door(requests=8, waiting=2, hold=PATIENCE_S) as door, ThreadPoolExecutor(12) as pool:
        first = [pool.submit(door.complete, "held", stream=True) for _ in range(8)]
        assert wait_until(lambda: metric(door, "winhost_gateway_requests_running") == "8")
        later = [pool.submit(door.complete, "later") for _ in range(4)]
        assert wait_until(lambda: sum(each.done() for each in later) == 2)
        door.engine.first_came.set()
        found = [each.result(PATIENCE_S) for each in (*first, *later)]
    busy = [(headers["retry-after"], json.loads(body)) for status, headers, body in found if status == 503]
    assert [status for status, _, _ in found[:8]] == [200] * 8
    assert sorted(status for status, _, _ in found[8:]) == [200, 200, 503, 503]  # two of them wait
    assert all(retry == "5" and body["error"]["code"] == "busy" for retry, body in busy)


def test_prometheus_is_told(door: Gateway) -> None:
    door.complete("count me")
    door.complete("count me", stream=True)
    door.complete("status 500")
    text = door.metrics()
    for line in text.splitlines():
        assert re.fullmatch(
            r"# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{[a-z_]+=\"[^\"]*\"(,[a-z_]+=\"[^\"]*\")*\})? [0-9.e-]+", line
        )
    label = f'route="/v1/completions",model="{MODEL}",status="200"'
    assert int(metric(door, f"winhost_gateway_requests_total{{{label}}}") or 0) > 0
    model = f'gen_ai_operation_name="text_completion",gen_ai_provider_name="vllm",gen_ai_request_model="{MODEL}"'
    for kind, more in (
        ("time_to_first_token", ""),
        ("request_duration", ""),
        ("request_duration", ',error_type="500"'),
    ):
        assert int(metric(door, f"gen_ai_server_{kind}_seconds_count{{{model}{more}}}") or 0) > 0


def test_metrics_take_a_key_of_their_own(door: Gateway) -> None:
    status, _, body = door.ask("/metrics")
    assert (status, json.loads(body)["error"]["code"], MODEL.encode() in body) == (403, "no-metrics-key", False)
    before = len(door.engine.requests)
    bearer = {"Authorization": f"Bearer {METRICS_KEY}"}
    for path, data in (("/v1/models", None), ("/v1/completions", {"model": MODEL, "prompt": "a"}), ("/sleep", None)):
        status, _, body = door.ask(path, data, bearer)
        assert (status, json.loads(body)["error"]["code"]) == (403, "metrics-key")
    assert len(door.engine.requests) == before


def test_a_key_for_the_metrics_of_a_model_shows_no_other(python: str, short: Path) -> None:
    settings = settings_for(short)
    settings["models"].append({**settings["models"][0], "name": "org/other"})
    key, line = new_key("tenant", "metrics=org/other")
    with gateway(short, settings, python, more_keys=line) as door:
        for name in (MODEL, "org/other", "org/none"):
            door.ask("/v1/completions", {"model": name, "prompt": "a"})
        every, own = door.metrics(), door.metrics(key)
    told = [each for each in own.splitlines() if not each.startswith("#")]
    assert f'model="{MODEL}"' in every
    assert "connections " in every
    assert told
    assert all('model="org/other"' in each for each in told)
    assert ("key_requests_total" in every, "key_" in own) == (True, False)  # nor costs a gateway of many keys time
    assert any(each.startswith("gen_ai_server_request_duration_seconds_count") for each in told)


def test_a_key_for_the_metrics_of_no_model_is_a_fault(python: str, short: Path) -> None:
    with (
        pytest.raises(AssertionError, match="metrics=org/none names no model; there are org/tiny"),
        gateway(short, settings_for(short), python, more_keys=new_key("a", "metrics=org/none")[1]),
    ):
        pass


def test_no_key_and_no_word_of_a_client_is_in_the_log(door: Gateway) -> None:
    door.complete("canary-of-a-prompt")
    door.ask("/canary-of-a-path", headers={"Authorization": "Bearer canary-of-a-key-that-is-long-enough"})
    door.raw(b"CANARY /canary HTTP/1.1\r\nHost: canary\r\n\r\n")
    log = door.log
    assert "key=alice route=/v1/completions" in log
    assert KEY not in log
    assert "canary" not in log.lower()
    assert "Traceback" not in log
    command = (
        Path(f"/proc/{door.process.pid}/cmdline").read_bytes() + Path(f"/proc/{door.process.pid}/environ").read_bytes()
    )
    assert KEY.encode() not in command


# ---- its end


@pytest.mark.costly
def test_it_ends_when_streams_have(own_door: OwnDoor) -> None:
    with own_door(drain=PATIENCE_S) as door, door.connected() as to, door.connected() as idle:
        to.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "held", "stream": True}))
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert statuses(idle.recv(1000)) == [200]
        begun = to.recv(200)
        door.process.terminate()
        assert wait_until(lambda: "stopping" in door.log)
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            door.connected()
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert statuses(read_to_end(idle)) == [503]
        door.engine.first_came.set()
        assert b"[DONE]" in parse_answer(begun + read_to_end(to))[2]
        assert door.process.wait(PATIENCE_S) == 0


@pytest.mark.costly
def test_it_ends_in_time_whatever_a_stream_does(own_door: OwnDoor) -> None:
    with own_door(drain=1) as door, door.connected() as to:
        to.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "slow 10000", "stream": True}))
        begun = to.recv(200)
        assert door.end() == 0
        stream, whole = dechunked((begun + read_to_end(to)).partition(b"\r\n\r\n")[2])
        assert not whole
        assert json.loads(stream.rpartition(b"data: ")[2])["error"]["code"] == "stopping"


def test_more_connections_than_the_limit_are_closed(own_door: OwnDoor) -> None:
    with own_door(connections=3) as door, ExitStack() as opened:
        held = [opened.enter_context(door.connected()) for _ in range(3)]
        for each in held:
            each.sendall(f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
            assert statuses(each.recv(1000)) == [200]
        assert door.raw(door.request("/health", headers={})) == b""
        held.pop().close()
        assert wait_until(lambda: statuses(door.raw(door.request("/health", headers={}))) == [200])


def test_silent_connections_take_no_place_from_whoever_has_a_key(own_door: OwnDoor) -> None:
    with own_door(connections=8) as door, ExitStack() as opened:
        first = opened.enter_context(door.connected())
        first.sendall(f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
        assert read_answer(first) == 200
        silent = [opened.enter_context(door.connected()) for _ in range(20)]
        assert door.complete("hello")[0] == 200
        assert metric(door, "winhost_gateway_connections") is not None
        assert [read_to_end(each) for each in silent[:12]] == [b""] * 12  # those that were silent for longest made room
        first.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert read_answer(first) == 200


def test_a_connection_that_stays_silent_is_closed(own_door: OwnDoor) -> None:
    with own_door(head=1) as door, door.connected() as to:
        assert read_to_end(to) == b""


def test_a_body_with_too_many_elements_is_refused_before_it_is_parsed(own_door: OwnDoor) -> None:
    with own_door(elements=1_000) as door:
        status, _, body = door.ask("/v1/completions", {"model": MODEL, "prompt": [1] * 1_001})
        assert (status, json.loads(body)["error"]["code"]) == (413, "too-many-elements")
        assert door.ask("/v1/completions", {"model": MODEL, "prompt": [1] * 900})[0] != 413


@each_row("prompt", ["status 302", "status 600", "status 999", "header"])
def test_an_answer_that_is_none_is_a_bad_gateway(door: Gateway, prompt: str) -> None:
    status, _, body = door.complete(prompt)
    assert (status, json.loads(body)["error"]["code"]) == (502, "engine-broke-off")


def test_how_a_body_is_encoded_is_said_with_it(door: Gateway) -> None:
    assert door.complete("encoded")[1]["content-encoding"] == "gzip"


@pytest.mark.costly
def test_a_client_that_does_not_read_holds_nothing_for_long(own_door: OwnDoor) -> None:
    with own_door(receive=1) as door, door.connected() as to:
        to.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # A small request, which comes within a second on any machine, with an answer that no buffer holds.
        to.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "flood 64", "stream": True}))
        assert wait_until(lambda: bool(door.engine.requests))
        assert wait_until(lambda: metric(door, "winhost_gateway_requests_running") == "0")
