"""A person with a bundle in the Linux of a simulated host: the real run.py, in front of the lab's answers."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.crash import nothing
from tests.engine.linux_world import LinuxWorld, linux_world
from tests.engine.wsl2_world import Wsl2World, wsl2_world
from tests.errors import raises
from tests.linux.unpacked import unpack_linux
from winhost.bundle import linux_bundle, linux_commands, linux_journal, linux_run
from winhost.engine.planning import make_plan
from winhost.engine.run_context import Outcome
from winhost.lab.physics.ssh_keys import public_line
from winhost.model.documents import write_document
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest
from winhost.model.yamlfile import adapter
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts
from winhost.resources.registry import LINUX

UNTOLD = {"ok": False, "error": {"category": "ReadError", "message": "Input/output error", "code": "5"}}


@dataclass
class LabAgent:
    """What agent.py is on a real machine. `hidden`: resources that it cannot read."""

    here: Wsl2World
    hidden: Collection[str]

    def __post_init__(self) -> None:
        self.ONCE: dict[str, Any] = {}

    def content(self, path: str) -> bytes:
        assert path == linux_bundle.HOST_KEY
        listening = self.here.linux.find_sshd()
        assert listening is not None
        return f"{public_line(listening.seed)} root@distro\n".encode()

    def answers(self, request: dict[str, Any], _wire: object) -> Any:
        listening = self.here.linux.find_sshd()
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

    def run(self, made: Path, command: str, *words: str) -> linux_bundle.Result:
        agent = LabAgent(self.here, self.hidden)
        return run_py(self.patch, agent, self.journals, made, command, *words)

    def facts(self, made: Path) -> Facts:
        """As the loop goes: what Windows tells, then what Linux adds to it."""
        known = self.here.facts()
        windows = dataclasses.replace(known, resources={n: a for n, a in known.resources.items() if n not in LINUX})
        file = made.with_name("facts.json")
        file.write_text(write_document(windows))
        result = self.run(made, "facts", str(file))
        assert result.code == 0
        return adapter(Facts).validate_python(result.document)

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


class OwnAgent:
    """What agent.py is on a real machine of its own."""

    BOOT = "LinuxBoot"

    def __init__(self, here: LinuxWorld, machine_id: str) -> None:
        self.ONCE: dict[str, Any] = {}
        self._here, self._machine_id = here, machine_id

    def content(self, path: str) -> bytes:
        assert path == linux_bundle.MACHINE_ID
        return f"{self._machine_id}\n".encode()

    def answers(self, request: dict[str, Any], _wire: object) -> Any:
        return json.loads(self._here.answers.invoke(json.dumps(request)))["answers"]


@dataclass
class OnOwnLinux:
    """A person at a machine without Windows."""

    here: LinuxWorld
    journals: Path
    patch: pytest.MonkeyPatch
    machine_id: str = ""

    def __post_init__(self) -> None:
        self.machine_id = self.machine_id or HostFacts(self.here.facts()).machine_id

    def run(self, made: Path, command: str, *words: str) -> linux_bundle.Result:
        agent = OwnAgent(self.here, self.machine_id)
        return run_py(self.patch, agent, self.journals, made, command, *words)

    def restart(self) -> None:
        self.here.machine.restart_computer()
        self.here.machine.wait_until_ready()


def run_py(
    patch: pytest.MonkeyPatch, agent: object, journals: Path, made: Path, command: str, *words: str
) -> linux_bundle.Result:
    """One call of run.py in front of this agent."""
    patch.setattr(linux_bundle, "load_agent", lambda text: agent)
    patch.setattr(linux_commands, "stop_after_step_on_signal", lambda run: None)
    if command in ("apply", "rollback"):
        words = (*words, "--journals", str(journals))
    given = linux_run.make_parser().parse_args([command, "--json", *words])
    try:
        files = linux_run.open_files(str(made))
    except linux_run.Refused as refused:
        return linux_bundle.Result(refused.code, {"error": refused.document}, [])
    return (linux_bundle if command == "facts" else linux_commands).main(given, files)


@contextmanager
def at_each_line(do: Callable[[str, Any], None]) -> Iterator[None]:
    """Tells of them as the journal of the engine does."""
    real = linux_journal.Journal._append
    count = 0

    def line(journal: linux_journal.Journal, kind: str, fields: Any) -> None:
        nonlocal count
        count += 1
        entry = {**fields, "n": count, "event": kind}
        do("before", entry)
        real(journal, kind, fields)
        do("after", entry)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linux_journal.Journal, "_append", line)
        yield


# ---- to be killed at any moment


@dataclass
class ByHand:
    """Who runs a bundle, restarts the machine where that is asked for, and runs it again."""

    hand: InLinux | OnOwnLinux
    made: Path
    around: Callable[[str, Any], None] = nothing

    @property
    def begun(self) -> bool:
        return any(b"\n" in journal.read_bytes() for journal in self.hand.journals.glob("*.jsonl"))

    @property
    def at_rest(self) -> bool:
        return self.hand.here.at_rest

    def apply(self, plan: Plan | None = None) -> Outcome:
        return self._through("apply")

    def resume(self) -> Outcome:
        return self._through("apply")

    def rollback(self) -> Outcome:
        return self._through("rollback")

    def _through(self, command: str) -> Outcome:
        """At most two restarts: one that a killed run asked for, and its own."""
        for _ in range(3):
            with at_each_line(self.around):
                done = self.hand.run(self.made, command, "--accept", "restart")
            if done.code != 75:
                break
            assert isinstance(self.hand, OnOwnLinux)
            self.hand.restart()
        said = done.document
        if command == "rollback" and said.get("error", {}).get("kind") == "UnknownRun" and self.begun:
            return Outcome("", "", "rolled back", 0)  # killed after its last line, it was done
        assert done.code == 0, said
        missing = tuple(said.get("missing", ()))
        return Outcome("", "", said["outcome"], said["changed"], (), tuple(said.get("kept", ())), missing)

    def state(self) -> Any:
        return self.hand.here.state()

    def copy(self, folder: Path) -> "ByHand":
        here, journals = self.hand.here.copy(folder / "store"), folder / "journals"
        if self.hand.journals.exists():
            shutil.copytree(self.hand.journals, journals)
        return ByHand(dataclasses.replace(self.hand, here=here, journals=journals), self.made)  # type: ignore[arg-type]


@contextmanager
def in_linux_by_hand(folder: Path) -> Iterator[ByHand]:
    """The first bundle that is about the Linux in a WSL."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        hand = InLinux(with_windows_done(wsl2_world(folder / "store")), folder / "journals", patch)
        plan = hand.plan(unpack_linux(hand.here.plan(), folder / "reader"))
        yield ByHand(hand, unpack_linux(plan, folder / "linux"))


@contextmanager
def on_own_linux_by_hand(folder: Path) -> Iterator[ByHand]:
    """Over a restart."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        hand = OnOwnLinux(linux_world(folder / "store", "ubuntu-2xl4-no-driver"), folder / "journals", patch)
        yield ByHand(hand, unpack_linux(hand.here.plan(), folder / "linux"))
