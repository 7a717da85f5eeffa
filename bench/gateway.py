"""What the gateway adds: to the time of the first token, to the time of all, and in processor time.

A stub of an engine and a client, each a process of its own, are measured alone first; then with the gateway between.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import click

from bench.streams import KEY
from winhost.cli.tables import table

STREAMS = 64
SLOW, MIDDLE, FAST = 1_280, 5_000, 20_000  # tokens a second
_SOURCE = Path(__file__).parents[1] / "winhost/gateway"
_TICKS = os.sysconf("SC_CLK_TCK")
_LEAST = 0.95  # of the tokens a second without the gateway, at MIDDLE
_FIRST_MS = 2.0


@dataclass(frozen=True)
class Taken:
    """Of one turn. first: seconds to the first token of each stream; gateway_cpu: 0 where there was none."""

    first: Sequence[float]
    tokens: int
    seconds: float
    client_cpu: float
    gateway_cpu: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def million(self) -> float:
        """Processor seconds of the gateway for a million tokens."""
        return self.gateway_cpu / self.tokens * 1_000_000


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def process(words: Sequence[str], folder: Path, says: str, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Once it has said that it listens."""
    started = subprocess.Popen(
        words, cwd=folder, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert started.stdout
    try:
        if says not in (line := started.stdout.readline()):
            raise click.ClickException(f"{words[1:4]} does not start: {line}")
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.stdout.close()
        started.wait(300)


@contextmanager
def gateway(folder: Path) -> Iterator[int]:
    """Its process id. It writes its log to where nobody reads, as it goes on."""
    shutil.copytree(_SOURCE, folder / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
    model = {"name": "tiny", "engine": {"socket": str(folder / "engine.sock")}}
    settings = {"listen": {"socket": str(folder / "door.sock")}, "models": [model], "limits": {"drain": 1}}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "keys").write_text(f"bench sha256:{sha256(KEY.encode()).hexdigest()}\n")
    program = [sys.executable, "-s", "-E", "-m", "gateway.program", str(folder / "settings.json")]
    command = ["sh", "-c", 'exec "$@" 2>"$0"', str(folder / "log"), *program]
    started = subprocess.Popen(command, cwd=folder, env={**os.environ, "CREDENTIALS_DIRECTORY": str(folder)})
    try:
        while not (folder / "door.sock").exists():
            if started.poll() is not None:
                raise click.ClickException((folder / "log").read_text())
        yield started.pid
    finally:
        started.terminate()
        started.wait(300)


def turn(folder: Path, place: str, requests: int, pause: float, pid: int | None) -> Taken:
    """All requests, by a client of its own; pause: seconds between the beginnings of two."""
    root = Path(__file__).parents[1]
    before = cpu_of(pid) if pid else 0.0
    words = [sys.executable, "-m", "bench.streams", "client", str(folder / place), str(requests), str(pause)]
    said = json.loads(subprocess.run(words, cwd=root, capture_output=True, text=True, check=True, timeout=300).stdout)
    if said["broken"]:
        raise click.ClickException(f"{said['broken']} streams were cut off")
    return Taken(said["first"], said["tokens"], said["seconds"], said["cpu"], cpu_of(pid) - before if pid else 0.0)


def turns(rate: int, tokens: int, rounds: int) -> tuple[list[Taken], list[Taken]]:
    """Without the gateway and with it, turn about. So many streams are open at a time, once the first ones end."""
    root = Path(__file__).parents[1]
    tick = STREAMS / rate
    requests, pause = STREAMS * 3, tokens * tick / STREAMS
    with TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        stub = [sys.executable, "-m", "bench.streams", "stub", str(folder / "engine.sock"), str(tokens)]
        with process([*stub, str(tick)], root, "ready"), gateway(folder) as pid:
            turn(folder, "door.sock", STREAMS, pause, pid)  # what is loaded at the first request does not count
            pairs = [
                (turn(folder, "engine.sock", requests, pause, None), turn(folder, "door.sock", requests, pause, pid))
                for _ in range(rounds)
            ]
    return [alone for alone, _ in pairs], [with_it for _, with_it in pairs]


def show(rounds: int) -> None:
    """The table, and with how much of the machine it was taken."""
    rows = []
    for rate, tokens in ((SLOW, 40), (MIDDLE, 160), (FAST, 640)):
        click.echo(f"gateway at {rate:,} tokens/s …", err=True)
        alone, through = turns(rate, tokens, rounds)
        rows.append(_row(rate, alone, through))
    table(
        ("tokens/s", "alone", "share with it", "first token alone", "added, median", "p99 with it", "CPU s/million"),
        rows,
        title=f"The gateway at {STREAMS} streams, {rounds} rounds, the middle one",
    )
    click.echo(
        f"Aims: at {SLOW:,} tokens/s at most {_FIRST_MS:g} ms added; at {MIDDLE:,} a share of {_LEAST:.0%} or more."
    )
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    click.echo(f"{os.cpu_count()} processors, load {load}: what else they did counts, most of all for the p99.")


def _row(rate: int, alone: Sequence[Taken], through: Sequence[Taken]) -> tuple[str, ...]:
    first = [median(each.first) * 1000 for each in alone]
    added = median(median(b.first) * 1000 - a for a, b in zip(first, through, strict=True))
    share = median(b.rate / a.rate for a, b in zip(alone, through, strict=True))
    late = median(quantiles(each.first, n=100)[98] * 1000 for each in through)
    met = ""
    if rate == SLOW:
        met = ": met" if added <= _FIRST_MS else ": missed"
    reached = ""
    if rate == MIDDLE:
        reached = ": met" if share >= _LEAST else ": missed"
    return (
        f"{rate:,}",
        f"{median(each.rate for each in alone):,.0f}",
        f"{share:.1%}{reached}",
        f"{median(first):.2f} ms",
        f"{added:.2f} ms{met}",
        f"{late:.1f} ms",
        f"{median(each.million for each in through):.1f}",
    )


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds per row.")
def main(rounds: int) -> None:
    """What the gateway adds, held against the same streams without it."""
    show(rounds)


if __name__ == "__main__":
    main()
