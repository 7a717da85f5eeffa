"""The Linux that winhost itself runs on: the agent is a process here, with no network and no logon between.

`ThisLinux` and `LocalProcess` have the face of `SshConnection` and of the channel that it starts.
"""

import getpass
import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from winhost.connect.guard import Guard
from winhost.connect.ssh_logon import no_shell
from winhost.connect.tunnel import NotJoined
from winhost.connect.wire_errors import Unreachable, one_line
from winhost.model.fleet import Login

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ")
_LAST_WORDS_S = 1.0
_MOST_WORDS = 64 * 1024  # bytes of stderr that are kept
AT = "this computer"


class ThisLinux:
    """Starts processes beside winhost. They get the environment of a logon, not that of the terminal, which may hold
    secrets and the python3 of a virtual environment.
    """

    faults: tuple[type[Exception], ...] = (EOFError, OSError)
    alive = True

    def __init__(self) -> None:
        self._host = ""
        self._processes: list[LocalProcess] = []

    def open(self, name: str, login: Login, jump: Login | None, guard: Guard) -> None:
        """Raises Unreachable where winhost does not run on Linux."""
        self._host = name
        if not Path("/proc/self").is_dir():
            raise Unreachable(
                name,
                "this is no Linux",
                at=AT,
                meaning="kind: linux with address: localhost means the Linux that winhost runs on.",
                hint=f"Run winhost there, or name the host's own address at hosts.{name}.address in fleet.yaml",
            )

    def start(self, command: str, login: Login, guard: Guard) -> "LocalProcess":
        """Raises Unreachable."""
        try:
            process = LocalProcess(command)
        except OSError as error:
            raise no_shell(self._host, one_line(error.strerror or error), at=AT, here=True) from None
        self._processes.append(process)
        return process

    def tunnel(self, address: str, port: int, within: float) -> socket.socket:
        """Raises NotJoined."""
        try:
            return socket.create_connection((address, port), within)
        except OSError as error:
            raise NotJoined(one_line(error.strerror or error)) from None

    def close(self) -> None:
        for process in self._processes:
            process.close()


class LocalProcess:
    """A process with its standard input and output on one socket. Closing it does not end the process, which finishes
    the call that it has begun.
    """

    def __init__(self, command: str) -> None:
        """command: a constant, for sh."""
        self._socket, theirs = socket.socketpair()
        environment = {"USER": getpass.getuser()} | {name: os.environ[name] for name in _KEPT if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - a constant
                ["/bin/sh", "-c", command],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                cwd="/",
                env={**environment, "PATH": _PATH},
                start_new_session=True,  # Ctrl-C is for winhost, which stops after a step
            )
        self.closed = False
        self.status_event = threading.Event()
        self._words = bytearray()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def exit_status(self) -> int:
        """Negative while it runs, and where a signal ended it."""
        code = self._process.returncode
        return -1 if code is None else code

    def exit_status_ready(self) -> bool:
        return self.status_event.is_set()

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def send(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except ConnectionError:  # it has ended
            self.closed = True
            raise

    def sendall(self, data: bytes) -> None:
        self._socket.sendall(data)

    def recv(self, most: int) -> bytes:
        """Returns b"" where the process has ended, even before it read all."""
        try:
            return self._socket.recv(most)
        except ConnectionResetError:
            return b""

    def recv_ready(self) -> bool:
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def recv_stderr(self, most: int) -> bytes:
        """Read what has come so far, without waiting."""
        words = bytes(self._words[:most])
        del self._words[: len(words)]  # more may have come meanwhile
        return words

    def recv_stderr_ready(self) -> bool:
        return bool(self._words)

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        """Read stderr to its end, so that no process waits for room in it."""
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            while piece := os.read(stderr.fileno(), 4096):
                self._words += piece[: _MOST_WORDS - len(self._words)]

    def _wait(self) -> None:
        self._process.wait()
        self._listening.join(_LAST_WORDS_S)  # what it started may hold its stderr open
        self.status_event.set()
