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
from winhost.connect.psrp import PsrpWay
from winhost.engine.detect import read_facts
from winhost.lab.endpoint import Command, Endpoint
from winhost.lab.hostfile import find
from winhost.lab.lab import Lab
from winhost.model.fleet import load_fleet
from winhost.resources.windows.scripts import agent_text

USER, PASSWORD = "LAB\\bench", "opens a throw-away endpoint on loopback"


@dataclass
class Recorder:
    """A wire that remembers its last answer."""

    wire: Wire
    host: str
    answer: str = ""

    def invoke(self, request: str, within: float) -> str:
        self.answer = self.wire.invoke(request, within)
        return self.answer

    def close(self) -> None:
        self.wire.close()


@dataclass(frozen=True)
class Echo:
    """A host whose every pipeline gives the same answer."""

    answer: str
    boot: int = 1

    def accepting(self) -> bool:
        return True

    def open_runspace(self, user: str) -> "Echo":
        return self

    def invoke(self, commands: Sequence[Command], stop: threading.Event) -> Iterable[object]:
        return [self.answer]


@contextmanager
def detect(folder: Path) -> Iterator[Case]:
    """What the simulated host does to find its answer counts against us: the echo knows it by heart."""
    with Lab([find(NAME)], folder) as lab:
        (host,) = load_fleet(lab.fleet_file).select(["*"])
        way = PsrpWay(host, agent_text())
        with Endpoint(Echo(_recorded(way)), {USER: PASSWORD}) as echo:
            yield Case(
                what="detect over the lab's wire",
                against="one bare pypsrp pipeline with the same script and answer",
                work=lambda: _detect(way),
                yardstick=lambda: _bare(echo.port),
                aim=1.1,
            )


def _detect(way: PsrpWay) -> None:
    with closing(way.open()) as agent:
        read_facts(agent)


def _recorded(way: PsrpWay) -> str:
    with closing(way.open()) as agent:
        recorder = Recorder(agent.wire, agent.host)
        read_facts(Agent(recorder, agent.call_timeout))
    return recorder.answer


def _bare(port: int) -> None:
    wsman = WSMan("127.0.0.1", port=port, ssl=False, username=USER, password=PASSWORD, auth="ntlm", no_proxy=True)
    with wsman, RunspacePool(wsman) as pool:
        PowerShell(pool).add_script(agent_text()).invoke()
