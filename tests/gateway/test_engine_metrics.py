"""Metrics of engines, through the gateway and under a key for metrics."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.gateway.engine_standin import StandInEngine
from tests.gateway.running import MODEL, Gateway, gateway, settings_for
from tests.gateway.turning import turning
from tests.gateway.virtual_time import in_virtual_time
from tests.gateway.vllm_protocol import Gpu, ProtocolEngine
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.gateway import engine_metrics
from winhost.gateway.api_keys import new_key
from winhost.gateway.engine_control import EngineFault, EngineUnreachable
from winhost.gateway.engine_metrics import EngineMetrics
from winhost.gateway.engines import AnswerTooLong, Engines
from winhost.gateway.gateway_metrics import parse_states
from winhost.gateway.gateway_settings import Limits, PublishedModel
from winhost.gateway.settings_values import SocketOrPort

RUNNING = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
"""
SECONDS = """\
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="0.3",model_name="tiny"} 2.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf",model_name="tiny"} 2.0
vllm:e2e_request_latency_seconds_count{model_name="tiny"} 2.0
vllm:e2e_request_latency_seconds_sum{model_name="tiny"} 1.5e-05
"""


def engines_told(door: Gateway, key: str | None = None) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {key}"} if key else None
    status, _, text = door.ask("/metrics/engines", headers=headers)
    return status, text.decode()


def test_two_engines_are_told_together_and_each_to_whom_it_belongs(python: str, short: Path) -> None:
    settings = settings_for(short)
    settings["models"].append(
        {**settings["models"][0], "name": "org/other", "engine": {"socket": str(short / "other.sock")}}
    )
    every, line = new_key("all", "metrics")
    tenant, other_line = new_key("tenant", "metrics=org/other")
    other = StandInEngine(short / "other.sock")
    try:
        other.start()
        with gateway(short, settings, python, more_keys=f"{line}\n{other_line}") as door:
            door.engine.metrics = RUNNING + SECONDS
            other.metrics = RUNNING.replace("3.0", "4.0")
            assert engines_told(door)[0] == 403
            _, both = engines_told(door, every)
            _, own = engines_told(door, tenant)
            asked = [(method, path) for method, path, _ in (*door.engine.requests, *other.requests)]
    finally:
        other.close()
    first = 'vllm:num_requests_running{model="org/tiny",engine="0",model_name="tiny"} 3.0'
    second = 'vllm:num_requests_running{model="org/other",engine="0",model_name="tiny"} 4.0'
    assert f"# TYPE vllm:num_requests_running gauge\n{first}\n{second}\n" in both
    assert 'vllm:e2e_request_latency_seconds_sum{model="org/tiny",model_name="tiny"} 1.5e-05' in both
    assert 'winhost_gateway_engine_metrics{model="org/other",result="read"} 1' in own
    assert MODEL not in own
    assert "vllm:num_requests_running" in own
    assert set(asked) == {("GET", "/metrics")}


class Answering:
    """A stand-in for Engines, which returns this text or raises this error."""

    def __init__(self, what: "bytes | Exception") -> None:
        self.what, self.asked = what, 0

    async def metrics(self, model: PublishedModel, most: int) -> bytes:
        self.asked += 1
        if isinstance(self.what, Exception):
            raise self.what
        return self.what


A = PublishedModel("a", SocketOrPort(socket="/run/a.sock"), "a", "completion")


def told(what: "bytes | Exception", **states: str) -> tuple[str, int]:
    engines: Any = Answering(what)
    return asyncio.run(EngineMetrics(engines).text([A], states)).decode(), engines.asked


RESULTS: dict[str, tuple["bytes | Exception", dict[str, str], int]] = {
    "read": (RUNNING.encode(), {}, 1),
    "asleep": (RUNNING.encode(), {"a": "asleep"}, 0),
    "suspended": (RUNNING.encode(), {"a": "suspended"}, 0),
    "waking": (RUNNING.encode(), {"a": "waking"}, 0),
    "unreachable": (EngineUnreachable("a"), {}, 1),
    "down": (RUNNING.encode(), {"a": "down"}, 0),
    "late": (TimeoutError(), {"a": "awake"}, 1),
    "too-long": (AnswerTooLong(), {}, 1),
    "wrong": (EngineFault("500"), {"a": "draining"}, 1),
}


@each_row("result", RESULTS)
def test_of_each_engine_is_told_what_came_of_reading_it_and_a_sleeper_is_not_asked(result: str) -> None:
    what, states, asks = RESULTS[result]
    text, asked = told(what, **states)
    assert f'winhost_gateway_engine_metrics{{model="a",result="{result}"}} 1' in text
    assert asked == asks
    assert ("num_requests_running" in text) == (result == "read")


