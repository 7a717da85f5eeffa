"""The keeper as a program, with a stand-in for systemctl that records its arguments."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.running import installed_in
from tests.processes import PATIENCE_S
from winhost.gateway.gpu_calls import DriverError, GpuLibrary
from winhost.gateway.keeper_client import KeeperClient, KeeperFault, KeeperNotReady
from winhost.gateway.turn_settings import TurnLimits

UNIT = "winhost-engine-tiny.service"
SYSTEMCTL = """\
#!/bin/sh
echo "$*" >>"$0.said"
case "$*" in
*reset-failed*) echo 'Unit not loaded.' >&2; exit 1 ;;  # as of a unit that never ran
*show*) cat "$0.shows" ;;
*start*)
    while test -e "$0.waits"; do sleep 0.05; done
    test ! -e "$0.nothing" || { echo 'Unit not found.' >&2; exit 5; } ;;
*stop*) test ! -e "$0.fails" || { echo 'Job failed' >&2; exit 1; } ;;
esac
"""


@pytest.fixture
def keeper_folder(short: Path) -> Iterator[Path]:
    """Start a keeper in this folder."""
    installed_in(short)
    model = {
        "name": "tiny",
        "engine": {"socket": "/run/e.sock"},
        "turns": {"gpus": [0], "between": "stop", "unit": UNIT},
    }
    settings = {
        "listen": {"socket": "/run/door.sock"},
        "models": [model],
        "turns": {"keeper": str(short / "keeper.sock")},
    }
    (short / "settings.json").write_text(json.dumps(settings))
    (short / "systemctl").write_text(SYSTEMCTL)
    (short / "systemctl").chmod(0o755)
    command = [sys.executable, "-s", "-E", "-B", "-m", "gateway.keeper", str(short / "settings.json")]
    environment = {"PATH": f"{short}:{os.environ['PATH']}"}
    process = subprocess.Popen(command, cwd=short, env=environment, stderr=subprocess.DEVNULL)
    (short / "pid").write_text(str(process.pid))
    try:
        until = time.monotonic() + PATIENCE_S
        while not listens(short / "keeper.sock"):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        yield short
    finally:
        if listens(short / "keeper.sock"):
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def listens(path: Path) -> bool:
    """Tell whether a process listens. The socket exists a moment earlier."""
    with socket.socket(socket.AF_UNIX) as to:
        return to.connect_ex(str(path)) == 0


def send(keeper_folder: Path, request: Any) -> dict[str, Any]:
    data = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
    with socket.socket(socket.AF_UNIX) as to:
        to.settimeout(PATIENCE_S)
        to.connect(str(keeper_folder / "keeper.sock"))
        to.sendall(data)
        found: dict[str, Any] = json.loads(to.makefile().readline())
        return found


def test_a_unit_that_hangs_is_killed_before_it_is_stopped(keeper_folder: Path) -> None:
    asyncio.run(KeeperClient(str(keeper_folder / "keeper.sock"), TurnLimits()).kill(UNIT))
    said = (keeper_folder / "systemctl.said").read_text().splitlines()
    assert [each.removeprefix("--no-ask-password ") for each in said] == [
        f"kill --signal=SIGKILL {UNIT}",
        f"stop {UNIT}",
    ]


def test_units_are_started_and_stopped(keeper_folder: Path) -> None:
    client = KeeperClient(str(keeper_folder / "keeper.sock"), TurnLimits())
    asyncio.run(client.start(UNIT))
    asyncio.run(client.stop(UNIT))
    said = (keeper_folder / "systemctl.said").read_text().splitlines()
    assert [each.removeprefix("--no-ask-password ") for each in said] == [
        f"reset-failed {UNIT}",
        f"start --no-block {UNIT}",
        f"stop {UNIT}",
    ]


LOOKS = {
    ("active", ""): True,
    ("activating", "712"): True,
    ("inactive", "712"): True,
    ("inactive", ""): False,
    ("inactive", "0"): False,
    ("failed", ""): False,
}


def test_it_says_whether_a_unit_runs_or_is_about_to(keeper_folder: Path) -> None:
    client = KeeperClient(str(keeper_folder / "keeper.sock"), TurnLimits())
    found = {}
    for state, job in LOOKS:
        (keeper_folder / "systemctl.shows").write_text(f"ActiveState={state}\n" + (f"Job={job}\n" if job else ""))
        found[state, job] = asyncio.run(client.runs(UNIT))
    assert found == LOOKS
    assert send(keeper_folder, {"do": "look", "unit": "ssh.service"})["error"]


def test_what_fails_is_told(keeper_folder: Path) -> None:
    (keeper_folder / "systemctl.fails").touch()
    with pytest.raises(KeeperFault, match="Job failed"):
        asyncio.run(KeeperClient(str(keeper_folder / "keeper.sock"), TurnLimits()).stop(UNIT))
    (keeper_folder / "systemctl.nothing").touch()
    with pytest.raises(KeeperNotReady, match="Unit not found"):
        asyncio.run(KeeperClient(str(keeper_folder / "keeper.sock"), TurnLimits()).start(UNIT))
    with pytest.raises(KeeperNotReady, match="FileNotFoundError"):
        asyncio.run(KeeperClient("/nowhere/keeper.sock", TurnLimits()).stop(UNIT))


NOT_ITS_OWN: list[Any] = [b"\n", b"[]\n", b"{\n", b"\xff\n", b"a" * 9000 + b"\n",
    {"do": "stop", "unit": "ssh.service"}, {"do": "stop", "unit": f"{UNIT} ssh.service"},
    {"do": "stop", "unit": ["--help"]}, {"do": "stop"}, {"do": "reboot", "unit": UNIT}]  # fmt: skip


def test_nothing_else_is_done(keeper_folder: Path) -> None:
    for request in NOT_ITS_OWN:
        assert "error" in send(keeper_folder, request), request
    assert not (keeper_folder / "systemctl.said").exists()


def test_without_a_driver_it_says_so(keeper_folder: Path) -> None:
    try:
        free = GpuLibrary().free_mib()
    except DriverError:
        assert "driver" in send(keeper_folder, {"do": "memory"})["error"]
    else:
        assert set(send(keeper_folder, {"do": "memory"})["free_mib"]) == {str(gpu) for gpu in free}


def test_what_is_being_done_when_it_is_stopped_is_done(keeper_folder: Path) -> None:
    waits, said = keeper_folder / "systemctl.waits", keeper_folder / "systemctl.said"
    waits.touch()
    with ThreadPoolExecutor(1) as aside:
        answer = aside.submit(send, keeper_folder, {"do": "start", "unit": UNIT})
        until = time.monotonic() + PATIENCE_S
        while not (said.exists() and "--no-block" in said.read_text()):
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(int((keeper_folder / "pid").read_text()), signal.SIGTERM)
        while listens(keeper_folder / "keeper.sock"):
            assert time.monotonic() < until
            time.sleep(0.02)
        waits.unlink()
        assert answer.result(PATIENCE_S) == {"done": "start"}
