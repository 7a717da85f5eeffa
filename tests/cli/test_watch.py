"""Progress: live lines on a terminal, plain lines elsewhere, and a reminder each minute with how to stop."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.cli.terminal import stays
from tests.processes import PATIENCE_S, started
from winhost.cli import watch
from winhost.cli.watch import JsonLines, Watch
from winhost.engine.progress import ProgressEvent
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab
from winhost.lab.wire.wsman import Action

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo terminal")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the periods to hundredths, so that a minute passes soon."""
    for name in ("SILENCE_S", "SUMMARY_PERIOD_S", "REMINDER_PERIOD_S"):
        monkeypatch.setattr(watch, name, getattr(watch, name) / 100)


def until(lines: list[str], count: int) -> list[str]:
    """Wait for this number of lines and return them."""
    end = time.monotonic() + PATIENCE_S
    while len(lines) < count and time.monotonic() < end:
        time.sleep(0.01)
    return lines[:count]


@pytest.mark.usefixtures("hurried")
def test_a_step_that_takes_long_is_told_of_once_and_then_each_minute() -> None:
    lines: list[str] = []
    with Watch(lines.append) as told:
        told(ProgressEvent("gpu-01", "step", "Hyper-V role", number=1, total=3))
        first, second, third = until(lines, 3)
    assert first == "gpu-01 · [1/3] Hyper-V role …"
    reminder = (
        r"gpu-01 … \[1/3\] Hyper-V role, for \d+ min so far\. "
        r"Ctrl-C stops; the run can then be resumed or rolled back\."
    )
    assert re.fullmatch(reminder, second)
    assert re.fullmatch(reminder, third)


@pytest.mark.usefixtures("hurried")
def test_what_a_lost_host_is_waited_for_is_told_each_minute_and_to_programs_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines: list[str] = []
    waiting = (ProgressEvent("gpu-01", "restart", "restarting"), ProgressEvent("gpu-01", "waiting", "no answer yet"))
    with Watch(lines.append) as told:
        for event in waiting:
            told(event)
        assert until(lines, 3)[2].startswith("gpu-01 … restarting: no answer yet, for 0 min so far. Ctrl-C stops;")
    with JsonLines() as told:
        for event in waiting:
            told(event)
        out = capsys.readouterr().out
        while out.count("\n") < 3:
            time.sleep(0.01)
            out += capsys.readouterr().out
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events[:3]] == ["restart", "waiting", "waiting"]
    assert "no answer yet" in events[2]["text"]


@pytest.mark.usefixtures("hurried")
def test_of_many_hosts_that_are_read_a_line_says_how_far_they_are() -> None:
    lines: list[str] = []
    with Watch(lines.append, read_only=True) as told, ExitStack() as read:
        told.hosts = 71
        with told.reading("gpu-00"):
            pass
        for number in range(1, 6):
            read.enter_context(told.activity(f"gpu-0{number}", "reading"))
        last = until(lines, len(lines) + 2)[-1]
    assert last == "1 of 71 read; now: gpu-01 (reading), gpu-02 (reading), gpu-03 (reading) and 2 more"


@pytest.mark.parametrize(("silent", "told"), [(3600, []), (0, ["now: gpu-01 (reading)"])])
def test_what_is_quick_is_not_told_of(monkeypatch: pytest.MonkeyPatch, silent: float, told: list[str]) -> None:
    monkeypatch.setattr(watch, "SILENCE_S", silent)
    lines: list[str] = []
    looks = Watch(lines.append, read_only=True)
    looks.hosts = 1
    with looks.reading("gpu-01"):
        looks.tick()
    looks.tick()
    assert lines == told


