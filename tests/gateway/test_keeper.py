"""The keeper as a program, with a stand-in for systemctl that says what it was called with."""

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
def kept(short: Path) -> Iterator[Path]:
    """A keeper that runs, in this folder."""
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
    """It is there a moment before somebody listens at it."""
    with socket.socket(socket.AF_UNIX) as to:
        return to.connect_ex(str(path)) == 0


def asked(kept: Path, request: Any) -> dict[str, Any]:
    data = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
    with socket.socket(socket.AF_UNIX) as to:
        to.settimeout(PATIENCE_S)
        to.connect(str(kept / "keeper.sock"))
        to.sendall(data)
        found: dict[str, Any] = json.loads(to.makefile().readline())
        return found


def test_a_unit_that_hangs_is_killed_before_it_is_stopped(kept: Path) -> None:
    asyncio.run(KeeperClient(str(kept / "keeper.sock"), TurnLimits()).kill(UNIT))
    said = (kept / "systemctl.said").read_text().splitlines()
    assert [each.removeprefix("--no-ask-password ") for each in said] == [
        f"kill --signal=SIGKILL {UNIT}",
        f"stop {UNIT}",
    ]


def test_units_are_started_and_stopped(kept: Path) -> None:
    client = KeeperClient(str(kept / "keeper.sock"), TurnLimits())
    asyncio.run(client.start(UNIT))
    asyncio.run(client.stop(UNIT))
    said = (kept / "systemctl.said").read_text().splitlines()
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


def test_it_says_whether_a_unit_runs_or_is_about_to(kept: Path) -> None:
    client = KeeperClient(str(kept / "keeper.sock"), TurnLimits())
    found = {}
    for state, job in LOOKS:
        (kept / "systemctl.shows").write_text(f"ActiveState={state}\n" + (f"Job={job}\n" if job else ""))
        found[state, job] = asyncio.run(client.runs(UNIT))
    assert found == LOOKS
    assert asked(kept, {"do": "look", "unit": "ssh.service"})["error"]


def test_what_fails_is_told(kept: Path) -> None:
    (kept / "systemctl.fails").touch()
    with pytest.raises(KeeperFault, match="Job failed"):
        asyncio.run(KeeperClient(str(kept / "keeper.sock"), TurnLimits()).stop(UNIT))
    (kept / "systemctl.nothing").touch()
    with pytest.raises(KeeperNotReady, match="Unit not found"):
        asyncio.run(KeeperClient(str(kept / "keeper.sock"), TurnLimits()).start(UNIT))
    with pytest.raises(KeeperNotReady, match="FileNotFoundError"):
        asyncio.run(KeeperClient("/nowhere/keeper.sock", TurnLimits()).stop(UNIT))


NOT_ITS_OWN: list[Any] = [b"\n", b"[]\n", b"{\n", b"\xff\n", b"a" * 9000 + b"\n",
    {"do": "stop", "unit": "ssh.service"}, {"do": "stop", "unit": f"{UNIT} ssh.service"},
    {"do": "stop", "unit": ["--help"]}, {"do": "stop"}, {"do": "reboot", "unit": UNIT}]  # fmt: skip


def test_nothing_else_is_done(kept: Path) -> None:
    for request in NOT_ITS_OWN:
        assert "error" in asked(kept, request), request
    assert not (kept / "systemctl.said").exists()


def test_without_a_driver_it_says_so(kept: Path) -> None:
    try:
        free = GpuLibrary().free_mib()
    except DriverError:
        assert "driver" in asked(kept, {"do": "memory"})["error"]
    else:
        assert set(asked(kept, {"do": "memory"})["free_mib"]) == {str(gpu) for gpu in free}


def test_what_is_being_done_when_it_is_stopped_is_done(kept: Path) -> None:
    waits, said = kept / "systemctl.waits", kept / "systemctl.said"
    waits.touch()
    with ThreadPoolExecutor(1) as aside:
        answer = aside.submit(asked, kept, {"do": "start", "unit": UNIT})
        until = time.monotonic() + PATIENCE_S
        while not (said.exists() and "--no-block" in said.read_text()):
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(int((kept / "pid").read_text()), signal.SIGTERM)
        while listens(kept / "keeper.sock"):
            assert time.monotonic() < until
            time.sleep(0.02)
        waits.unlink()
        assert answer.result(PATIENCE_S) == {"done": "start"}
