"""The steps of demos: commands as a user types them, chapters, checked claims, and an endpoint to ask."""

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

_STEP = re.compile(r" ✓ \[\d+/\d+\] ")
_BEGUN = re.compile(r" · \[\d+/\d+\] ")
_WIDTH = 80
_KILL_AFTER = 9  # journal lines: in the middle of the second stage, after the restart
SCALE = 0.01  # real seconds per lab second
STOPPED = 130  # how a command ends after Ctrl-C
GONE = "The simulated hosts and their runs are gone with the demo. To see all of it: winhost demo"


@dataclass(frozen=True)
class RealEndpoint:
    """A gateway on this computer before a real engine, which answers instead of the simulator's stand-in."""

    address: tuple[str, int]
    key: str


class DemoFailed(click.ClickException):
    """A demo did not go as it should: a bug in winhost."""


class Demo:
    """Chapters in order. Each ends with a check of what it claims."""

    def __init__(self, folder: Path, engine: str, real: RealEndpoint | None = None) -> None:
        self.folder = folder
        self.engine = engine
        self.real = real
        self.plan = folder / "plan.json"

    def play(self) -> None:
        """All of it. Raises DemoFailed."""
        raise NotImplementedError

    def run_of(self, host: str) -> str:
        """The name of the only run on this host that is not rolled back."""
        (name,) = (each for each in Store().runs() if each.startswith(f"{host}."))
        return name

    def apply_and_kill(self, host: str, consents: str, *, shortly: bool = False) -> None:
        """Apply in a second process, and kill it without warning in the middle of its second stage."""
        arguments = ["apply", str(self.plan), "--accept", consents, "--yes"]
        click.secho(f"\n$ winhost {' '.join(arguments)}", bold=True)
        controller = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "winhost", *arguments], stderr=subprocess.PIPE if shortly else None, encoding="utf-8"
        )
        try:
            while controller.poll() is None and self._journal_lines(host) < _KILL_AFTER:
                time.sleep(0.005)
            require(controller.poll() is None, "the run was over before it could be killed")
        finally:
            controller.kill()
            _, said = controller.communicate()
        if said:
            with briefly():
                click.echo(said, nl=False)
        say(f"Killed after {self._journal_lines(host)} lines of its journal. The host was not told.")

    def _journal_lines(self, host: str) -> int:
        journals = (self.folder / "state" / "runs").glob(f"{host}.*.jsonl")
        return sum(path.read_bytes().count(b"\n") for path in journals)


def run(*arguments: str, expect: int = 0) -> None:
    """Run a command in this process, as a user would type it."""
    click.secho(f"\n$ winhost {shlex.join(arguments)}", bold=True)
    with interrupts() as interrupted:
        code = command_line(list(arguments))
        if code != STOPPED and interrupted():  # a run ends after its step, with another code
            say(GONE)
            raise click.Abort
    if code == STOPPED:
        say(GONE)
    if code in (STOPPED, PIPE_CLOSED):
        raise click.exceptions.Exit(code)
    if expect:
        say(f"(exit {code})")
    require(code == expect, f"winhost {arguments[0]} ended with {code}, not {expect}")


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Tell whether Ctrl-C was pressed inside the block, whoever handled it."""
    heard, wakeup = socket.socketpair()
    for each in (heard, wakeup):
        each.setblocking(False)
    before = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)

    def interrupted() -> bool:
        try:
            return signal.SIGINT in heard.recv(4096)
        except BlockingIOError:
            return False

    try:
        yield interrupted
    finally:
        signal.set_wakeup_fd(before)
        heard.close()
        wakeup.close()


class Brief:
    """Shows the first and the last of many steps in a row, and the number of the others."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._unended, self._held, self._steps = stream, "", "", 0

    def take(self, text: str) -> None:
        *lines, self._unended = (self._unended + text).split("\n")
        for line in lines:
            self._line(line + "\n")
        self._stream.flush()

    def end(self) -> None:
        """Print the last step, and an unfinished line."""
        self._tell_of_steps()
        self._stream.write(self._unended)
        self._unended = ""

    def _line(self, line: str) -> None:
        if _STEP.search(line):
            self._steps += 1
            self._held = line if len(line) <= _WIDTH else f"{line[: _WIDTH - 2]}…\n"
            if self._steps == 1:
                self._stream.write(self._held)
        elif not _BEGUN.search(line):
            self._tell_of_steps()
            self._stream.write(line)

    def _tell_of_steps(self) -> None:
        if self._steps > 2:
            self._stream.write(f"  … {self._steps - 2} more\n")
        if self._steps > 1:
            self._stream.write(self._held)
        self._steps, self._held = 0, ""


