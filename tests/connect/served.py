"""A simulated host behind its real endpoint, which remembers what it was asked and can be made to misbehave."""

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.processes import PATIENCE_S
from winhost.connect.agent import Agent, Connector
from winhost.connect.patience import Patience
from winhost.connect.windows import WindowsConnector
from winhost.engine.host_session import HostSession
from winhost.engine.progress import ProgressEvent
from winhost.engine.uploads import Sources, find_in_folder
from winhost.lab.lab_host import LabHost, LabRunspace
from winhost.lab.running_lab import Lab
from winhost.lab.wire.served_host import RemoteCommand
from winhost.lab.wire.wsman_endpoint import Endpoint
from winhost.model.fleet import Host, WireKind
from winhost.resources.windows.parts import WindowsScripts, recognize_parts

SCRIPT = "the agent's text"
LONG = 77.0  # lab seconds that no cmdlet takes
QUICK = Patience(deadline=20, first=0.01, longest=0.05)
VM = "8d1f3c52-6a2e-4b7d-9c41-0e5f7a6b2d10"
OVER_NETWORKS = (WireKind.PSRP, WireKind.WINRS)

Request = dict[str, Any]


class StandingClock:
    """Lab time that takes no time, but stands still at the durations that are held.

    `at`: what else happens when a duration begins.
    """

    scale = 0.0

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.at: dict[float, Callable[[], None]] = {}
        self._held: dict[float, threading.Event] = {}

    def hold(self, *seconds: float) -> None:
        self._held.update((each, threading.Event()) for each in seconds)

    def release(self, seconds: float) -> None:
        self._held[seconds].set()

    def release_all(self) -> None:
        for held in self._held.values():
            held.set()

    def sleep(self, lab_seconds: float, stop: threading.Event | None = None) -> None:
        self.at.get(lab_seconds, lambda: None)()
        if (held := self._held.get(lab_seconds)) is not None:
            self.reached.set()
            held.wait(PATIENCE_S)


@dataclass
class Session:
    """One runspace: what ran in it, in order, the parts of the agent that it was sent, and whether somebody told it to
    stop.
    """

    sent: list[tuple[str, ...]] = field(default_factory=list)
    ran: list[str | Request] = field(default_factory=list)
    stops: list[threading.Event] = field(default_factory=list)

    @property
    def requests(self) -> list[Request]:
        return [each for each in self.ran if isinstance(each, dict)]

    @property
    def stopped(self) -> bool:
        return any(stop.is_set() for stop in self.stops)


class RememberingRunspace(LabRunspace):
    def __init__(self, host: "RememberingHost", session: Session) -> None:
        super().__init__(host.answers)
        self._host, self._session = host, session

    def invoke(self, commands: Sequence[RemoteCommand], stop: threading.Event) -> Iterable[object]:
        (command,) = commands
        self._session.stops.append(stop)
        (request,) = command.arguments or command.parameters.values()
        self._session.ran += [SCRIPT] * command.is_script
        self._session.sent.append(recognize_parts(command.text) if command.is_script else ())
        self._session.ran.append(json.loads(str(request)))
        if self._host.says is not None:
            return self._host.says()
        return super().invoke(commands, stop)


class RememberingHost(LabHost):
    """`says`: what it answers instead of the agent."""

    says: Callable[[], Iterable[object]] | None = None

    def __init__(self, machine: Any) -> None:
        super().__init__(machine)
        self.sessions: list[Session] = []

    def open_runspace(self, user: str) -> RememberingRunspace:
        self.sessions.append(Session())
        return RememberingRunspace(self, self.sessions[-1])

    def calls(self, verb: str) -> list[Request]:
        """All calls of a verb that arrived, in whatever session."""
        requests = [request for session in self.sessions for request in session.requests]
        return [call for request in requests for call in request["calls"] if call["verb"] == verb]


@dataclass
class HastyOnce:
    """A way whose first session has no patience with a call."""

    connector: WindowsConnector
    opened: int = 0

    @property
    def host(self) -> str:
        return self.connector.host

    def open(self) -> Agent:
        agent = self.connector.open()
        self.opened += 1
        return Agent(agent.wire, 1) if self.opened == 1 else agent


@dataclass
class Served:
    """`target` is what the lab's own fleet.yaml says of the host."""

    host: RememberingHost
    endpoint: Endpoint
    target: Host
    clock: StandingClock
    events: list[ProgressEvent] = field(default_factory=list)

    def connector(self, address: str | None = None, **transport: Any) -> WindowsConnector:
        changed = self.target.transport.model_copy(update=transport)
        target = self.target.model_copy(update={"address": address or self.target.address, "transport": changed})
        return WindowsConnector(target, WindowsScripts())

    def open(self, **transport: Any) -> Agent:
        return self.connector(**transport).open()

    def hands(
        self,
        tell: Callable[[ProgressEvent], None] | None = None,
        connector: Connector | None = None,
        folder: Path = Path(),
    ) -> HostSession:
        return HostSession(
            connector or self.connector(),
            QUICK,
            tell or self.events.append,
            within=0,
            sources=Sources(find_in_folder(folder)),
        )

    def boot_id(self) -> str:
        return str(self.host.answers.machine.answer("Boot")[0].state["boot_id"])  # type: ignore[index]


def lab_of(file: Path, folder: Path, *, tls: bool) -> tuple[Lab, StandingClock]:
    """A lab of one host, not yet running, whose host remembers."""
    lab = Lab([file], folder, scale=0.0, tls=("*",) if tls else ())
    clock = StandingClock()
    for name, host in lab.hosts.items():
        host.machine.clock = clock  # type: ignore[assignment]
        lab.hosts[name] = RememberingHost(host.machine)
    return lab, clock
