"""The Linux on which winhost runs: the agent is a local process, without network and logon.

`ThisLinux` and `LocalProcess` have the interfaces of `SshConnection` and of the channel that it starts.
"""

import getpass
import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from winhost.connect.guard import Guard
from winhost.connect.ssh_logon import no_shell_error
from winhost.connect.tunnel import TunnelRefused
from winhost.connect.wire_errors import Unreachable, one_line
from winhost.model.fleet import Login

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT_VARIABLES = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ")
_STDERR_WAIT_S = 1.0
_MAX_STDERR = 64 * 1024  # bytes that are stored
THIS_COMPUTER = "this computer"


class ThisLinux:
    """Starts local processes. They get the environment of a logon, not that of the terminal, which may have secrets and
    the python3 of a virtual environment.
    """

    faults: tuple[type[Exception], ...] = (EOFError, OSError)
    alive = True

    def __init__(self) -> None:
        self._host = ""
        self._processes: list[LocalProcess] = []

    def open(self, name: str, login: Login, jump: Login | None, guard: Guard) -> None:
        """Check that winhost runs on Linux. Raises Unreachable."""
        self._host = name
        if not Path("/proc/self").is_dir():
            raise Unreachable(
                name,
                "this is no Linux",
                endpoint=THIS_COMPUTER,
                meaning="kind: linux with address: localhost means the Linux that winhost runs on.",
                hint=f"Run winhost there, or name the host's own address at hosts.{name}.address in fleet.yaml",
            )

    def start(self, command: str, login: Login, guard: Guard) -> "LocalProcess":
        """Start a command. Raises Unreachable."""
        try:
            process = LocalProcess(command)
        except OSError as error:
            raise no_shell_error(
                self._host, one_line(error.strerror or error), endpoint=THIS_COMPUTER, here=True
            ) from None
        self._processes.append(process)
        return process

    def tunnel(self, address: str, port: int, within: float) -> socket.socket:
        """Open a connection to this address. Raises TunnelRefused."""
        try:
            return socket.create_connection((address, port), within)
        except OSError as error:
            raise TunnelRefused(one_line(error.strerror or error)) from None

    def close(self) -> None:
        for process in self._processes:
            process.close()


class LocalProcess:
    """A process with its standard input and output on one socket. After the socket is closed, the process still
    finishes a call that has started.
    """

    def __init__(self, command: str) -> None:
        """command: a constant, for sh."""
        self._socket, child_end = socket.socketpair()
        environment = {"USER": getpass.getuser()} | {
            name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ
        }
        with child_end:
            self._process = subprocess.Popen(  # noqa: S603 - a constant
                ["/bin/sh", "-c", command],
                stdin=child_end.fileno(),
                stdout=child_end.fileno(),
                stderr=subprocess.PIPE,
                cwd="/",
                env={**environment, "PATH": _PATH},
                start_new_session=True,  # Ctrl-C is for winhost, which stops after a step
            )
        self.closed = False
        self.status_event = threading.Event()
        self._stderr = bytearray()
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()
        threading.Thread(target=self._await_exit, daemon=True).start()

    @property
    def exit_status(self) -> int:
        """The exit code; negative while the process runs, and if a signal ended it."""
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

    def recv(self, limit: int) -> bytes:
        """Receive bytes. Returns b"" if the process has ended, even if it had not read everything."""
        try:
            return self._socket.recv(limit)
        except ConnectionResetError:
            return b""

    def recv_ready(self) -> bool:
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def recv_stderr(self, limit: int) -> bytes:
        """Return the error output received so far, without waiting."""
        data = bytes(self._stderr[:limit])
        del self._stderr[: len(data)]  # more may have come meanwhile
        return data

    def recv_stderr_ready(self) -> bool:
        return bool(self._stderr)

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read_stderr(self) -> None:
        """Read stderr to its end, so that the process never blocks on a full pipe."""
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            while piece := os.read(stderr.fileno(), 4096):
                self._stderr += piece[: _MAX_STDERR - len(self._stderr)]

    def _await_exit(self) -> None:
        self._process.wait()
        self._reader.join(_STDERR_WAIT_S)  # processes that it started may hold its stderr open
        self.status_event.set()
