"""Measure what the gateway adds to streams, beside HAProxy: time to the first token, rate, processor time.

A stand-in for an engine and a client, each a process of its own, are measured alone, then with HAProxy between them,
then with the gateway, turn about.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import click

from bench.streams import KEY
from winhost.cli.tables import table

TOKENS, TICK_S = 60, 0.05  # of each stream: 20 tokens a second
# CPUWeight=1000 gives the gateway's unit ten times the processor of another unit; nice -10 gives a process nine times
# that of another process. Where the kernel groups processes by session (sched_autogroup), nice says nothing between
# sessions: so each process has a session of its own, as units are apart, and the group's nice is set as well. In one
# session, what the gateway used was taken from the stand-in and the client, which then were late.
NICE = -10
# Requests of a turn for each stream: the p99 of the few that 32 streams have at a time would be the longest.
REQUESTS = {32: 6, 256: 3}
BUSY = 21  # processes that compute, for a load of some 23 with what is measured
_PYTHON = "/usr/bin/python3"
_SOURCE = Path(__file__).parents[1] / "winhost/gateway"
_FIRST_MS, _LATE, _SHARE, _CPU_MS, _MIB = 1.0, 2.0, 0.99, 50.0, 60.0
_DIRECT, _HAPROXY, _GATEWAY, _OTHER = "direct", "HAProxy", "gateway", "other gateway"
_HAPROXY_CONFIG = """global
  nbthread 1
  maxconn 4096
defaults
  mode http
  option http-no-delay
  http-reuse always
  timeout connect 5s
  timeout client 600s
  timeout server 600s
listen door
  bind {folder}/haproxy.sock
  server engine unix@{folder}/engine.sock
"""


@dataclass(frozen=True)
class Taken:
    """The times of one turn. first: milliseconds to the first token of each stream; cpu: seconds of the proxy."""

    first: Sequence[float]
    tokens: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def thousand(self) -> float:
        """Milliseconds of a processor for 1,000 events, with the requests that they belong to."""
        return self.cpu * 1_000_000 / self.tokens


@dataclass(frozen=True)
class Way:
    """place: the socket; pid: of what is between, None where nothing is."""

    name: str
    place: Path
    pid: int | None


def cpu_of(pid: int) -> float:
    """Seconds, by the scheduler's own clock: ticks of 10 ms miss short bursts."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def mib_of(pid: int) -> float:
    """The most that it had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


@contextmanager
def process(words: Sequence[str], folder: Path, says: str, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Once it has said that it listens."""
    started = subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _is_there(place: Path | int) -> bool:
    if isinstance(place, Path):
        return place.exists()
    with socket.socket() as to:
        return to.connect_ex(("127.0.0.1", place)) == 0


@contextmanager
def listening(words: Sequence[str], folder: Path, place: Path | int) -> Iterator[Way]:
    """Once its socket or port is there. It writes its log to where nobody reads, as it goes on. With the weight that a
    unit gives the gateway, where that is allowed.
    """
    name = _HAPROXY if words[0].endswith("haproxy") else _GATEWAY
    log = folder / f"{name}.log"
    with log.open("wb") as to:
        started = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, "CREDENTIALS_DIRECTORY": str(folder)},
            stderr=to,
            start_new_session=True,
        )
    try:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, started.pid, NICE)
        with suppress(OSError):  # a kernel without groups
            Path(f"/proc/{started.pid}/autogroup").write_text(str(NICE))
        while not _is_there(place):
            if started.poll() is not None:
                raise click.ClickException(log.read_text())
            time.sleep(0.02)
        yield Way(name, place if isinstance(place, Path) else Path(), started.pid)
    finally:
        started.terminate()
        started.wait(300)


