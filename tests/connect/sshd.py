"""A real sshd on loopback, run by whoever runs the tests, and a program for it that does as it is told."""

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S, wait_for
from winhost.connect.ssh import SshConnector, SshWire
from winhost.lab.linux.linux_machine import sshd_file
from winhost.model.fleet import LinuxHost, Login
from winhost.model.secrets import SecretRef

# Each request names what to do; an answer begins as the agent's do.
PROGRAM = """
import json, os, sys, time
for line in sys.stdin.buffer:
    do, what = json.loads(line)
    if do == "exit":
        print("said on the way", file=sys.stderr)
        sys.exit(what)
    if do == "noise":
        print(what, flush=True)
        continue
    if do == "until":
        open(what + ".begun", "w").close()
        end = time.monotonic() + 300
        while not os.path.exists(what) and time.monotonic() < end:
            time.sleep(0.02)
        open(what + ".done", "w").close()
    if do == "beat":
        for _ in range(what):
            time.sleep(0.2)
            print(flush=True)
    if do == "silence":
        time.sleep(what)
    print(json.dumps({"answers": [what]}), flush=True)
"""


class NoSshd(Exception):
    """Why there is none."""


class Sshd:
    """`log`: what it says of whoever comes."""

    def __init__(self, folder: Path, *options: str) -> None:
        binary = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/sbin")
        if not Path("/proc/self").exists():
            raise NoSshd("sessions are told apart by /proc, which is not here")
        if binary is None or shutil.which("ssh-keygen") is None:
            raise NoSshd("there is no sshd or ssh-keygen here (Debian: openssh-server)")
        self.folder = folder
        self.port = free_port()
        self.host_key, self.key = keypair(folder / "host"), keypair(folder / "mine")
        (folder / "authorized").write_text((folder / "mine.pub").read_text())
        self.log = folder / "log"
        config = [
            sshd_file(ip_address("127.0.0.1"), self.port),
            f"HostKey {folder / 'host'}",
            f"AuthorizedKeysFile {folder / 'authorized'}",
            f"PidFile {folder / 'pid'}",
            "StrictModes no",
            "LogLevel VERBOSE",
            *options,
        ]
        (folder / "config").write_text("\n".join(config) + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        command = [binary, "-D", "-f", str(folder / "config"), "-E", str(self.log)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_for(lambda: answers(self.port) or self._process.poll() is not None)
        if self._process.poll() is not None:
            raise NoSshd(f"sshd does not start: {self.log.read_text()}")

    def target(self, **changes: Any) -> LinuxHost:
        target = LinuxHost(
            timeouts="transport",
            name="gpu-03/ubuntu",
            address="127.0.0.1",
            host_key=(self.folder / "host.pub").read_text(),
            key=SecretRef("file", str(self.key)),
            user=getpass.getuser(),
            port=self.port,
        )
        return target.model_copy(update=changes)

    def login(self, **changes: Any) -> Login:
        """As it is written in a fleet file, where it is the way to another."""
        target = self.target()
        known = {name: getattr(target, name) for name in ("address", "user", "port", "host_key", "key")}
        return Login.model_construct(**known | changes)

    def connector(self, program: str = PROGRAM, **changes: Any) -> SshConnector:
        return SshConnector(self.target(**changes), program)

    def wire(self, program: str = PROGRAM, **changes: Any) -> SshWire:
        return SshWire(self.target(**changes), program)

    def sessions(self) -> list[int]:
        """Its processes for connections that are open, the one that serves a user last."""
        return children(self._process.pid)

    def cut(self) -> None:
        """Every connection ends now, without a word."""
        for pid in self.sessions():
            with suppress(ProcessLookupError):
                os.kill(pid, 9)

    def close(self) -> None:
        self.cut()
        self._process.terminate()
        self._process.wait(PATIENCE_S)


def children(pid: int) -> list[int]:
    """Those that are sshd, too; what they run for a user is left alone."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, timeout=PATIENCE_S
    ).stdout
    found = []
    for child in map(int, listed.split()):
        with suppress(FileNotFoundError):
            if "sshd" in Path(f"/proc/{child}/comm").read_text():
                found += [child, *children(child)]
    return found


def keypair(path: Path, *options: str) -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-C", "test", "-N", "", "-f", str(path), *options],
        check=True,
        timeout=PATIENCE_S,
    )
    return path


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Sshd]:
    try:
        running = Sshd(folder, *options)
    except NoSshd as why:
        pytest.skip(str(why))
    try:
        yield running
    finally:
        running.close()
