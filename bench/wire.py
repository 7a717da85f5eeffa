"""`detect` over PowerShell remoting, against the least that gets the same bytes there and back."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from winhost.model.fleet import Host, load_fleet
from winhost.resources.windows.scripts import agent_text

USER, PASSWORD = "LAB\\bench", "not a secret: it opens a throw-away endpoint on loopback"


@dataclass(frozen=True)
class Echo:
    """A host whose every pipeline answers the same."""

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
    """The simulated host's own work is on our side of the ratio; the echo has none."""
    with Lab([find(NAME)], folder) as lab:
        (host,) = load_fleet(lab.fleet_file).select(["*"])
        read = _reader(host)
        with Endpoint(Echo(_recorded(host)), {USER: PASSWORD}) as echo:
            yield Case(
                what="detect over the lab's wire",
                against="one bare pypsrp pipeline with the same bytes",
                work=read,
                yardstick=lambda: _bare(echo.port),
                aim=1.1,
            )
