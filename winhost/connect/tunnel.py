"""A port of another machine as a plain socket here, through a channel of an SSH connection that is open."""

import socket
from contextlib import suppress
from threading import Thread
from typing import Any, Protocol, runtime_checkable

from winhost.core.dataclass import dataclass

_PIECE = 65536


@runtime_checkable
class Tunnels(Protocol):
    """A wire that also leads to ports of its machine."""

    def tunnel(self, address: str, port: int) -> socket.socket: ...

    @property
    def way(self) -> "SshWay | None": ...


class NotJoined(Exception):
    """A port that the machine did not connect us to, and why."""


@dataclass(frozen=True)
class SshWay:
    """The SSH route into a machine. key: the file of the private key; jump: in the form of `ssh -J`."""

    user: str
    address: str
    port: int
    key: str | None = None
    jump: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of `ssh` that lead there."""
        key = ("-i", self.key) if self.key else ()
        jump = ("-J", self.jump) if self.jump else ()
        return (*key, *jump, "-p", str(self.port), f"{self.user}@{self.address}")


def joined(channel: Any) -> socket.socket:
    """A socket whose bytes go through this channel, both ways; closing either closes the other."""
    ours, theirs = socket.socketpair()
    Thread(target=_pump, args=(theirs, channel), daemon=True).start()
    Thread(target=_pump, args=(channel, theirs), daemon=True).start()
    return ours


def _pump(source: Any, sink: Any) -> None:
    with suppress(OSError, EOFError):
        while data := source.recv(_PIECE):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError, EOFError):
            end.shutdown(socket.SHUT_RDWR)  # to close it alone would not wake the other thread, which reads from it
        with suppress(OSError, EOFError):
            end.close()
