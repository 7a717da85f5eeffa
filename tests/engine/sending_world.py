"""A simulated host that a file beside the plan is sent to, in pieces of 512 bytes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import PLAYBOOK, DirectWire, World
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import SessionDropped, TimedOut
from winhost.engine import uploads
from winhost.engine.planning import make_plan
from winhost.engine.store import Store
from winhost.lab.contract.agent_answers import MARKS_FILE
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_files import FOLDER
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts

CONTENT = os.urandom(1000) * 3 + b"its end"
NAME = "wsl.2.7.14.0.x64.msi"
KEY = {"sha256": sha256(CONTENT).hexdigest(), "name": NAME, "source": f"./{NAME}"}
PIECES = 6  # of 512 bytes, the last one shorter
RESOURCES = [
    {
        "resource": "Wsl",
        "title": "WSL",
        "desired": {"version": "2.7.14.0", "package": KEY["sha256"]},
        "why": "To see it used.",
    },
    {"resource": "StagedFile", "title": "The MSI", "key": KEY, "desired": {"present": True}, "why": "It is sent."},
    {
        "resource": "VirtualMachinePlatform",
        "title": "Feature",
        "desired": {"feature": "installed"},
        "why": "Something before.",
    },
]

Hook = Callable[[int], None]


def nothing(number: int) -> None:
    pass


class Wire(DirectWire):
    """Counts pieces; something can happen before each, and after it, and the controller may be killed there."""

    def __init__(self, here: "Sent") -> None:
        super().__init__(here.host, here.answers)
        self._here = here

    def invoke(self, request: str, within: float) -> str:
        if '"piece"' not in request:
            return super().invoke(request, within)
        number = self._here.pieces
        told = {"n": None, "event": f"piece {number}", "piece": number}
        self._here.around("before", told)
        self._here.pieces += 1
        self._here.before(number)
        answer = super().invoke(request, within)
        self._here.after(number)
        self._here.around("after", told)
        return answer


@dataclass
class Sent(World):
    """pieces: that were sent so far."""

    pieces: int = 0
    before: Hook = nothing
    after: Hook = nothing

    def open(self) -> Agent:
        return Agent(Wire(self), 60)

    def plan(self, vm: str | None = "llm-01", **request: Any) -> Plan:
        return make_plan(
            HostFacts(self.facts()), parse_request(PlanRequest("dda", {**PLAYBOOK, "resources": RESOURCES}, vm))
        )

    def state(self) -> dict[str, Any]:
        """Also what no resource tells."""
        return {**super().state(), "files": self.files, "noted": dict(self.machine.software.registry_values)}

    @property
    def files(self) -> list[str]:
        return sorted({*self.machine.files.list_below(FOLDER)} - {MARKS_FILE})

    def lose(self, kind: type[SessionDropped | TimedOut], *numbers: int, after: bool) -> None:
        def hook(number: int) -> None:
            if number in numbers:
                raise kind(self.host, "lost")

        setattr(self, "after" if after else "before", hook)


def sent(folder: Path) -> Sent:
    (folder / "plans").mkdir(parents=True)
    (folder / "plans" / NAME).write_bytes(CONTENT)
    facts, section = expand(find("server2025-role-installed"))
    machine = Machine(facts, section, LabClock(0))
    return Sent(machine, Store(folder / "state"), facts.host, folder=folder / "plans")


def part_of(here: Sent) -> str:
    return f"{here.machine.software.file_path(KEY['sha256'], NAME)}.part"


@contextmanager
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uploads, "PIECE", 512)
        yield