class _Into(io.RawIOBase):
    """One of the two output streams of a command. terminal: the command sees a terminal."""

    def __init__(self, brief: Brief, *, terminal: bool) -> None:
        self._brief, self._terminal = brief, terminal

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._terminal

    def write(self, data: Any) -> int:
        self._brief.take(bytes(data).decode())
        return len(data)


@contextmanager
def briefly() -> Iterator[None]:
    """Shorten what commands print, including progress, which comes as lines because there is no terminal."""
    brief = Brief(sys.stdout)
    out, err = (
        io.TextIOWrapper(io.BufferedWriter(_Into(brief, terminal=each)), "utf-8", write_through=True)
        for each in (sys.stdout.isatty(), False)
    )
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            brief.end()


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
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


MODEL, KEY_NAME = "tiny", "DEMO_KEY"
_ID = "demo/tiny"
_REVISION = sha256(b"a model that there is none of").hexdigest()[:40]
_IMAGE = f"registry.example.com/vllm/vllm-openai:v0.33.0@sha256:{sha256(b'an image that there is none of').hexdigest()}"
_WORKLOAD = {
    "schema": "winhost.workload/1",
    "models": {
        MODEL: {
            "id": _ID,
            "revision": _REVISION,
            "parameters": 1_000_000_000,
            "dtype": "bfloat16",
            "context": 4096,
            "shape": {"layers": 28, "kv_heads": 4, "head_dim": 128, "hidden": 1536, "vocabulary": 151936},
        }
    },
    "versions": {"vllm": "0.33.0"},
}
_SIZE = 2_000_000_000


@dataclass(frozen=True)
class ServedDemo:
    """The endpoint of a demo. words: options of `winhost plan` for it; its hub and its image are in the environment."""

    words: tuple[str, ...]
    real: RealEndpoint | None

    def ask(self, host: str) -> None:
        """Ask the endpoint of a host once it serves."""
        if self.real is not None:
            say("The completion above is by a real vLLM on this computer's processor, through a real gateway.")
            return
        run("serve", "test", host, "--api-key", f"env:{KEY_NAME}")
        say("A stand-in of the simulator answered, not a model: make demo-vllm has a real vLLM answer.")


@contextmanager
def served_demo(folder: Path, real: RealEndpoint | None) -> Iterator[ServedDemo]:
    """Serve a hub that lists the model, and set the key in the environment, inside the block."""
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump(_WORKLOAD, sort_keys=False), encoding="utf-8")
    key = real.key if real else secrets.token_hex(32)
    with _hub() as hub, environment(**{KEY_NAME: key, "WINHOST_HUB": hub, "WINHOST_ENGINE_IMAGE": _IMAGE}):
        yield ServedDemo(("--workload", str(file), "--api-key", f"alice=env:{KEY_NAME}"), real)


@contextmanager
def _hub() -> Iterator[str]:
    """Serve a hub that lists the files of every model at one revision, and no more: a simulated Linux counts them as
    downloaded.
    """

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(_answer(unquote(self.path))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Print nothing: nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:  # else it would look at a closed socket again and again, as fast as it can
            server.shutdown()
            thread.join()


def _answer(path: str) -> Any:
    name = path.removeprefix("/api/models/").partition("/revision/" if "/revision/" in path else "/tree/")[0]
    known = next((weight_bytes(each) for each in catalogue().entries if each.id == name), _SIZE)
    if "/tree/" not in path:
        return {"id": name, "sha": _REVISION}
    weights = {"type": "file", "path": "model.safetensors", "size": known, "oid": "2" * 40}
    config = {"type": "file", "path": "config.json", "size": 2, "oid": "1" * 40}
    return [config, {**weights, "lfs": {"oid": "3" * 64, "size": known}}]
