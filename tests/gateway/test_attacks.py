"""Attacks, with a key or without one, do not delay the tokens of other clients."""

import socket
import ssl
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.gateway.attacks import ATTACKS, STEPPED, Steps, address_for, connect_from
from tests.gateway.running import KEY, METRICS_KEY, MODEL, Gateway, gateway, parse_answer, read_to_end
from tests.gateway.test_bodies import memory_mib
from tests.gateway.test_gateway_start import tls_settings

# Half of the 50 ms between the tokens of a stream, so that they come at most 1.5 times as far apart, by two steps. A
# unit took 1 ms on the processor where this was written: where processors are slower, so may the gateway be.
MOST_UNITS = 12.5
TRIES = 10  # what else a machine does makes a step longer, never shorter
HEAD = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"


@pytest.mark.real
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_no_attack_makes_a_neighbours_tokens_wait(short: Path, python: str, tls: bool) -> None:
    port, settings = tls_settings(short)
    if not tls:
        del settings["tls"]
    context = ssl.create_default_context(cafile=str(short / "cert.pem"))

    def connect(address: str = "127.0.0.1") -> socket.socket:
        plain = connect_from(address, port)
        return context.wrap_socket(plain, server_hostname="127.0.0.1") if tls else plain

    with gateway(short, settings, python, instead=STEPPED) as door:
        steps = Steps(short)
        assert streams(door, connect())  # what the first request loads does not count
        before = memory_mib(door.process.pid)
        for name, attack in ATTACKS.items():
            found, address = [], address_for(name)
            while (not found or found[-1] > MOST_UNITS) and len(found) < TRIES:
                with closing(connect()) as neighbour:
                    neighbour.sendall(
                        door.request("/v1/completions", {"model": MODEL, "prompt": "slow 3", "stream": True})
                    )
                    neighbour.recv(1)
                    steps.forget()
                    attack(partial(connect, address), partial(connect_from, address, port), HEAD.encode(), MODEL)
                    assert b"[DONE]" in read_to_end(neighbour), name
                    found.append(steps.longest)
            assert found[-1] <= MOST_UNITS, (name, found)
        assert memory_mib(door.process.pid) - before < 4 * 16 * 2  # the large bodies, and what is on its way


@pytest.mark.real
def test_long_metrics_of_engines_make_no_token_wait(short: Path, python: str) -> None:
    """The metrics of four engines have the greatest allowed length, and are read through TLS."""
    port, settings = tls_settings(short)
    (model,) = settings["models"]
    settings["models"] = [{**model, "name": name} for name in (MODEL, "b", "c", "d")]
    context = ssl.create_default_context(cafile=str(short / "cert.pem"))

    def connect() -> socket.socket:
        return context.wrap_socket(connect_from("127.0.0.1", port), server_hostname="127.0.0.1")

    with gateway(short, settings, python, instead=STEPPED) as door:
        steps, found = Steps(short), list[float]()
        line = (
            'vllm:e2e_request_latency_seconds_bucket{{engine="0",le="{}",model_name="meta-llama/Llama-3.1-8B"}} 1.0\n'
        )
        door.engine.metrics = "".join(map(line.format, range(9_000)))
        request = door.request("/metrics/engines", headers={"Authorization": f"Bearer {METRICS_KEY}"})
        assert streams(door, connect())
        while (not found or found[-1] > MOST_UNITS) and len(found) < TRIES:
            steps.forget()
            with closing(connect()) as to:
                to.sendall(request)
                assert parse_answer(read_to_end(to))[2].count(b'le="8999"') == 4
            found.append(steps.longest)
        assert found[-1] <= MOST_UNITS, found


def streams(door: Gateway, to: socket.socket) -> bool:
    with closing(to):
        to.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "slow 3", "stream": True}))
        return b"[DONE]" in parse_answer(read_to_end(to))[2]
