"""One host, two machines: Windows by PSRP, and by SSH its Linux, distro or guest, which Windows itself leads to."""

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from winhost.connect.agent import Agent, Connector, Received, State
from winhost.connect.logged import failure
from winhost.connect.tunnel import SshWay
from winhost.connect.ways_in import (
    TELLING,
    Answers,
    GuestSilent,
    first_found,
    has_way_in,
    linux_targets,
    running_guests,
)
from winhost.connect.wire_errors import SessionDropped, TimedOut, Unreachable, fault_of, one_line
from winhost.core.answers import Id, Json, Key, Unknown
from winhost.core.dataclass import dataclass
from winhost.core.steps import SetAnswer
from winhost.model.errors import WinhostError
from winhost.model.facts import Answer
from winhost.model.fleet import Host, LinuxHost

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class WindowsWithLinux:
    """The way to a host and to its Linux. resources: those of Linux; program: the agent's text that goes there."""

    windows: Connector
    target: Host
    resources: tuple[str, ...]
    program: str
    open_linux: Callable[[LinuxHost, str], Agent]

    @property
    def host(self) -> str:
        return self.windows.host

    def open(self) -> Agent:
        """A session with Windows; one with Linux begins when it is needed. Raises as the way to Windows does."""
        return WindowsWithLinuxAgent(self.windows.open(), self)


class WindowsWithLinuxAgent(Agent):
    """Sends each resource to the machine that has it."""

    def __init__(self, windows: Agent, connector: WindowsWithLinux) -> None:
        super().__init__(windows.wire, windows.call_timeout)
        self._windows = windows
        self._connector = connector
        self._linux: Agent | None = None

    def close(self) -> None:
        self._leave_linux()
        self._windows.close()

    def read(self, resources: Sequence[str], *, settled: bool = False) -> dict[str, Answer]:
        """All instances of each resource, with those of the Linux once SSH access to it is known.

        Without SSH access there are no answers of the Linux; where it cannot be reached, they are unknown. With
        `patience` for a guest, that is an error. Raises as `get` does then.
        """
        answers = self._windows.read(resources, settled=settled)
        if has_way_in(answers):
            answers |= self._read_linux(answers, settled)
        else:
            log.debug("%s: no Linux here lets winhost in", self.host)
            self._leave_linux()
        return answers

    def get(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """Call as `Agent` does. Raises NotAvailable for resources of a Linux that lets nobody in, and errors of SSH."""
        return self._asked(resource, f"get {resource}", lambda agent: agent.get(resource, key, settled=settled))

    def each(self, ids: Sequence[Id]) -> list[State]:
        """Read several resources as `Agent` does, in one call to each of the two machines."""
        of_linux = [id_ for id_ in ids if id_[0] in self._connector.resources]
        of_windows = [id_ for id_ in ids if id_[0] not in self._connector.resources]
        found: dict[Id, State] = {}
        for asked in filter(None, (of_windows, of_linux)):
            states = self._asked(asked[0][0], "get", lambda agent, these=asked: agent.each(these))  # type: ignore[misc]
            found |= dict(zip(asked, states, strict=True))
        return [found[id_] for id_ in ids]

    def set(
        self, resource: str, key: Key, desired: Mapping[str, Json], expect: Mapping[str, Json], how: Mapping[str, Json]
    ) -> SetAnswer:
        """Call as `Agent` does. Raises NotAvailable for resources of a Linux that lets nobody in, and errors of SSH."""
        return self._asked(resource, f"set {resource}", lambda agent: agent.set(resource, key, desired, expect, how))

    def marks(self, system: str) -> tuple[str, ...]:
        return self._on(system, lambda agent: agent.marks(system))

    def keep_marks(self, system: str, lines: Sequence[str], expect: Sequence[str]) -> None:
        self._on(system, lambda agent: agent.keep_marks(system, lines, expect))

    def _on(self, system: str, ask: Callable[[Agent], T]) -> T:
        return self._asked(self._connector.resources[0], "get marks", ask) if system == "linux" else ask(self._windows)

    def received(self, resource: str, key: Key, expect: Mapping[str, Json]) -> Received:
        return self._asked(resource, f"send {resource}", lambda agent: agent.received(resource, key, expect))

    def send(self, resource: str, key: Key, at: int, piece: bytes) -> Received:
        return self._asked(resource, f"send {resource}", lambda agent: agent.send(resource, key, at, piece))

    def tunnel(self, address: str, port: int) -> socket.socket:
        """Open it from the Linux."""
        return self._asked(self._connector.resources[0], "connect", lambda agent: agent.tunnel(address, port))

    def way(self) -> SshWay | None:
        """The SSH route to the Linux."""
        return self._asked(self._connector.resources[0], "connect", lambda agent: agent.way())

    def _asked(self, resource: str, doing: str, ask: Callable[[Agent], T]) -> T:
        if resource not in self._connector.resources:
            return ask(self._windows)
        if self._linux is None:
            self._linux = self._enter(self._windows.read(TELLING), doing)
        try:
            return ask(self._linux)
        except (SessionDropped, TimedOut):
            self._leave_linux()
            raise

    def _read_linux(self, answers: Mapping[str, Answer], settled: bool) -> dict[str, Answer]:
        resources = self._connector.resources
        kept = self._linux is not None
        try:
            self._linux = self._linux or self._enter(answers, "read")
            return self._linux.read(resources, settled=settled)
        except WinhostError as error:
            self._leave_linux()
            if self.patience is not None and running_guests(answers) and not kept:
                raise
            if kept and isinstance(error, SessionDropped):
                # A distro that was restarted since has lost this session.
                log.info("%s: %s, so reading its Linux again in another session", self.host, failure(error))
                return self._read_linux(answers, settled)
            return dict.fromkeys(resources, Unknown(fault_of(error)))

    def _enter(self, answers: Answers, doing: str) -> Agent:
        """Open the Linux. A guest that runs may be starting: it is waited for as long as `patience` allows."""
        if self.patience is None or not running_guests(answers):
            return self._open_linux(answers, doing)
        names = ", ".join(one_line(guest.key["name"]) for guest in running_guests(answers))
        try:
            return self.patience.ask(
                lambda: self._open_linux(self._windows.read(TELLING), doing),
                lambda _: self.hear(f"waiting for {names} to answer over SSH"),
            )
        except Unreachable as silent:
            (guest,) = running_guests(answers)
            raise GuestSilent(self._connector.host, guest, silent) from silent

    def _open_linux(self, answers: Answers, doing: str) -> Agent:
        targets = linux_targets(self._connector.target, answers, doing)
        open_linux, program = self._connector.open_linux, self._connector.program
        linux = first_found(self._connector.host, targets, lambda target: open_linux(target, program))
        linux.hear = lambda text: self.hear(text)
        return linux

    def _leave_linux(self) -> None:
        if self._linux is not None:
            with suppress(WinhostError):
                self._linux.close()
            self._linux = None