LINES = {
    'a{model="b"} 1': 'a{model="a",exported_model="b"} 1',
    'a{x="1,model=\\"b\\"} 2",} 1': 'a{model="a",x="1,model=\\"b\\"} 2"} 1',
    "a 1 1700000000000": 'a{model="a"} 1 1700000000000',
    "a +Inf": 'a{model="a"} +Inf',
    "a NaN": 'a{model="a"} NaN',
    "a 1.2.3": None,
    "a 1e999": None,
    "a 0x10": None,
    "a one": None,
    "a{ 1": None,
    'a{x="1",x="2"} 1': None,
    'a{model="1",exported_model="2"} 1': None,
    'a{__name__="b"} 1': None,
    'a{x="1"}} 1': None,
    "winhost_gateway_requests_running 9": None,
    'gen_ai_server_request_duration_seconds_count{model="b"} 9': None,
    "hw_gpu_utilization_ratio 9": None,
    f'a{{x="{"y" * 9000}"}} 1': None,
}


@each_row(("written", "expected"), LINES.items())
def test_an_engine_cannot_speak_for_another_nor_spoil_what_others_say(written: str, expected: str | None) -> None:
    text, _ = told(f"{written}\nlast 1\n".encode())
    others = [each for each in text.splitlines() if not each.startswith(("# ", "winhost_gateway_engine_metrics"))]
    assert others == [*([expected] if expected else []), 'last{model="a"} 1']


def test_many_who_ask_at_once_read_an_engine_once() -> None:
    engines: Any = Answering(RUNNING.encode())

    async def ask() -> None:
        found = EngineMetrics(engines)
        await asyncio.gather(*(found.text([A], {}) for _ in range(20)))

    asyncio.run(ask())
    assert engines.asked == 1


def test_many_who_ask_at_once_get_one_text_which_does_not_stay() -> None:
    """A text may have 4 MB, and slow readers keep it in memory."""

    async def ask() -> tuple[int, int]:
        found = EngineMetrics(Answering(RUNNING.encode()))  # type: ignore[arg-type]
        texts = await asyncio.gather(*(found.text([A], {}) for _ in range(20)))
        texts.append(await found.text([A], {}))
        held = len(found._texts)
        await asyncio.sleep(engine_metrics._CACHE_S + 0.5)
        return len({id(each) for each in texts}), held - len(found._texts)

    assert asyncio.run(ask()) == (1, 1)


def test_reading_a_long_answer_leaves_room_for_streams() -> None:
    """The test counts steps, because their duration depends on the machine."""
    lines = "\n".join(f'vllm:a{{le="{number}"}} 1' for number in range(5_000))

    async def read() -> int:
        turns = 0
        reading = asyncio.ensure_future(EngineMetrics(Answering(lines.encode())).text([A], {}))  # type: ignore[arg-type]
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(read()) >= 5_000 // engine_metrics._LINES_AT_ONCE


def test_states_of_turns_are_known() -> None:
    gpu = Gpu(81_559)
    found = turning([ProtocolEngine(name, gpu, 70_000) for name in "ab"])

    async def story() -> None:
        found.turns.start()
        await asyncio.sleep(600)
        assert parse_states(found.turns.metrics()) == {"a": "awake", "b": "asleep"}
        found.turns.stop()

    in_virtual_time(story())


def test_whoever_reads_is_cut_off_where_the_engine_is_to_sleep(short: Path) -> None:
    """With an open connection, the engine's process cannot be written to disk."""

    async def story() -> str:
        loop = asyncio.get_running_loop()
        came, closed = loop.create_future(), loop.create_future()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            came.set_result(None)
            await reader.read()
            writer.close()
            closed.set_result(None)

        place = SocketOrPort(socket=str(short / "silent.sock"))
        server = await asyncio.start_unix_server(silent, place.socket)
        engines = Engines(Limits())
        model = PublishedModel("a", place, "a", "completion")
        reading = asyncio.ensure_future(EngineMetrics(engines).text([model], {"a": "awake"}))
        await asyncio.wait_for(came, PATIENCE_S)
        engines.retire_connections(place)
        text = await reading
        await asyncio.wait_for(closed, PATIENCE_S)
        server.close()
        return text.decode()

    assert 'result="wrong"' in asyncio.run(story())


def test_the_gateway_says_which_engine_is_not_there(python: str, short: Path) -> None:
    every, line = new_key("all", "metrics")
    with gateway(short, settings_for(short), python, engine_up=False, more_keys=line) as door:
        status, text = engines_told(door, every)
    assert (status, f'{{model="{MODEL}",result="unreachable"}}' in text) == (200, True)
    assert json.dumps(str(short)) not in text