@pytest.fixture
def silent_fleet(tmp_path: Path) -> Iterator[Path]:
    """Two hosts that accept a connection and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        transport = (
            f"transport: {{port: {port}, tls: false, auth: ntlm, user: a, password: env:SILENT, call_timeout: 1h}}"
        )
        hosts = "".join(f"  {name}: {{address: 127.0.0.1, {transport}}}\n" for name in ("gpu-01", "gpu-02"))
        fleet = tmp_path / "fleet.yaml"
        fleet.write_text(f"schema: winhost.fleet/1\nhosts:\n{hosts}")
        yield fleet


def detect(fleet: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "winhost", "detect", "*", "--fleet", str(fleet), *words]


@pytest.mark.costly
@posix
def test_a_terminal_shows_a_line_per_host_and_ctrl_c_ends_it_at_once(silent_fleet: Path) -> None:
    import pty

    main, ours = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "40", "SILENT": "x"}
    with started(
        detect(silent_fleet), stdout=ours, stderr=ours, stdin=ours, env=environment, start_new_session=True
    ) as process:
        os.close(ours)
        got = b""
        while not (b"gpu-01 reading" in got and b"gpu-02 reading" in got):
            got += os.read(main, 65536)
        assert b"0 of 2 read" in got
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    os.close(main)


@pytest.mark.costly
@posix
@pytest.mark.parametrize("terminal", [True, False])
def test_without_a_terminal_or_on_a_dumb_one_lines_stay_and_none_is_among_the_json(
    silent_fleet: Path, terminal: bool
) -> None:
    import pty

    main, ours = pty.openpty()
    environment = {**os.environ, "TERM": "dumb" if terminal else "xterm", "SILENT": "x"}
    command = detect(silent_fleet, "--json")
    with started(
        command, stdout=subprocess.PIPE, stderr=ours if terminal else subprocess.PIPE, env=environment
    ) as process:
        os.close(ours)
        got = os.read(main, 65536) if terminal else (process.stderr or sys.stdin.buffer).readline()
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE_S) == 130
    os.close(main)
    assert got.decode().strip() == "0 of 2 read; now: gpu-01 (reading), gpu-02 (reading)"


@pytest.mark.costly
@posix
def test_what_ctrl_c_answers_stays_above_the_live_lines(line: Line, tmp_path: Path) -> None:
    import pty

    said = "Stopping each host after its current step; each then shows how to resume it or roll it back."
    hosts = ("gpu-01", "gpu-03")
    with Lab([find("server2025-3gpu"), find("server2025-role-installed")], tmp_path, scale=0.001) as lab:
        for host in hosts:
            assert line("plan", host, "--vm", "llm-01", "-o", f"{host}.json").code == 0
        main, ours = pty.openpty()
        words = ["apply", "gpu-01.json", "gpu-03.json", "--accept", "restart,vm-stop,force-dismount", "--yes"]
        command = [sys.executable, "-m", "winhost", *words]
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", "NO_COLOR": "1"}
        with ExitStack() as cleared:
            answered = threading.Event()
            cleared.callback(answered.set)
            for host in hosts:
                lab.endpoints[host].faults.plan(lambda: answered.wait(PATIENCE_S) and None, Action.COMMAND)
            process = cleared.enter_context(started(command, stderr=ours, stdout=ours, env=environment))
            cleared.callback(process.kill)
            os.close(ours)
            got = read_until(main, lambda got: sum(" reading" in row for row in stays(got)) == 2)
            process.send_signal(signal.SIGINT)
            got += read_until(main, lambda more: said in more)
            got += read_until(main, lambda more: more.count("gpu-01 reading") > 2)  # drawn again
        os.close(main)
    assert said in stays(got)
    assert [" reading" in row for row in stays(got)[-2:]] == [True, True]


def read_until(terminal: int, enough: Callable[[str], bool]) -> str:
    got = b""
    while not enough(got.decode(errors="ignore")):
        got += os.read(terminal, 65536)
    return got.decode()


def test_a_pause_takes_the_live_lines_away_while_others_print(monkeypatch: pytest.MonkeyPatch) -> None:
    from winhost.cli.watch import Screen

    monkeypatch.setattr(watch, "SILENCE_S", 0.01)
    shown = threading.Event()
    with Screen(read_only=True, stop_hint=watch.STOP_HINT) as told:
        monkeypatch.setattr(Screen, "rows", lambda self: shown.set() or "")

        def reads() -> Iterator[int]:
            for number in range(3):
                assert shown.wait(PATIENCE_S)
                yield number
                shown.clear()

        for _ in told.results(reads()):
            assert told._live is None  # type: ignore[attr-defined]
            time.sleep(0.05)
            assert told._live is None  # type: ignore[attr-defined]
