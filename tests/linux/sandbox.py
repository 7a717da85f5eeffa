"""The agent on this machine, with a view of its file system in which writes go to a folder."""

import json
import os
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.processes import PATIENCE_S
from winhost.connect.agent import Agent
from winhost.connect.ssh import START
from winhost.resources.linux.linux_scripts import session_text

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS = ("mount", "nsenter", "python3", "unshare")
# /run is empty there, and what is written to the others goes to the folder $1. So is the store of Podman's images: one
# that this machine began on its own disk cannot be used on an overlay.
VIEW = """
set -e
mount -t tmpfs tmpfs /run
for each in etc opt usr var; do
    mkdir "$1/$each" "$1/$each.item"
    mount -t overlay overlay -o "lowerdir=/$each,upperdir=$1/$each,workdir=$1/$each.item" "/$each"
done
mkdir -p /var/lib/containers
mount -t tmpfs tmpfs /var/lib/containers
echo ready
exec sleep infinity
"""


class NoSandbox(Exception):
    """This machine cannot make a sandbox. The message says why."""


class Sandbox:
    """A sandbox. `root`: its file system, seen from outside."""

    def __init__(self, folder: Path) -> None:
        lacking = [tool for tool in TOOLS if shutil.which(tool, path=SYSTEM_PATH) is None]
        if os.geteuid() != 0 or lacking:
            raise NoSandbox(f"it takes root and {', '.join(lacking or TOOLS)}")
        folder.mkdir()
        command = ["unshare", "--mount", "--", "/bin/sh", "-c", VIEW, "sh", str(folder)]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            _, said = self._holder.communicate(timeout=PATIENCE_S)
            raise NoSandbox(f"no overlay in a mount namespace of its own ({said.strip()})")
        self.root = Path(f"/proc/{self._holder.pid}/root")

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text, "utf-8")
        self.path(path).chmod(mode)

    def inside(self, *command: str) -> list[str]:
        """Return a command that runs another one in the sandbox."""
        return ["nsenter", f"--target={self._holder.pid}", "--mount", "--", *command]

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.inside(*command), capture_output=True, text=True, env={"PATH": SYSTEM_PATH}, timeout=PATIENCE_S
        )

    def wire(self, program: str | None = None) -> "PipeWire":
        return PipeWire(self.inside(*shlex.split(START)[1:]), program or session_text())

    def agent(self) -> Agent:
        return Agent(self.wire(), 60, system="linux")

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate(timeout=PATIENCE_S)


class PipeWire:
    """`Wire` through pipes: the agent's program and its lines, without SSH."""

    host = "here"

    def __init__(self, command: list[str], program: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": SYSTEM_PATH, "LC_ALL": "C"}
        )
        self._send(json.dumps(program))

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode("ascii") + b"\n")
        self._process.stdin.flush()

    def ask(self, request: str) -> None:
        self._send(request)

    def answer(self) -> str:
        assert self._process.stdout is not None
        # Signs of life, by themselves or with what is waited for.
        while (line := self._process.stdout.readline()) == b"\n" or line.startswith(b'{"waiting": '):
            pass
        return line.decode("ascii")

    def invoke(self, request: str, within: float) -> str:
        self.ask(request)
        return self.answer()

    def leave(self) -> None:
        """Close the pipes, as a controller that goes away does."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def ended(self) -> int:
        return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        self.leave()
        self.ended()
