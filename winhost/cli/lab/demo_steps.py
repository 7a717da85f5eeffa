"""The steps of demos: commands as a user types them, chapters, checks, and an endpoint that answers."""

import io
import json
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import unquote

import click
import yaml

from winhost.cli import output
from winhost.cli import run as command_line
from winhost.cli.terminal import PIPE_CLOSED
from winhost.core.dataclass import dataclass
from winhost.engine.store import Store
from winhost.hub.catalogue import catalogue
from winhost.serving.fitting import weight_bytes

_STEP_END = re.compile(r" ✓ \[\d+/\d+\] ")
_STEP_START = re.compile(r" · \[\d+/\d+\] ")
_WIDTH = 80
_KILL_AFTER_LINES = 9  # journal lines: in the middle of the second stage, after the restart
SCALE = 0.01  # real seconds per lab second
EXIT_INTERRUPTED = 130  # the exit code after Ctrl-C
CLEANUP_NOTE = "The demo has removed the simulated hosts and their runs. To see all of it: winhost demo"


@dataclass(frozen=True)
class RealEndpoint:
    """A gateway on this computer, with a real engine that answers instead of the simulator's stand-in."""

    address: tuple[str, int]
    key: str


class DemoFailed(click.ClickException):
    """A check of a demo failed, because of a bug in winhost."""


class Demo:
    """A sequence of chapters. Each ends with a check of its claims."""

    def __init__(self, folder: Path, engine: str, real: RealEndpoint | None = None) -> None:
        self.folder = folder
        self.engine = engine
        self.real = real
        self.plan = folder / "plan.json"

    def play(self) -> None:
        """Play all chapters. Raises DemoFailed."""
        raise NotImplementedError

    def run_of(self, host: str) -> str:
        """Return the name of the only run on this host."""
        (name,) = (each for each in Store().runs() if each.startswith(f"{host}."))
        return name

    def apply_and_kill(self, host: str, consents: str, *, summarized: bool = False) -> None:
        """Apply the plan in a second process, and kill that in the middle of the second stage. summarized: shorten its
        output.
        """
        arguments = ["apply", str(self.plan), "--accept", consents, "--yes"]
        click.secho(f"\n$ winhost {' '.join(arguments)}", bold=True)
        controller = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "winhost", *arguments],
            stderr=subprocess.PIPE if summarized else None,
            encoding="utf-8",
        )
        try:
            while controller.poll() is None and self._journal_lines(host) < _KILL_AFTER_LINES:
                time.sleep(0.005)
            require(controller.poll() is None, "the run was over before it could be killed")
        finally:
            controller.kill()
            _, stderr_text = controller.communicate()
        if stderr_text:
            with summarized_steps():
                click.echo(stderr_text, nl=False)
        say(f"Killed after {self._journal_lines(host)} lines of its journal. The host was not notified.")

    def _journal_lines(self, host: str) -> int:
        journals = (self.folder / "state" / "runs").glob(f"{host}.*.jsonl")
        return sum(path.read_bytes().count(b"\n") for path in journals)


def run(*arguments: str, expect: int = 0) -> None:
    """Run a command in this process, as a user would type it."""
    click.secho(f"\n$ winhost {shlex.join(arguments)}", bold=True)
    with watch_interrupts() as interrupted:
        code = command_line(list(arguments))
        if code != EXIT_INTERRUPTED and interrupted():  # a run ends after its step, with another exit code
            say(CLEANUP_NOTE)
            raise click.Abort
    if code == EXIT_INTERRUPTED:
        say(CLEANUP_NOTE)
    if code in (EXIT_INTERRUPTED, PIPE_CLOSED):
        raise click.exceptions.Exit(code)
    if expect:
        say(f"(exit {code})")
    require(code == expect, f"winhost {arguments[0]} ended with {code}, not {expect}")


@contextmanager
def watch_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed inside the block, even if the signal was handled."""
    receiver, sender = socket.socketpair()
    for each in (receiver, sender):
        each.setblocking(False)
    previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)

    def interrupted() -> bool:
        try:
            return signal.SIGINT in receiver.recv(4096)
        except BlockingIOError:
            return False

    try:
        yield interrupted
    finally:
        signal.set_wakeup_fd(previous)
        receiver.close()
        sender.close()


class StepSummary:
    """Writes the first and the last of several consecutive steps, and the number of the steps between them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._partial_line, self._last_step, self._steps = stream, "", "", 0

    def take(self, text: str) -> None:
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        for line in lines:
            self._write_line(line + "\n")
        self._stream.flush()

    def end(self) -> None:
        """Write the last step, and an unfinished line."""
        self._write_steps()
        self._stream.write(self._partial_line)
        self._partial_line = ""

    def _write_line(self, line: str) -> None:
        if _STEP_END.search(line):
            self._steps += 1
            self._last_step = line if len(line) <= _WIDTH else f"{line[: _WIDTH - 2]}…\n"
            if self._steps == 1:
                self._stream.write(self._last_step)
        elif not _STEP_START.search(line):
            self._write_steps()
            self._stream.write(line)

    def _write_steps(self) -> None:
        if self._steps > 2:
            self._stream.write(f"  … {self._steps - 2} more\n")
        if self._steps > 1:
            self._stream.write(self._last_step)
        self._steps, self._last_step = 0, ""


