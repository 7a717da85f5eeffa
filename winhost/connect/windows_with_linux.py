"""One host, two machines: Windows by PSRP, and by SSH the Linux in its WSL distro, which Windows itself leads to."""

import ipaddress
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from winhost.connect.agent import Agent, Connector, Received, SetAnswer
from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.logged import failure
from winhost.connect.ssh import SshConnector, SshTarget
from winhost.connect.wire_errors import (
    AuthenticationFailed,
    NotAvailable,
    SessionDropped,
    TimedOut,
    WireError,
    one_line,
)
from winhost.core.answers import Json, Key, Record, RemoteFault, Unknown
from winhost.model.errors import UsageError, WinhostError
from winhost.model.facts import Answer
from winhost.model.fleet import Host, Ssh

log = logging.getLogger(__name__)

T = TypeVar("T")

ACCESS = "WslAccess"  # the resource that tells where Linux lets us in, and what it will show
FORWARD = "PortForward"  # the resource that tells how Windows leads there, where it has to

_CATEGORIES: Sequence[tuple[type[WinhostError], str]] = (
    (HostKeyRefused, "SecurityError"),
    (AuthenticationFailed, "AuthenticationError"),
    (TimedOut, "OperationTimeout"),
    (WireError, "ConnectionError"),
    (UsageError, "InvalidArgument"),
)


def no_linux_key(host: str) -> UsageError:
    """Linux would let winhost in, but the fleet file does not say with which key."""
    return UsageError(
        "NoLinuxKey",
        what=f"fleet.yaml names no key for the Linux of {host}",
        hint=f"Name its private key at hosts.{host}.ssh.key in fleet.yaml, as file:~/.ssh/id_ed25519",
        host=host,
    )


def _open(target: SshTarget, program: str) -> Agent:
    return SshConnector(target, program).open()


@dataclass(frozen=True)
class WindowsWithLinux:
    """The way to a host and to its Linux. resources: those of Linux; program: the agent's text that goes there."""

    windows: Connector
    target: Host
    resources: tuple[str, ...]
    program: str
    open_linux: Callable[[SshTarget, str], Agent] = field(default=_open)

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

        Without SSH access there are no answers of the Linux; where it cannot be reached, they are unknown.
        """
        answers = self._windows.read(resources, settled=settled)
        if _ways_in(answers):
            answers |= self._read_linux(answers, settled)
        else:
            log.debug("%s: no Linux here lets winhost in", self.host)
            self._leave_linux()
        return answers

    def get(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """As of any agent; of Linux also NotAvailable where nobody is let in, and the errors of SSH."""
        return self._asked(resource, f"get {resource}", lambda agent: agent.get(resource, key, settled=settled))

    def set(
        self, resource: str, key: Key, desired: Mapping[str, Json], expect: Mapping[str, Json], how: Mapping[str, Json]
    ) -> SetAnswer:
        """As of any agent; of Linux also NotAvailable where nobody is let in, and the errors of SSH."""
        return self._asked(resource, f"set {resource}", lambda agent: agent.set(resource, key, desired, expect, how))

    def received(self, resource: str, key: Key, expect: Mapping[str, Json]) -> Received:
        """As of any agent."""
        return self._asked(resource, f"send {resource}", lambda agent: agent.received(resource, key, expect))

    def send(self, resource: str, key: Key, at: int, piece: bytes) -> Received:
        """As of any agent."""
        return self._asked(resource, f"send {resource}", lambda agent: agent.send(resource, key, at, piece))

    def _asked(self, resource: str, doing: str, ask: Callable[[Agent], T]) -> T:
        if resource not in self._connector.resources:
            return ask(self._windows)
        if self._linux is None:
            answers = self._windows.read((ACCESS, FORWARD))
            self._linux = self._enter(answers, doing)
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
            if kept and isinstance(error, SessionDropped):
                # It was opened long ago; a distro that was started since has forgotten it.
                log.info("%s: %s, so reading its Linux again in another session", self.host, failure(error))
                return self._read_linux(answers, settled)
            return dict.fromkeys(resources, Unknown(_fault(error)))

    def _enter(self, answers: Mapping[str, Answer], doing: str) -> Agent:
        target = linux_target(self._connector.target, answers, doing)
        linux = self._connector.open_linux(target, self._connector.program)
        linux.hear = lambda text: self.hear(text)
        return linux

    def _leave_linux(self) -> None:
        if self._linux is not None:
            with suppress(WinhostError):
                self._linux.close()
            self._linux = None


def linux_target(host: Host, answers: Mapping[str, Answer], doing: str) -> SshTarget:
    """Where a host's one Linux lets us in, by what Windows answered. Raises NotAvailable, UsageError."""
    ways_in = _ways_in(answers)
    if not ways_in:
        raise NotAvailable(host.name, doing, ACCESS)
    if len(ways_in) > 1:
        names = (one_line("/".join(access.key.values())) for access in ways_in)
        raise UsageError(  # to take the first might change the wrong one
            "SeveralLinuxes",
            what=f"{len(ways_in)} distros of {host.name} have SSH access: {', '.join(names)}",
            hint="winhost manages one distro on each host: remove SSH access to the others.",
            host=host.name,
        )
    if host.ssh is None:
        raise no_linux_key(host.name)
    return _target(host, host.ssh, ways_in[0], _records(answers, FORWARD))


