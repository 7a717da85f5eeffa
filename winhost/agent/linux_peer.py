# Part of the probe: a second process, with which GPU memory is shared.
from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

from winhost.agent.linux_libraries import CallFailed, Skipped, Unfit


class Peer:
    """The connection between two processes. It is created by a fork, before either of them has loaded the driver."""

    started: list[Peer] = []  # noqa: RUF012 - of this process

    def __init__(self, act: Any) -> None:
        self._received, self._fds = b"", array.array("i")
        self._socket, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid:
            theirs.close()
            self.started.append(self)
            return
        self._socket.close()
        self._socket = theirs
        try:
            act(self)
        except Exception as error:  # noqa: BLE001 - the other process reports it
            self.send(outcome_of(error))
        finally:
            os._exit(0)

    @classmethod
    def join_all(cls) -> None:
        """Wait until the started processes have ended, so that none of them holds memory when the next part begins."""
        for peer in cls.started:
            peer._socket.close()
            os.waitpid(peer.pid, 0)

    def send(self, what: Any, fd: int | None = None) -> None:
        passed = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self._socket.sendmsg([json.dumps(what).encode("ascii") + b"\n"], passed)

    def receive(self) -> Any:
        """Wait for the next message of the peer. Raises the error that ended the peer."""
        while b"\n" not in self._received:
            more, passed, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(self._fds.itemsize))
            if not more:
                raise Unfit("the other process ended")
            self._received += more
            for _, kind, data in passed:
                if kind == socket.SCM_RIGHTS:
                    self._fds.frombytes(data[: self._fds.itemsize])
        line, _, self._received = self._received.partition(b"\n")
        heard = json.loads(line.decode("ascii"))
        if isinstance(heard, dict) and heard.get("outcome") == "skipped":
            raise Skipped(heard["why"])
        if isinstance(heard, dict) and heard.get("error"):
            raise CallFailed(**heard["error"])
        if isinstance(heard, dict) and heard.get("outcome"):
            raise Unfit(heard["why"])
        return heard

    def take_descriptor(self) -> int:
        """Return the file descriptor that came with a message."""
        return self._fds.pop(0)


def outcome_of(error: Exception) -> dict[str, Any]:
    """Return the outcome of a part, or of its second process, that ended with this error."""
    if isinstance(error, Skipped):
        return {"outcome": "skipped", "why": str(error)}
    if isinstance(error, CallFailed):
        failed = {"call": error.call, "number": error.number, "name": error.name}
        return {"outcome": "failed", "why": str(error), "error": failed}
    why = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
    return {"outcome": "failed", "why": why[:300]}
