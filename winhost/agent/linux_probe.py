# Json {parts: [...], deadlines: {part: s}, container: {image, program}}   answer {answers: [{ok, ...}]}
"""Try what the GPUs of this Linux can do, with little memory and a deadline for each part. The text is constant.

Each part runs in a process of its own, and only that process loads the driver. So a part that hangs or crashes ends no
other, and its results so far are kept. A part is skipped if little memory is free: a running engine may need it.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

from winhost.agent.linux_peer import Peer, outcome_of
from winhost.agent.linux_trials import PARTS

MAX_OUTPUT = 1 << 20  # bytes of the results of a part
BEAT = 1.0  # seconds between heartbeats


class Part:
    """A part while it runs, and its results."""

    def __init__(self, name: str, request: Any) -> None:
        self.name, self.found, self.outcome = name, {}, {}  # type: ignore[var-annotated]
        self._act, seconds = PARTS[name]
        self._seconds = float((request.get("deadlines") or {}).get(name, seconds))
        self._began = time.monotonic()
        self._rest = b""
        self._folder = tempfile.mkdtemp(prefix="winhost-")
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._child(write, request)
        os.close(write)

    def _child(self, write: int, request: Any) -> None:
        """Run the part in the forked process. Does not return."""
        code = 1
        try:
            os.setsid()  # its child processes end with it
            os.close(self._read)
            quiet = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(quiet, fd)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            tempfile.tempdir = self._folder
            os.environ["CUDA_CACHE_PATH"] = self._folder  # the default is ~/.nv, which would stay
            os.write(write, run_part(self._act, write, request))
            Peer.join_all()
            code = 0
        finally:
            os._exit(code)

    def wait(self, heartbeat: Any) -> None:
        """Wait until the part ends, or its time is over."""
        heard = 0
        while True:
            remaining = self._began + self._seconds - time.monotonic()
            if remaining <= 0 or heard > MAX_OUTPUT:
                return self._close("hung" if remaining <= 0 else "failed", f"it was stopped after {self._seconds:g} s")
            if not select.select([self._read], [], [], min(remaining, BEAT))[0]:
                heartbeat()
                if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    continue  # a child process may hold the pipe open after the part has ended
                return self._close("crashed", "")
            data = os.read(self._read, 65536)
            heard += len(data)
            if not data:
                return self._close("crashed", "")
            self._hear(data)
            if self.outcome:
                return self._close("", "")

    def _hear(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            name, value = json.loads(line.decode("ascii"))
            if name == "ended":
                self.outcome = value
            else:
                self.found[name] = value

    def _close(self, outcome: str, reason: str) -> None:
        os.close(self._read)
        status = self._stop(0.0 if outcome == "hung" else 2.0)
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self.outcome:
            if status is None:
                reason += ", and cannot be killed: it waits for the driver"
            elif outcome == "crashed":
                signalled = os.WIFSIGNALED(status)
                reason = f"signal {os.WTERMSIG(status)}" if signalled else f"exit code {os.WEXITSTATUS(status)}"
            self.outcome = {"outcome": outcome, "why": reason.strip(", ")}
        whole = {"part": self.name, "outcome": "done", "why": None, "error": None}
        self.outcome = dict(whole, seconds=round(time.monotonic() - self._began, 2), **self.outcome)

    def _stop(self, patience: float) -> int | None:
        """Stop the process, and return its status; None if even SIGKILL does not end it."""
        for wait in (patience, 5.0):
            deadline = time.monotonic() + wait
            while True:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    with suppress(OSError):
                        os.killpg(self._pid, signal.SIGKILL)  # its child processes
                    return status
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.02)
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        return None


def run_part(act: Any, write: int, request: Any) -> bytes:
    """Run a part, and return its outcome as its last line."""

    def say(name: str, value: Any) -> None:
        os.write(write, json.dumps([name, value]).encode("ascii") + b"\n")

    try:
        act(say, request)
        ended: dict[str, Any] = {"outcome": "done"}
    except Exception as error:  # noqa: BLE001 - any error is the outcome of this part
        ended = outcome_of(error)
    return json.dumps(["ended", ended]).encode("ascii") + b"\n"


def probe(request: Any, heartbeat: Any) -> dict[str, Any]:
    """Run the requested parts one after another, because two at a time would disturb each other's measurements."""
    answer: dict[str, Any] = {"ok": True, "kernel": os.uname().release, "outcomes": []}
    for name in request["parts"]:
        part = Part(name, request)
        part.wait(heartbeat)
        answer.update(part.found)
        answer["outcomes"].append(part.outcome)
    return answer


def serve() -> None:
    """Answer lines of requests until the input ends."""

    def send(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for line in iter(sys.stdin.buffer.readline, b""):
        answers = {"answers": [probe(json.loads(line.decode("ascii")), lambda: send(b"\n"))]}
        send(json.dumps(answers).encode("ascii") + b"\n")