def python() -> str:
    """The Python that the gateway's unit starts, where it is new enough: one that was built without profile-guided
    optimization, as pyenv does, takes a third longer.
    """
    new_enough = [_PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
    there = Path(_PYTHON).exists() and subprocess.run(new_enough, check=False, timeout=300).returncode == 0
    return _PYTHON if there else sys.executable


def gateway_in(folder: Path, port: int | None = None, source: Path = _SOURCE) -> list[str]:
    """Its command. port: where it listens with TLS and the limits of a deployment; None: on a socket."""
    shutil.copytree(source, folder / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
    engines = {"tiny": "engine.sock", "sink": "sink.sock"}
    models = [{"name": name, "engine": {"socket": str(folder / each)}} for name, each in engines.items()]
    settings: dict[str, Any] = {"models": models, "limits": {"drain": 1}}
    if port:
        settings |= {
            "listen": {"address": "127.0.0.1", "port": port},
            "tls": {"certificate": "cert.pem", "key": "key.pem"},
        }
    else:
        settings["listen"] = {"socket": str(folder / "door.sock")}
        settings["limits"] |= {"requests": 512, "connections": 2048}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "keys").write_text(f"bench sha256:{sha256(KEY.encode()).hexdigest()}\n")
    return [python(), "-s", "-E", "-m", "gateway.program", str(folder / "settings.json")]


def haproxy_in(folder: Path) -> list[str] | None:
    """Its command; None where it is not installed."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    (folder / "haproxy.cfg").write_text(_HAPROXY_CONFIG.format(folder=folder))
    return [program, "-db", "-f", str(folder / "haproxy.cfg")] if program else None


@contextmanager
def ways(folder: Path, other: Path | None = None) -> Iterator[list[Way]]:
    """To a stand-in for an engine, all at the same time. other: the source of another gateway."""
    root = Path(__file__).parents[1]
    engine = folder / "engine.sock"
    stub = [sys.executable, "-m", "bench.streams", "stub", str(engine), str(TOKENS), str(TICK_S)]
    with ExitStack() as opened:
        opened.enter_context(process(stub, root, "ready"))
        found = [Way(_DIRECT, engine, None)]
        if words := haproxy_in(folder):
            found.append(opened.enter_context(listening(words, folder, folder / "haproxy.sock")))
        found.append(opened.enter_context(listening(gateway_in(folder), folder, folder / "door.sock")))
        if other:
            beside = folder / "other"
            beside.mkdir()
            (beside / engine.name).symlink_to(engine)
            words = gateway_in(beside, source=other)
            found.append(replace(opened.enter_context(listening(words, beside, beside / "door.sock")), name=_OTHER))
        yield found


def turn(way: Way, streams: int, requests: int) -> Taken:
    """All requests, by a client of its own, so that about so many streams are open at a time."""
    root = Path(__file__).parents[1]
    before = cpu_of(way.pid) if way.pid else 0.0
    pause = TOKENS * TICK_S / streams
    words = [sys.executable, "-m", "bench.streams", "client", str(way.place), str(requests), str(pause)]
    ran = subprocess.run(
        words, cwd=root, capture_output=True, text=True, check=True, timeout=600, start_new_session=True
    )
    said = json.loads(ran.stdout)
    if said["broken"]:
        raise click.ClickException(f"{way.name}: {said['broken']} streams were cut off")
    first = [each * 1000 for each in said["first"]]
    return Taken(first, said["tokens"], said["seconds"], cpu_of(way.pid) - before if way.pid else 0.0)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many compute beside it."""
    words = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(words, start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait(300)


def show(rounds: int, other: Path | None = None) -> None:
    """The table, with how much of the machine it was taken. other: as of `ways`."""
    rows = []
    with TemporaryDirectory(prefix="bench-") as name, ways(Path(name), other) as found:
        for way in found:
            turn(way, 32, 32)  # what is loaded at the first request does not count
        for streams, beside in ((32, 0), (256, 0), (256, BUSY)):
            click.echo(f"gateway at {streams} streams, {beside} busy processes …", err=True)
            with busy(beside):
                by_way: list[list[Taken]] = [[] for _ in found]
                for number in range(rounds):
                    for at in sorted(range(len(found)), reverse=number % 2 == 1):
                        by_way[at].append(turn(found[at], streams, streams * REQUESTS[streams]))
            rows += [_row(streams, beside, way, of_it, by_way[0]) for way, of_it in zip(found, by_way, strict=True)]
    heads = ("streams", "busy", "way", "first token p50", "p99", "tokens/s", "of direct", "CPU ms/1,000", "MiB")
    table(heads, rows, title=f"The gateway and HAProxy, {rounds} rounds: the middle one, the least CPU")
    click.echo(
        f"Aims of the gateway: p50 at most direct + {_FIRST_MS:g} ms, p99 at most {_LATE:g} x direct, {_SHARE:.0%} of"
        f" the tokens/s, {_CPU_MS:g} ms of CPU, {_MIB:g} MiB."
    )
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    click.echo(f"The gateway ran by {python()}, the stand-in and the client by {sys.executable}.")
    allowed = os.geteuid() == 0
    click.echo(
        f"Gateway and HAProxy have nice {NICE}, about what CPUWeight= of the gateway's unit gives it."
        if allowed
        else "Gateway and HAProxy have no more weight than the busy processes: root could give them that of a unit."
    )
    click.echo(f"{os.cpu_count()} processors, load {load}: what else they did counts, most of all for the p99.")


def _row(streams: int, beside: int, way: Way, taken: Sequence[Taken], direct: Sequence[Taken]) -> tuple[str, ...]:
    added = median(median(a.first) - median(b.first) for a, b in zip(taken, direct, strict=True))
    late, late_direct = (quantiles([ms for each in of for ms in each.first], n=100)[98] for of in (taken, direct))
    share = median(a.rate / b.rate for a, b in zip(taken, direct, strict=True))
    cpu, mib = (min(each.thousand for each in taken), mib_of(way.pid)) if way.pid else (0.0, 0.0)

    def judged(met: bool) -> str:
        return "" if way.name != _GATEWAY else ": met" if met else ": missed"

    return (
        str(streams),
        str(beside),
        way.name,
        f"{median(median(each.first) for each in taken):.2f} ms"
        + (f", {added:+.2f}{'' if beside else judged(added <= _FIRST_MS)}" if way.pid else ""),
        f"{late:.1f} ms"
        + (f", {late / late_direct:.1f} x{'' if beside else judged(late <= _LATE * late_direct)}" if way.pid else ""),
        f"{median(each.rate for each in taken):,.0f}",
        f"{share:.1%}{judged(share >= _SHARE)}" if way.pid else "",
        f"{cpu:.1f}{judged(cpu <= _CPU_MS)}" if way.pid else "",
        f"{mib:.0f}{judged(mib <= _MIB)}" if way.pid else "",
    )


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds per row.")
@click.option(
    "--other",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with another gateway's source, such as one of before, to measure turn about.",
)
def main(rounds: int, other: Path | None) -> None:
    """Hold what the gateway adds against the same streams without it and through HAProxy."""
    show(rounds, other)


if __name__ == "__main__":
    main()
