"""A person with a bundle in the Linux of a simulated host: the real run.py, in front of the lab's answers."""

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.engine.wsl2_world import Wsl2World
from tests.errors import raises
from winhost.bundle import linux_commands, linux_journal, linux_run
from winhost.engine.planning import make_plan
from winhost.lab.physics.ssh_keys import public_line
from winhost.model.documents import write_document
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.path_request import parse_request
from winhost.resources.host import HostFacts
from winhost.resources.registry import LINUX

UNTOLD = {"ok": False, "error": {"category": "ReadError", "message": "Input/output error", "code": "5"}}


class Killed(BaseException):
    """The process is gone."""


@dataclass
class LabAgent:
    """What agent.py is on a real machine. `hidden`: resources that it cannot read."""

    here: Wsl2World
    hidden: Collection[str]

    def __post_init__(self) -> None:
        self.ONCE: dict[str, Any] = {}

    def content(self, path: str) -> bytes:
        assert path == linux_run.HOST_KEY
        listening = self.here.linux.listening()
        assert listening is not None
        return f"{public_line(listening.seed)} root@distro\n".encode()

    def answers(self, request: dict[str, Any], _wire: object) -> Any:
        listening = self.here.linux.listening()
        assert listening is not None
        told = json.loads(listening.invoke(json.dumps(request)))["answers"]
        calls = request["calls"]
        return [UNTOLD if call["resource"] in self.hidden else each for call, each in zip(calls, told, strict=True)]


@dataclass
class InLinux:
    """`journals`: as --journals names them; `hidden`: resources that cannot be read."""

    here: Wsl2World
    journals: Path
    patch: pytest.MonkeyPatch
    hidden: Collection[str] = ()

    def run(self, made: Path, command: str, *words: str) -> linux_run.Result:
        self.patch.setattr(linux_run, "load", lambda text: LabAgent(self.here, self.hidden))
        self.patch.setattr(linux_journal, "stop_gently", lambda run: None)
        if command in ("apply", "rollback"):
            words = (*words, "--journals", str(self.journals))
        given = linux_run.words().parse_args([command, "--json", *words])
        return linux_run.result_of(lambda: linux_commands.main(given, linux_run.open_files(str(made))))

    def facts(self, made: Path) -> Facts:
        """As the loop goes: what Windows tells, then what Linux adds to it."""
        known = self.here.facts()
        windows = dataclasses.replace(known, resources={n: a for n, a in known.resources.items() if n not in LINUX})
        file = made.with_name("facts.json")
        file.write_text(write_document(windows))
        result = self.run(made, "facts", str(file))
        assert result.code == 0
        return TypeAdapter(Facts).validate_python(result.document)

    def plan(self, made: Path) -> Plan:
        return make_plan(HostFacts(self.facts(made)), parse_request(PlanRequest("wsl2", self.here.book)))

    def linux_state(self) -> Any:
        return self.here.state()["linux"]


def with_windows_done(here: Wsl2World) -> Wsl2World:
    """Stopped before its Linux, as the bundles of Windows leave it."""
    here.stop = lambda: any(event.text.startswith("stage 3:") for event in here.events)
    with raises("Stopped"):
        here.apply(here.plan())
    here.stop = lambda: False
    return here


@contextmanager
def at_each_line(do: Callable[[int, str], None]) -> Iterator[None]:
    """`do` gets the number of a line and whether it is about to be, or was written."""
    real = linux_journal.Run._line
    count = 0

    def line(run: linux_journal.Run, kind: str, fields: Any) -> None:
        nonlocal count
        count += 1
        do(count, "before")
        real(run, kind, fields)
        do(count, "after")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linux_journal.Run, "_line", line)
        yield
