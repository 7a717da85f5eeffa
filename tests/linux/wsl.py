"""A stand-in for WSL: a program as wsl.exe, and a Debian that runs here. It copies what scripts could stumble over:
distros belong to accounts, and the system has none; wsl.exe writes UTF-16 with line ends of Windows, and ends with -1
or other codes; warnings of a file come between the output of a program; programs are started without a shell, with
their own bytes and codes; a start reads wsl.conf. A distro runs until it is ended. Sources: microsoft/WSL
(WslClient.cpp, LxssUserSession.cpp, WslCoreConfig.cpp, src/linux/init), Microsoft's "Advanced settings configuration
in WSL".
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.linux import wsl_client
from tests.linux.debian import Debian, children
from tests.linux.distro import Distro
from tests.processes import PATIENCE_S, wait_for
from winhost.wslconfig.format import WSLCONF, WSLCONFIG, parse
from winhost.wslconfig.keys import key_of, read_values

FAILED = 255  # -1 on Windows, of which Unix keeps eight bits
SYSTEM = "SYSTEM"
OF_WSL = "/mnt/wsl/resolv.conf"
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "USER": "root"}


class Failure(Exception):
    """wsl.exe writes this message, and ends with -1."""

    def __init__(self, code: str, said: str) -> None:
        super().__init__(code)
        self.said = f"{said}\nError code: Wsl/{code}\n"


@dataclass
class Client:
    """A process that calls wsl.exe. pipes: its standard input, output and errors."""

    account: str
    arguments: Sequence[str]
    utf8: bool
    pipes: Sequence[int]

    def say(self, text: str, pipe: int = 1) -> None:
        """Write a message of wsl.exe itself, through the text mode of the C runtime of Windows."""
        data = text.replace("\n", "\r\n").encode("utf-8" if self.utf8 else "utf-16-le")
        with os.fdopen(os.dup(self.pipes[pipe]), "wb") as file:
            file.write(data)


@dataclass
class User:
    """The WSL of an account. config: the text of its .wslconfig, read when its VM is made."""

    distros: dict[str, Debian] = field(default_factory=dict)
    config: str = ""
    vm: bool = False


class Wsl:
    """The service behind wsl.exe, while the block runs. images: the distro of each file that can be imported;
    exported: names and files.
    """

    def __init__(self, folder: Path, images: Mapping[str, Distro]) -> None:
        self._folder = folder
        self.images = images
        self._users: dict[str, User] = {}
        self._changing = threading.Lock()
        self._programs: list[tuple[Debian, subprocess.Popen[bytes]]] = []
        self.exported: list[tuple[str, str]] = []
        self._service = socket.socket(socket.AF_UNIX)
        self._service.bind(str(folder / "service"))

    def __enter__(self) -> Self:
        self._service.listen()
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.shutdown(socket.SHUT_RDWR)
        self._service.close()
        for distro in self.images.values():
            self._end(distro)
            distro.close()

    def user(self, account: str) -> User:
        return self._users.setdefault(account.casefold(), User())

    def program(self, account: str, *, old: bool = False) -> Path:
        """Return the path of wsl.exe for this account. old: a version without UTF-8."""
        program = self._folder / f"wsl-{account}{'-old' if old else ''}"
        words = (sys.executable, "-I", wsl_client.__file__, str(self._folder / "service"), account)
        deaf = "unset WSL_UTF8\n" if old else ""
        if not program.exists():  # one that runs cannot be written
            program.write_text(f'#!/bin/sh\n{deaf}exec {shlex.join(words)} "$@"\n')
            program.chmod(0o755)
        return program

    def run(self, account: str, *arguments: str, content: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        """Run wsl.exe as a job of this account does."""
        environment = {**os.environ, "WSL_UTF8": "1"}
        return subprocess.run(
            [self.program(account), *arguments],
            input=content,
            capture_output=True,
            env=environment,
            check=False,
            timeout=600,
        )

    def _serve(self) -> None:
        with suppress(OSError):  # once it is closed
            while True:
                threading.Thread(target=self._call, args=self._service.accept()[:1], daemon=True).start()

    def _call(self, client: socket.socket) -> None:
        with client:
            asked, pipes, _, _ = socket.recv_fds(client, 1 << 20, 3)
            try:
                code = self._answer(Client(**json.loads(asked), pipes=pipes))
            finally:
                for pipe in pipes:
                    os.close(pipe)
            client.sendall(str(code).encode())

    # ---- its answers

    def _answer(self, client: Client) -> int:
        try:
            if client.account == SYSTEM:
                said = "Running WSL as local system is not supported."
                raise Failure("Service/WSL_E_LOCAL_SYSTEM_NOT_SUPPORTED", said)
            return self._do(client, self.user(client.account))
        except Failure as failure:
            client.say(failure.said)
            return FAILED

    def _do(self, client: Client, user: User) -> int:
        match list(client.arguments):
            case ["-d", name, "-u", "root", "--cd", "/", "-e", *command]:
                return self._inside(client, name, command)
            case ["--list", "--quiet", which] if which in ("--all", "--running"):
                listed = [name for name, distro in user.distros.items() if which == "--all" or distro.running]
                client.say("".join(f"{name}\n" for name in listed))
                return 0
            case _ if self._manage(user, client.arguments):
                client.say("The operation completed successfully.\n")
                return 0
        # Without a code: what is wrong are the words.
        client.say(f"Invalid command line argument: {' '.join(client.arguments)}\n")
        return FAILED

    def _manage(self, user: User, arguments: Sequence[str]) -> bool:
        """Carry out a command that manages distros. Return whether it is one."""
        match list(arguments):
            case ["--import", name, _, file, "--version", "2"]:
                self._import(user, name, file)
            case ["--export", name, file]:
                self._end(_find(user, name))
                self.exported.append((name, file))
            case ["--unregister", name]:
                self._end(_find(user, name))
                del user.distros[name]
            case ["--terminate", name]:
                self._end(_find(user, name))
            case ["--shutdown"]:
                for distro in user.distros.values():
                    self._end(distro)
                user.vm = False
            case _:
                return False
        return True

    def _import(self, user: User, name: str, file: str) -> None:
        if file not in self.images:
            raise Failure("ERROR_FILE_NOT_FOUND", "The system cannot find the file specified.")
        if name in user.distros:
            said = "A distribution with the supplied name already exists. Use --name to choose a different name."
            raise Failure("Service/RegisterDistro/ERROR_ALREADY_EXISTS", said)
        user.distros[name] = self.images[file]

    def _inside(self, client: Client, name: str, command: Sequence[str]) -> int:
        with self._changing:
            distro = _find(self.user(client.account), name)
            self._make_vm(client)
            if not distro.running:
                start(distro)
        program = subprocess.Popen(
            distro.inside(*command),
            stdin=client.pipes[0],
            stdout=client.pipes[1],
            stderr=client.pipes[2],
            env={**ENVIRONMENT, "WSL_DISTRO_NAME": name},
        )
        self._programs.append((distro, program))
        return program.wait(3600) & 0xFF  # one that holds a distro runs as long as the test

    def _end(self, distro: Debian) -> None:
        for where, program in self._programs:
            if where is distro and program.poll() is None:
                # Not nsenter itself: its end would tell nobody in there.
                for child in children(program):
                    os.kill(child, signal.SIGKILL)
        distro.stop()

    def _make_vm(self, client: Client) -> None:
        """Make the VM of an account. Only the client that needed it gets the warnings of .wslconfig."""
        user = self.user(client.account)
        if user.vm:
            return
        user.vm = True
        for line in parse(user.config, WSLCONFIG).keys:
            if key_of(WSLCONFIG, line.id) is None:
                path = f"C:\\Users\\{client.account}\\.wslconfig:{line.number}"
                client.say(f"wsl: Unknown key '{line.section}.{line.key}' in {path}\n", pipe=2)


def _find(user: User, name: str) -> Debian:
    if name not in user.distros:
        raise Failure("Service/WSL_E_DISTRO_NOT_FOUND", "There is no distribution with the supplied name.")
    return user.distros[name]


def start(distro: Debian) -> None:
    """Start a distro by its /etc/wsl.conf: with systemd only if that says so, and with a resolver of its own."""
    conf = distro.root / "etc/wsl.conf"
    said = read_values(conf.read_text() if conf.exists() else "", WSLCONF)
    resolver = distro.root / "etc/resolv.conf"
    if said.get(("network", "generateResolvConf"), True):
        resolver.unlink(missing_ok=True)
        resolver.symlink_to(OF_WSL)
    elif resolver.is_symlink():
        resolver.unlink()
    systemd = said.get(("boot", "systemd"), False)
    distro.start(systemd=bool(systemd))
    if systemd:
        # WSL, too, lets nobody in before (initTimeout).
        wait_for(lambda: _has_booted(distro))


def _has_booted(distro: Debian) -> bool:
    done = subprocess.run(
        distro.inside("systemctl", "is-system-running"), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return done.stdout.strip() in ("running", "degraded")
