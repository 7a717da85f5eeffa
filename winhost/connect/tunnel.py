"""Connect to a port of another machine through a channel of an open SSH connection, as a plain local socket."""

import socket
from contextlib import suppress
from threading import Thread
from typing import Any, Protocol, runtime_checkable

from winhost.core.dataclass import dataclass

_PIECE = 65536


@runtime_checkable
class Tunnels(Protocol):
    """A wire that can also connect to ports of its machine."""

    def tunnel(self, address: str, port: int) -> socket.socket: ...

    @property
    def route(self) -> "SshRoute | None": ...


class TunnelRefused(Exception):
    """The machine did not connect winhost to a port. The text is the reason."""


@dataclass(frozen=True)
class SshRoute:
    """The SSH route into a machine. key: the file of the private key; jump: in the form of `ssh -J`."""

    user: str
    address: str
    port: int
    key: str | None = None
    jump: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of `ssh` for this route."""
        key = ("-i", self.key) if self.key else ()
        jump = ("-J", self.jump) if self.jump else ()
        return (*key, *jump, "-p", str(self.port), f"{self.user}@{self.address}")


def socket_through(channel: Any) -> socket.socket:
    """Return a socket whose bytes go through this channel, both ways. Closing either closes the other."""
    local_end, channel_end = socket.socketpair()
    Thread(target=_pump, args=(channel_end, channel), daemon=True).start()
    Thread(target=_pump, args=(channel, channel_end), daemon=True).start()
    return local_end


def _pump(source: Any, sink: Any) -> None:
    with suppress(OSError, EOFError):
        while data := source.recv(_PIECE):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError, EOFError):
            end.shutdown(socket.SHUT_RDWR)  # close() alone would not wake the other thread, which reads from it
        with suppress(OSError, EOFError):
            end.close()
