"""Measure what an attack on the gateway does to the streams of others: the time between tokens, without and with it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click

from bench import gateway
from bench.streams import KEY
from tests.gateway.attacks import ATTACKS
from tests.gateway.test_gateway_start import certificate
from winhost.cli.tables import table

STREAMS, TOKENS, TURNS = 32, 40, 3
AIM = 1.5
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Gaps:
    """Milliseconds between two tokens of a stream, of all streams of a turn."""

    middle: float
    longest: float


def gaps(port: int, authority: Path) -> Gaps:
    """One turn: streams that begin together, and what lies between their tokens."""
    words = [sys.executable, "-m", "bench.streams", "gaps", f"{port}:{authority}", str(STREAMS), "0"]
    said = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=600).stdout
    found = [each * 1000 for each in json.loads(said)["gaps"]]
    return Gaps(median(found), max(found))


@contextmanager
def attacked(name: str, port: int, authority: Path) -> Iterator[None]:
    """Again and again, by a process that takes no processor from those who are measured."""
    words = [sys.executable, "-m", "tests.gateway.attacks", name, str(port), str(authority), KEY, "sink"]
    attacker = subprocess.Popen(words, cwd=_ROOT, stdout=subprocess.PIPE, preexec_fn=lambda: os.nice(19))
    try:
        assert attacker.stdout
        if not attacker.stdout.readline():  # it has begun
            raise click.ClickException(f"the attack with {name} does not start")
        yield
    finally:
        attacker.kill()
        if attacker.stdout:
            attacker.stdout.close()
        attacker.wait(300)
        time.sleep(0.5)  # what it left to do


def row(name: str, port: int, authority: Path) -> tuple[str, ...]:
    """Turn about."""
    calm, disturbed = [], []
    for _ in range(TURNS):
        calm.append(gaps(port, authority))
        with attacked(name, port, authority):
            disturbed.append(gaps(port, authority))
    middle, longest = (
        (median(getattr(each, which) for each in calm), median(getattr(each, which) for each in disturbed))
        for which in ("middle", "longest")
    )
    return (
        name,
        *(f"{each:.1f} ms" for each in middle),
        f"{middle[1] / middle[0]:.2f} x{': met' if middle[1] <= AIM * middle[0] else ': missed'}",
        *(f"{each:.1f} ms" for each in longest),
        f"{longest[1] / longest[0]:.2f} x{': met' if longest[1] <= AIM * longest[0] else ': missed'}",
    )


def show() -> None:
    """The table."""
    with TemporaryDirectory(prefix="bench-") as name, ExitStack() as opened:
        folder = Path(name)
        certificate(folder)
        for engine, tokens in (("engine", TOKENS), ("sink", 1)):
            stub = [sys.executable, "-m", "bench.streams", "stub", str(folder / f"{engine}.sock")]
            started = opened.enter_context(gateway.process([*stub, str(tokens), str(gateway.TICK_S)], _ROOT, "ready"))
            if engine == "sink":  # it takes the large bodies, as the attacker's part of this machine
                os.setpriority(os.PRIO_PROCESS, started.pid, 19)
        port = gateway.free_port()
        words = gateway.gateway_in(folder, port)
        opened.enter_context(gateway.listening(words, folder, port))
        authority = folder / "cert.pem"
        gaps(port, authority)
        rows = []
        for attack in ATTACKS:
            click.echo(f"{STREAMS} streams beside {attack} …", err=True)
            rows.append(row(attack, port, authority))
    heads = ("attack", "gap", "attacked", "of undisturbed", "longest gap", "attacked", "of undisturbed")
    table(heads, rows, title=f"{STREAMS} streams with TLS, and an attack beside them: the middle one of {TURNS} turns")
    click.echo(
        f"Aim: at most {AIM:g} x of undisturbed. The attacker, and the engine that takes its bodies, have nice 19."
    )
