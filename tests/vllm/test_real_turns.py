"""Two real vLLM on the processor take turns behind the gateway: the queue, the hold and the drain are for real.

On a processor /sleep and /wake_up free no memory, but a sleeper takes no request to its end, as on a GPU.
"""

import json
import os
import platform
import random
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gateway.running import Gateway, gateway, parse_answer
from tests.processes import PATIENCE_S
from tests.vllm.real_engine import VERSION, NoVllm, RealEngine, installed, tiny_model

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # the first time, it is fetched

NAMES = ("a", "b")
_LOOK_S = 0.05  # two changes take longer: each ends with a completion


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, RealEngine]]:
    """Each knows one name, and answers 404 to another."""
    if os.geteuid() != 0 or platform.machine() != "x86_64":
        pytest.skip("it takes root on x86_64: a network of its own")
    with tempfile.TemporaryDirectory(prefix="turns-") as name:
        folder = Path(name)
        try:
            python = installed()
        except NoVllm as why:
            pytest.skip(str(why))
        model = tiny_model(python, folder / "tiny")
        running: dict[str, RealEngine] = {}
        try:
            for each in NAMES:
                words = (f"--served-model-name={each}", "--shutdown-timeout=60")
                running[each] = RealEngine(python, model, folder / each, *words, VLLM_SERVER_DEV_MODE="1")
            for engine in running.values():
                engine.until_it_serves()
            yield running
        finally:
            for engine in running.values():
                engine.close()


@pytest.fixture(scope="module")
def door(engines: dict[str, RealEngine]) -> Iterator[Gateway]:
    """They may change places at once, and have time to bring requests to their end."""
    turns = {"gpus": [0], "between": "sleep", "level": 1, "version": VERSION}
    models = [
        {"name": f"org/{name}", "served_as": name, "engine": {"socket": str(engine.socket)}, "turns": turns}
        for name, engine in engines.items()
    ]
    with tempfile.TemporaryDirectory(prefix="door-") as name:
        settings = {
            "listen": {"socket": f"{name}/door.sock"},
            "models": models,
            "limits": {"hold": 100, "drain": 60},
            "turns": {"stay": 0, "drain": 60, "swap": 60, "release": 1},
        }
        with gateway(Path(name), settings, engine_up=False) as running:
            until = time.monotonic() + PATIENCE_S
            while running.ask("/ready")[0] != 200:
                assert time.monotonic() < until, running.log
                time.sleep(0.5)
            yield running


def sleeps(engine: RealEngine) -> bool:
    status, said = engine.ask("/is_sleeping")
    assert status == 200
    return bool(json.loads(said)["is_sleeping"])


def complete(door: Gateway, name: str, tokens: int = 8) -> tuple[int, str, int]:
    """Status, which model it says that it was, and how many tokens came."""
    body = {"model": f"org/{name}", "prompt": "One", "max_tokens": tokens, "ignore_eos": True}
    status, _, answer = door.ask("/v1/completions", body)
    said = json.loads(answer)
    return status, said.get("model", ""), said.get("usage", {}).get("completion_tokens", 0)


class Watch(threading.Thread):
    """Looks who is awake. together: how often both were. The first one is asked again after the second: they may have
    changed places meanwhile.
    """

    def __init__(self, engines: dict[str, RealEngine]) -> None:
        super().__init__(daemon=True)
        self._engines, self._over = engines, threading.Event()
        self.looks = self.together = 0

    def run(self) -> None:
        while not self._over.wait(0.02):
            first, second = self._engines.values()
            began = time.monotonic()
            asleep = [sleeps(first), sleeps(second), sleeps(first)]
            if time.monotonic() - began < _LOOK_S:
                self.looks += 1
                self.together += not any(asleep)

    def __enter__(self) -> "Watch":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(PATIENCE_S)


def test_they_swap_and_one_at_a_time_is_awake(door: Gateway, engines: dict[str, RealEngine]) -> None:
    with Watch(engines) as watch:
        for name in "abbabaab":
            assert complete(door, name) == (200, name, 8)
            assert not sleeps(engines[name])
    assert watch.looks > 4
    assert watch.together == 0


def test_a_sleeper_hangs_whoever_asks_it_and_not_who_asks_the_gateway(
    door: Gateway, engines: dict[str, RealEngine]
) -> None:
    assert complete(door, "a")[0] == 200
    with socket.socket(socket.AF_UNIX) as to:
        to.settimeout(PATIENCE_S)
        to.connect(str(engines["b"].socket))
        body = json.dumps({"model": "b", "prompt": "One", "max_tokens": 1})
        head = "POST /v1/completions HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
        to.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        with pytest.raises(TimeoutError):
            to.recv(1)
    assert complete(door, "b") == (200, "b", 8)


def test_a_stream_comes_to_its_end_before_its_model_sleeps(door: Gateway, engines: dict[str, RealEngine]) -> None:
    assert complete(door, "a")[0] == 200
    body = {"model": "org/a", "prompt": "One", "max_tokens": 400, "stream": True, "ignore_eos": True}
    with door.connected() as to, ThreadPoolExecutor(1) as pool:
        to.sendall(door.request("/v1/completions", body))
        first = to.recv(4096)
        assert b" 200 " in first
        assert b"[DONE]" not in first  # it still streams; how long it goes on for is the processor's affair
        other = pool.submit(complete, door, "b")
        rest = b""
        while part := to.recv(65536):
            rest += part
        status, _, said = parse_answer(first + rest)
        assert status == 200
        assert b'"finish_reason":"length"' in said
        assert said.endswith(b"data: [DONE]\n\n")
        assert other.result(PATIENCE_S) == (200, "b", 8)
    assert sleeps(engines["a"])


def test_of_many_clients_none_is_lost_or_answered_by_the_other(door: Gateway, engines: dict[str, RealEngine]) -> None:
    chance = random.Random(4)
    asked = [(chance.choice(NAMES), chance.randint(1, 24)) for _ in range(80)]
    with Watch(engines) as watch, ThreadPoolExecutor(16) as pool:
        answers = [*pool.map(lambda each: complete(door, *each), asked)]
    assert answers == [(200, name, tokens) for name, tokens in asked]
    assert watch.together == 0
    said = door.metrics()
    assert 'winhost_gateway_engine_failures_total{model="org/a"' not in said