def _records(answers: Mapping[str, Answer], resource: str) -> tuple[Record, ...]:
    answer = answers.get(resource, ())
    return answer if isinstance(answer, tuple) else ()


def _ways_in(answers: Mapping[str, Answer]) -> tuple[Record, ...]:
    """Those where somebody listens who knows a key of ours, and of which Windows can tell where, and what they show."""
    return tuple(
        record
        for record in _records(answers, ACCESS)
        if record.state.get("active") is True
        and record.state.get("authorized")
        and isinstance(record.state.get("host_key"), str)
        and isinstance(record.state.get("port"), int)
        and _is_address(record.state.get("listen"))
    )


def _is_address(text: Json) -> bool:
    """Whether it is one: what could not be read is none, and a host may say what it likes."""
    try:
        ipaddress.ip_address(str(text))
    except ValueError:
        return False
    return True


def _target(host: Host, ssh: Ssh, way_in: Record, forwards: Sequence[Record]) -> SshTarget:
    state = way_in.state
    # An address of its own, or that of Windows.
    own = state["address"] if _is_address(state.get("address")) else host.address
    address, port = _place(own, str(state["listen"]), state["port"], forwards)
    return SshTarget(
        name=f"{host.name}/{way_in.key['distro']}",
        address=ssh.address or address,
        port=ssh.port or port,
        host_key=state["host_key"],
        key=ssh.key,
        passphrase=ssh.passphrase,
        user=ssh.user or str(state["user"]),
        connect_timeout=host.transport.connect_timeout,
        operation_timeout=host.transport.operation_timeout,
        call_timeout=host.transport.call_timeout,
        key_at=ssh.key_at,
    )


def _place(host: str, listen: str, port: int, forwards: Sequence[Record]) -> tuple[str, int]:
    """Address and port as they are reached from here: through Windows where it forwards, or shares its addresses."""
    address = ipaddress.ip_address(listen)
    everywhere = address.is_unspecified or address.is_loopback
    for forward in forwards:
        leads_there = everywhere or forward.state.get("target") == listen
        if leads_there and forward.state.get("connect_port") == port and forward.key["port"].isdecimal():
            return host, int(forward.key["port"])
    return (host if everywhere else listen), port


def _fault(error: WinhostError) -> RemoteFault:
    """Why a Linux could not be asked, as facts carry it."""
    category = next((category for kind, category in _CATEGORIES if isinstance(error, kind)), "NotSpecified")
    message = ". ".join(filter(None, (error.what, error.hint)))
    return RemoteFault(category, f"Winhost.{error.code}", message=one_line(message))
