"""What waits in an engine's unit for its socket: until it answers, or until the engine has ended."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer

import pytest

from tests.processes import PATIENCE_S
from winhost.serving import ready
from winhost.web.server import run_server as running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it runs in a unit of systemd")


@pytest.fixture
def socket() -> Iterator[Path]:
    """A Unix socket's path has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="ready-") as folder:
        yield Path(folder, "engine.sock")


class _Healthy(StreamRequestHandler):
    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def ended(socket: Path, process: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MAINPID": str(process)}
    command = [sys.executable, "-I", ready.__file__, socket]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def test_an_engine_that_answers_has_started(socket: Path) -> None:
    with ThreadingUnixStreamServer(str(socket), _Healthy) as engine, running(engine):
        assert ended(socket, os.getpid()).returncode == 0


def test_one_that_ended_is_not_waited_for(socket: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(PATIENCE_S)
    found = ended(socket, gone.pid)
    assert (found.returncode, "has ended" in found.stderr) == (1, True)


@pytest.mark.costly
def test_one_that_still_starts_is_waited_for(socket: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-I", ready.__file__, socket], env={**os.environ, "MAINPID": str(os.getpid())}, timeout=3
        )
