"""A simulated host with a controller's store, without a wire between them: what the engine's tests run on."""

import copyreg
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from winhost.connect.agent import Agent, Connector
from winhost.connect.patience import Patience
from winhost.connect.wire_errors import SessionDropped, Unreachable
from winhost.core.answers import Id
from winhost.engine.detect import read_facts
from winhost.engine.planning import check_plan, make_plan
from winhost.engine.progress import ProgressEvent
from winhost.engine.rollback import rollback
from winhost.engine.run import apply, resume
from winhost.engine.run_context import Outcome, RunContext
from winhost.engine.store import Store
from winhost.lab.contract.agent_answers import AgentAnswers
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest
from winhost.model.shipped import shipped
from winhost.paths.playbook import parse_request, read_playbook
from winhost.resources.host import HostFacts
from winhost.resources.shape import check_records

PLAYBOOK = read_playbook(shipped("playbooks") / "dda.yaml").model_dump(by_alias=True, mode="json")
EVERY_CONSENT = ("vm-stop", "vm-turn-off", "restart", "force-dismount", "headless")
QUICK = Patience(deadline=2, first=0.001, longest=0.01)
T = TypeVar("T")


def _nothing(when: str, entry: Any) -> None:
    pass


def _event(is_set: bool) -> threading.Event:
    made = threading.Event()
    if is_set:
        made.set()
    return made


def copied(thing: T, memo: dict[int, Any] | None = None) -> T:
    """A deep copy, also of what has locks: nobody holds those of the copy."""
    for lock in (threading.Lock, threading.RLock):
        copyreg.pickle(type(lock()), lambda _, lock=lock: (lock, ()))  # type: ignore[misc]
    copyreg.pickle(threading.Event, lambda event: (_event, (event.is_set(),)))
    return deepcopy(thing, memo)


class DirectWire:
    """Calls the lab's agent without remoting. A host that restarted has forgotten the session."""

    def __init__(self, host: str, answers: AgentAnswers) -> None:
        if not answers.machine.accepts_connections():
            raise Unreachable(host, "restarting")
        self.host = host
        self._answers = answers
        self._boot = answers.machine.boot

    def invoke(self, request: str, within: float) -> str:
        if not self._is_up():
            raise SessionDropped(self.host, "the host restarted")
        try:
            with self._answers.machine.session_scope(self._is_up):
                return self._answers.invoke(request)
        except HostDown:
            raise SessionDropped(self.host, "the host went down") from None

    def _is_up(self) -> bool:
        return self._answers.machine.boot == self._boot and self._answers.machine.accepts_connections()

    def close(self) -> None:
        pass


@dataclass
class World:
    """One host, one store. around: the journal's hook for the next runs; consents: to all that they risk; back: to what
    a rollback risks, where that is something else.
    """

    machine: Machine
    store: Store
    host: str = "gpu-01"
    around: Callable[[str, Any], None] = _nothing
    stop: Callable[[], bool] = lambda: False
    events: list[ProgressEvent] = field(default_factory=list)
    folder: Path = Path()
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext
    consents: Sequence[str] = EVERY_CONSENT
    back: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self.answers = AgentAnswers(self.machine)

    def open(self) -> Agent:
        return Agent(DirectWire(self.host, self.answers), 60, check_records)

    @property
    def connector(self) -> Connector:
        return self

    @property
    def context(self) -> RunContext:
        return RunContext(
            self.connector,
            self.store,
            QUICK,
            300,
            self.events.append,
            self.stop,
            self.around,
            self.folder,
            interruptible=self.interruptible,
        )

    def facts(self, named: Iterable[Id] = ()) -> Facts:
        self.machine.wait_until_ready()
        return read_facts(self.open(), named)

    def plan(self, vm: str | None = "llm-01", **request: Any) -> Plan:
        return make_plan(HostFacts(self.facts()), parse_request(PlanRequest("dda", PLAYBOOK, vm, **request)))

    def apply(self, plan: Plan, accepted: Iterable[str] | None = None) -> Outcome:
        return apply(check_plan(plan), self.consents if accepted is None else accepted, self.context)

    def resume(self, accepted: Iterable[str] | None = None) -> Outcome:
        return resume(self.run, self.consents if accepted is None else accepted, self.context)

    def rollback(self, accepted: Iterable[str] | None = None) -> Outcome:
        consents = self.consents if self.back is None else self.back
        return rollback(self.run, consents if accepted is None else accepted, self.context)

    @property
    def begun(self) -> bool:
        return bool(self.store.runs())

    @property
    def at_rest(self) -> bool:
        """No restart is under way, nor a task of its network."""
        return not self.machine.network.is_busy and self.machine._restart is None

    def copy(self, folder: Path) -> Self:
        """The same host and journals, going their own way from here, as if whoever ran something had been killed."""
        self.machine.wait_until_ready()
        made = copied(self, {id(self.events): list(self.events)})
        if self.store.folder.exists():
            shutil.copytree(self.store.folder, folder)
        made.store.folder, made.around = folder, _nothing
        return made

    @property
    def run(self) -> str:
        return self.store.runs()[-1]

    def state(self) -> dict[str, Any]:
        self.machine.wait_until_ready()
        return dict(self.machine.comparable_state())

    def vm(self, name: str = "llm-01") -> str:
        return next(guid for guid, vm in self.machine.vms.items() if vm.name == name)


@dataclass(frozen=True)
class WindowsAlone:
    """The way to the Windows of a world that has a Linux as well."""

    here: World

    @property
    def host(self) -> str:
        return self.here.host

    def open(self) -> Agent:
        return World.open(self.here)


def world(folder: Path, host_file: str = "server2025-3gpu") -> World:
    facts, section = expand(find(host_file))
    return World(Machine(facts, section, LabClock(0)), Store(folder), facts.host)
