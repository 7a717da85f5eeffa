"""A Windows host and its Linux (a distro or guest) as one agent. Windows is reached by PSRP, and its answers have the
SSH address of the Linux.
"""

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from winhost.connect.agent import Agent, Connector, Received, State
from winhost.connect.logged import error_code
from winhost.connect.tunnel import SshRoute
from winhost.connect.ways_in import (
    ADDRESS_RESOURCES,
    Answers,
    GuestSilent,
    has_linux_access,
    linux_targets,
    open_first,
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
    """The connector for a host and its Linux. resources: those of the Linux; program: the agent's text for it."""

    windows: Connector
    target: Host
    resources: tuple[str, ...]
    program: str
    open_linux: Callable[[LinuxHost, str], Agent]

    @property
    def host(self) -> str:
        return self.windows.host

    def open(self) -> Agent:
        """Open a session with Windows; one with the Linux is opened when needed. Raises as the connector of Windows
        does.
        """
        return WindowsWithLinuxAgent(self.windows.open(), self)


class WindowsWithLinuxAgent(Agent):
    """An agent that sends each request to the machine that has the resource."""

    def __init__(self, windows: Agent, connector: WindowsWithLinux) -> None:
        super().__init__(windows.wire, windows.call_timeout)
        self._windows = windows
        self._connector = connector
        self._linux: Agent | None = None

    def close(self) -> None:
        self._close_linux()
        self._windows.close()

    def read(self, resources: Sequence[str], *, settled: bool = False) -> dict[str, Answer]:
        """Read all instances of each resource. Without SSH access there are no answers of the Linux; if it cannot be
        reached, they are Unknown. With `patience` for a guest, that is an error, as in `get`.
        """
        answers = self._windows.read(resources, settled=settled)
        if has_linux_access(answers):
            answers |= self._read_linux(answers, settled)
        else:
            log.debug("%s: no Linux here lets winhost in", self.host)
            self._close_linux()
        return answers

    def get(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """Read as `Agent` does. Raises NotAvailable for resources of a Linux without SSH access, and errors of SSH."""
        return self._call_owner(resource, f"get {resource}", lambda agent: agent.get(resource, key, settled=settled))

    def get_each(self, ids: Sequence[Id]) -> list[State]:
        """Read several resources as `Agent` does, in one call to each of the two machines."""
        linux_ids = [id_ for id_ in ids if id_[0] in self._connector.resources]
        windows_ids = [id_ for id_ in ids if id_[0] not in self._connector.resources]
        states_by_id: dict[Id, State] = {}
        for group in filter(None, (windows_ids, linux_ids)):
            states = self._call_owner(group[0][0], "get", lambda agent, these=group: agent.get_each(these))  # type: ignore[misc]
            states_by_id |= dict(zip(group, states, strict=True))
        return [states_by_id[id_] for id_ in ids]

    def set(
        self, resource: str, key: Key, desired: Mapping[str, Json], expect: Mapping[str, Json], how: Mapping[str, Json]
    ) -> SetAnswer:
        """Set as `Agent` does. Raises NotAvailable for resources of a Linux without SSH access, and errors of SSH."""
        return self._call_owner(
            resource, f"set {resource}", lambda agent: agent.set(resource, key, desired, expect, how)
        )

    def marks(self, system: str) -> tuple[str, ...]:
        return self._call_system(system, lambda agent: agent.marks(system))

    def keep_marks(self, system: str, lines: Sequence[str], expect: Sequence[str]) -> None:
        self._call_system(system, lambda agent: agent.keep_marks(system, lines, expect))

    def _call_system(self, system: str, call: Callable[[Agent], T]) -> T:
        return (
            self._call_owner(self._connector.resources[0], "get marks", call)
            if system == "linux"
            else call(self._windows)
        )

    def received(self, resource: str, key: Key, expect: Mapping[str, Json]) -> Received:
        return self._call_owner(resource, f"send {resource}", lambda agent: agent.received(resource, key, expect))

    def send(self, resource: str, key: Key, offset: int, piece: bytes) -> Received:
        return self._call_owner(resource, f"send {resource}", lambda agent: agent.send(resource, key, offset, piece))

    def tunnel(self, address: str, port: int) -> socket.socket:
        """Open a connection from the Linux."""
        return self._call_owner(self._connector.resources[0], "connect", lambda agent: agent.tunnel(address, port))

    def route(self) -> SshRoute | None:
        """Return the SSH route to the Linux."""
        return self._call_owner(self._connector.resources[0], "connect", lambda agent: agent.route())

    def _call_owner(self, resource: str, doing: str, call: Callable[[Agent], T]) -> T:
        if resource not in self._connector.resources:
            return call(self._windows)
        if self._linux is None:
            self._linux = self._open_with_patience(self._windows.read(ADDRESS_RESOURCES), doing)
        try:
            return call(self._linux)
        except (SessionDropped, TimedOut):
            self._close_linux()
            raise

    def _read_linux(self, answers: Mapping[str, Answer], settled: bool) -> dict[str, Answer]:
        resources = self._connector.resources
        was_open = self._linux is not None
        try:
            self._linux = self._linux or self._open_with_patience(answers, "read")
            return self._linux.read(resources, settled=settled)
        except WinhostError as error:
            self._close_linux()
            if self.patience is not None and running_guests(answers) and not was_open:
                raise
            if was_open and isinstance(error, SessionDropped):
                # The distro may have been restarted, which ended this session.
                log.info("%s: %s, so reading its Linux again in another session", self.host, error_code(error))
                return self._read_linux(answers, settled)
            return dict.fromkeys(resources, Unknown(fault_of(error)))

    def _open_with_patience(self, answers: Answers, doing: str) -> Agent:
        """Open a session with the Linux. For a running guest, which may be starting, retry as `patience` allows."""
        if self.patience is None or not running_guests(answers):
            return self._open_linux(answers, doing)
        names = ", ".join(one_line(guest.key["name"]) for guest in running_guests(answers))
        try:
            return self.patience.retry(
                lambda: self._open_linux(self._windows.read(ADDRESS_RESOURCES), doing),
                lambda _: self.on_wait(f"waiting for {names} to answer over SSH"),
            )
        except Unreachable as silent:
            (guest,) = running_guests(answers)
            raise GuestSilent(self._connector.host, guest, silent) from silent

    def _open_linux(self, answers: Answers, doing: str) -> Agent:
        targets = linux_targets(self._connector.target, answers, doing)
        open_linux, program = self._connector.open_linux, self._connector.program
        linux = open_first(self._connector.host, targets, lambda target: open_linux(target, program))
        linux.on_wait = lambda text: self.on_wait(text)
        return linux

    def _close_linux(self) -> None:
        if self._linux is not None:
            with suppress(WinhostError):
                self._linux.close()
            self._linux = None
