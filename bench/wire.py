"""`detect` over PowerShell remoting, against the least that gets the same bytes there and back."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pypsrp.powershell import PowerShell, RunspacePool
from pypsrp.wsman import WSMan

from bench.host import NAME
from bench.measure import Case
from winhost.connect.agent import Agent, Wire
from winhost.connect.windows import WindowsConnector
from winhost.engine.detect import read_facts
from winhost.lab.contract.agent_answers import AgentAnswers
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab
from winhost.lab.wire.served_host import RemoteCommand
from winhost.lab.wire.wsman_endpoint import Endpoint
from winhost.model.fleet import Host, load_fleet
from winhost.resources.windows.parts import WindowsScripts

USER, PASSWORD = "LAB\\bench", "opens a throw-away endpoint on loopback"


@dataclass
class Recorder:
    """A wire that remembers the last request."""

    wire: Wire
    host: str
    request: str = ""

    def invoke(self, request: str, within: float) -> str:
        self.request = request
        return self.wire.invoke(request, within)

    def close(self) -> None:
        self.wire.close()


@dataclass(frozen=True)
class AnsweringHost:
    """The same simulated host, reduced to one question: whatever is run on it, it answers that."""

    answers: AgentAnswers
    request: str
    boot: int = 1
    network_epoch: int | None = 1

    def accepts_connections(self) -> bool:
        return True

    def open_runspace(self, user: str) -> "AnsweringHost":
        return self

    def invoke(self, commands: Sequence[RemoteCommand], stop: threading.Event) -> Iterable[object]:
        return [self.answers.invoke(self.request, stop)]

    def close(self) -> None:
        """Nothing is kept from pipeline to pipeline."""


@contextmanager
def detect(folder: Path) -> Iterator[Case]:
    """Both sides have the simulated host find the answer anew, so that the difference is the way to it."""
    with Lab([find(NAME)], folder) as lab:
        (host,) = load_fleet(lab.fleet_file).select(["*"])
        assert isinstance(host, Host)
        way = WindowsConnector(host, WindowsScripts())
        reduced = AnsweringHost(lab.hosts[host.name].answers, _request(way))
        script = WindowsScripts().text(WindowsScripts().needed(reduced.request))
        with Endpoint(reduced, {USER: PASSWORD}) as endpoint:
            yield Case(
                what="detect over the lab's wire",
                against="one bare pypsrp pipeline with the same script and answer",
                work=lambda: _detect(way),
                yardstick=lambda: _bare(endpoint.port, script),
                aim=1.05,
            )


def _detect(way: WindowsConnector) -> None:
    with closing(way.open()) as agent:
        read_facts(agent)


def _request(way: WindowsConnector) -> str:
    with closing(way.open()) as agent:
        recorder = Recorder(agent.wire, agent.host)
        read_facts(Agent(recorder, agent.call_timeout))
    return recorder.request


def _bare(port: int, script: str) -> None:
    wsman = WSMan("127.0.0.1", port=port, ssl=False, username=USER, password=PASSWORD, auth="ntlm", no_proxy=True)
    with wsman, RunspacePool(wsman) as pool:
        PowerShell(pool).add_script(script).add_argument("").invoke()