class _BriefStream(io.RawIOBase):
    """An output stream of a command. terminal: the stream reports that it is a terminal."""

    def __init__(self, summary: StepSummary, *, terminal: bool) -> None:
        self._summary, self._terminal = summary, terminal

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._terminal

    def write(self, data: Any) -> int:
        self._summary.take(bytes(data).decode())
        return len(data)


@contextmanager
def summarized_steps() -> Iterator[None]:
    """Summarize the steps in the output of commands inside the block. stderr is no terminal, so progress is printed as
    lines.
    """
    summary = StepSummary(sys.stdout)
    out, err = (
        io.TextIOWrapper(io.BufferedWriter(_BriefStream(summary, terminal=each)), "utf-8", write_through=True)
        for each in (sys.stdout.isatty(), False)
    )
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            summary.end()


def chapter(title: str) -> None:
    click.secho(f"\n━━ {title} ━━", fg="cyan", bold=True)


def say(text: str) -> None:
    output.say(text, fg="cyan")


def require(holds: bool, what: str) -> None:
    if not holds:
        raise DemoFailed(what)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables inside the block."""
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


MODEL, KEY_NAME = "tiny", "DEMO_KEY"
_MODEL_ID = "demo/tiny"
_REVISION = sha256(b"a model that does not exist").hexdigest()[:40]
_IMAGE = f"registry.example.com/vllm/vllm-openai:v0.33.0@sha256:{sha256(b'an image that does not exist').hexdigest()}"
_WORKLOAD = {
    "schema": "winhost.workload/1",
    "models": {
        MODEL: {
            "id": _MODEL_ID,
            "revision": _REVISION,
            "parameters": 1_000_000_000,
            "dtype": "bfloat16",
            "context": 4096,
            "shape": {"layers": 28, "kv_heads": 4, "head_dim": 128, "hidden": 1536, "vocabulary": 151936},
        }
    },
    "versions": {"vllm": "0.33.0"},
}
_DEFAULT_WEIGHTS_SIZE = 2_000_000_000


@dataclass(frozen=True)
class ServedDemo:
    """The endpoint of a demo. plan_options: options of `winhost plan`; the environment names its hub and image."""

    plan_options: tuple[str, ...]
    real: RealEndpoint | None

    def test(self, host: str) -> None:
        """Test the endpoint of a host."""
        if self.real is not None:
            say("The completion above is by a real vLLM on this computer's processor, through a real gateway.")
            return
        run("serve", "test", host, "--api-key", f"env:{KEY_NAME}")
        say("A stand-in of the simulator answered, not a model: make demo-vllm has a real vLLM answer.")


@contextmanager
def served_demo(folder: Path, real: RealEndpoint | None) -> Iterator[ServedDemo]:
    """Serve a hub that lists the model, and set the API key in the environment, inside the block."""
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump(_WORKLOAD, sort_keys=False), encoding="utf-8")
    key = real.key if real else secrets.token_hex(32)
    with _hub() as hub, environment(**{KEY_NAME: key, "WINHOST_HUB": hub, "WINHOST_ENGINE_IMAGE": _IMAGE}):
        yield ServedDemo(("--workload", str(file), "--api-key", f"alice=env:{KEY_NAME}"), real)


@contextmanager
def _hub() -> Iterator[str]:
    """Serve a hub that lists the files of every model at one revision. It serves no files, because a simulated Linux
    counts them as downloaded.
    """

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(_hub_answer(unquote(self.path))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:  # else the thread would poll a closed socket in a busy loop
            server.shutdown()
            thread.join()


def _hub_answer(path: str) -> Any:
    name = path.removeprefix("/api/models/").partition("/revision/" if "/revision/" in path else "/tree/")[0]
    weights_size = next((weight_bytes(each) for each in catalogue().entries if each.id == name), _DEFAULT_WEIGHTS_SIZE)
    if "/tree/" not in path:
        return {"id": name, "sha": _REVISION}
    weights = {"type": "file", "path": "model.safetensors", "size": weights_size, "oid": "2" * 40}
    config = {"type": "file", "path": "config.json", "size": 2, "oid": "1" * 40}
    return [config, {**weights, "lfs": {"oid": "3" * 64, "size": weights_size}}]
