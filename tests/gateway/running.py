"""The gateway as a program, run by the Python that is tested, and raw connections to it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.gateway.engine_standin import StandInEngine
from tests.processes import PATIENCE_S

SOURCE = Path(__file__).parents[2] / "winhost/gateway"
# Without site-packages: nothing but the standard library is there.
PROGRAM = ("-S", "-s", "-E", "-B", "-m", "gateway.program")
KEY = "wh-Canary0of1the2key3of4alice"  # the same in all processes of pytest, which name tests by it
KEY_LINE = f"alice sha256:{sha256(KEY.encode()).hexdigest()}"
OTHER_KEY = "wh-Canary4of5the6key7of8bob"
_OTHER_LINE = f"bob sha256:{sha256(OTHER_KEY.encode()).hexdigest()}"
METRICS_KEY = "wh-Canary1of2the3key4of5prometheus"
METRICS_LINE = f"prometheus sha256:{sha256(METRICS_KEY.encode()).hexdigest()} metrics"
MODEL = "org/tiny"


@dataclass
class Gateway:
    """A running gateway. log: its output."""

    process: "subprocess.Popen[bytes]"
    socket: Path
    log_file: Path
    engine: StandInEngine
    headers: Mapping[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {KEY}"})

    @property
    def log(self) -> str:
        return self.log_file.read_text("utf-8")

    def connected(self) -> socket.socket:
        to = socket.socket(socket.AF_UNIX)
        to.settimeout(PATIENCE_S)
        try:
            to.connect(str(self.socket))
        except OSError:
            to.close()
            raise
        return to

    def raw(self, request: bytes) -> bytes:
        """Send a request, and return all bytes until the gateway closes the connection, perhaps before it has read
        the request.
        """
        with self.connected() as to:
            with suppress(BrokenPipeError, ConnectionResetError):
                to.sendall(request)
            return read_to_end(to)

    def ask(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one request on a new connection. Return the status, headers and body."""
        return parse_answer(self.raw(self.request(path, body, headers, method)))

    def request(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "") -> bytes:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [
            f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1",
            "Host: gateway",
            "Connection: close",
        ]
        lines += [f"{name}: {value}" for name, value in (self.headers if headers is None else headers).items()]
        lines += [] if body is None else ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        return "\r\n".join([*lines, "", ""]).encode() + data

    def complete(self, prompt: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
        return self.ask("/v1/completions", {"model": MODEL, "prompt": prompt, **more})

    def metrics(self, key: str = METRICS_KEY) -> str:
        status, _, text = self.ask("/metrics", headers={"Authorization": f"Bearer {key}"})
        assert status == 200, text
        return text.decode()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def read_to_end(to: socket.socket) -> bytes:
    parts = []
    try:
        while part := to.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def parse_answer(raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Parse an answer, and join its chunks. Raises AssertionError if the last one is missing."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body, whole = dechunked(body)
        assert whole
    return int(first.split(" ")[1]), headers, body


def dechunked(body: bytes) -> tuple[bytes, bool]:
    """Return the content of the chunks, and whether the last one came."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return b"".join(parts), True
        parts.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return b"".join(parts), False


def settings_for(folder: Path, **more: Any) -> dict[str, Any]:
    model = {"name": MODEL, "engine": {"socket": str(folder / "engine.sock")}, "served_as": "tiny"}
    return {"listen": {"socket": str(folder / "door.sock")}, "models": [model], **more}


def installed_in(folder: Path) -> Path:
    """Copy the package `gateway` into a folder, as on a Linux that serves, and nothing else of winhost."""
    shutil.copytree(SOURCE, folder / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@contextmanager
def gateway(
    folder: Path,
    settings: Mapping[str, Any],
    python: str = sys.executable,
    engine_up: bool = True,
    more_keys: str = "",
    instead: str = "",
) -> Iterator[Gateway]:
    """Start a gateway, and its engine if engine_up. instead: a program that runs the gateway."""
    engine = StandInEngine(folder / "engine.sock")
    installed_in(folder)
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "keys").write_text(f"# who may\n{KEY_LINE}\n{_OTHER_LINE}\n{METRICS_LINE}\n{more_keys}\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, *(("-s", "-B", "-c", instead) if instead else PROGRAM), str(folder / "settings.json")],
            cwd=folder,
            env={"CREDENTIALS_DIRECTORY": str(folder), "STATE_DIRECTORY": str(folder), "PATH": os.environ["PATH"]},
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        if engine_up:
            engine.start()
        found = Gateway(process, folder / "door.sock", folder / "log", engine)
        until = time.monotonic() + PATIENCE_S
        while "listening" not in found.log:
            assert process.poll() is None, found.log
            assert time.monotonic() < until, found.log
            time.sleep(0.02)
        yield found
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        engine.close()
