"""The agent's own scripts, on the simulated Linux of a host, and when that is there to be asked."""

import json
import math
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.contract.injected_faults import InjectedFaults
from winhost.lab.linux.data_disks import DataDisks
from winhost.lab.linux.inner_python import TICKS, Interpreter, interpreter
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.probe_answers import probe_answer
from winhost.lab.linux.programs import InnerLinux
from winhost.lab.linux.served_engines import ServedEngines
from winhost.lab.linux.serving_answers import ServedEndpoint, SimulatedServing
from winhost.lab.linux.simulated_cluster import SimulatedCluster
from winhost.lab.linux.stand_ins import StandIns
from winhost.lab.physics.cmdlet_host import HostDown
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, NotYet
from winhost.lab.physics.windows_firewall import within
from winhost.lab.physics.wsl_session import Distro
from winhost.resources.registry import LINUX

RECORDS: Mapping[str, Callable[[Linux], Iterable[Record]]] = {
    "LinuxSystem": Linux.system,
    "LinuxGpuDriver": Linux.driver_state,
    "LinuxGpu": Linux.gpus,
    "ContainerEngine": Linux.engines,
    "LinuxDisk": lambda linux: linux.part(DataDisks).disks(),
    "DataDisk": lambda linux: linux.part(DataDisks).data_disks(),
    "ListeningPort": lambda linux: linux.found("ListeningPort"),
}


_MACHINE = 1  # the process of whoever asks at the machine itself
_UNKEPT = "/var/lib/winhost/undo/record.json"
# What facts tell of these is made by a change.
_MADE_BY_SCRIPTS = (
    *("Mount", "AptSource", "FirewallPort", "KernelModule", "LinuxFolder", "ModelFiles", "PythonVenv", "ReleaseFile"),
    *("SecretFile", "Sysctl", "ClusterObjects", "PackedModel"),
)
_FOLDER = re.compile(r"(?<!^)(?=[A-Z])")
Names = Mapping[str, Any]
_KEYS = Interpreter()
_ONE_AT_A_TIME = threading.Lock()


class LinuxAnswers:
    """The answers of one Linux, for all its sessions. newest: of the connections to it, counted from 1. `faults` are
    those that a test or a demo has ordered.
    """

    def __init__(self, linux: Linux) -> None:
        self.machine = linux.machine
        self.linux = linux
        self.faults = InjectedFaults()
        self.newest = 0
        self._began: dict[int, float] = {}
        self._alone = threading.RLock()
        linux.part(ServedEngines)
        self._made = False

    def _take_facts(self) -> None:
        """Let the scripts of these resources make what the facts tell of this Linux."""
        if self._made:
            return
        told = {name: self.linux.found(name) for name in _MADE_BY_SCRIPTS}
        self.linux.begins = True
        with self._scripts([name for name, records in told.items() if records], 0) as names:
            for name, records in told.items():
                for record in records:
                    self._make(names, name, record)
        self.linux.begins, self._made = False, True

    def _make(self, names: Names, resource: str, record: Record) -> None:
        if resource == "ClusterObjects":
            if isinstance(record.state["text"], str):
                self._take_objects(names, record.key["name"], record.state)
            return
        if resource == "PackedModel":
            if isinstance(record.state["files"], list | tuple):
                self._take_packed(names, record.key["folder"], record.state)
            return
        entry = names["RESOURCES"][resource]
        told = {name: record.state[name] for name in entry.sets if not name.endswith("_due")}
        desired = {name: value for name, value in told.items() if value not in (None, False) and not _unread(value)}
        with suppress(names["AgentFault"], names["NotThereYet"], OSError):  # what its script refuses, no replica has
            if desired:
                entry.set(record.key, desired, {"secret": "of a replica"})

    def _take_objects(self, names: Names, name: str, told: Mapping[str, Json]) -> None:
        cluster, path = self.linux.part(SimulatedCluster), names["objects_file"](name)
        names["put"](path, told["text"], 0o600)
        cluster.add(told["text"], -math.inf if told["serves"] else self.linux.now())
        if told["token"] is not None:
            names["put"](names["token_record"](path), json.dumps({"token": told["token"]}), 0o600)
            place = {"name": names["HUB_TOKEN"], "namespace": name}
            cluster.add(json.dumps({"kind": "Secret", "metadata": place}), -math.inf)

    def _take_packed(self, names: Names, folder: str, told: Mapping[str, Json]) -> None:
        paths = {str(line): f"{folder}/{str(line).split(' ', 2)[2]}" for line in cast("Sequence[Json]", told["files"])}
        for path in paths.values():
            self.linux.disk.write(path, "")
        marks = {line: names["mark_of"](path) for line, path in paths.items()}
        record = {"folder": folder, **told, "files": [*paths], "marks": marks}
        names["put"](names["record_of_packed"](folder), json.dumps(record), 0o600)

    def came_in(self) -> int:
        """A connection, by its number."""
        self.newest += 1
        self._began[self.newest] = self.linux.since_boot()
        return self.newest

    def invoke(self, json_text: str, connection: int = 0) -> str:
        """The answer to one request: of all of it, also where nobody waits for it any more."""
        request = json.loads(json_text)
        with self._alone:
            self.look()
            calls = request.get("calls") or []
            with self._scripts([str(call.get("resource")) for call in calls], connection) as names:
                return json.dumps({"answers": names["answers"]({**request, "calls": calls}, None)})

    def told(self, program: str, json_text: str, connection: int) -> str:
        """The answer of the agent, or of the program of `winhost probe` or `winhost serve`."""
        if program == "agent":
            return self.invoke(json_text, connection)
        with self._alone:
            self.look()
            request = json.loads(json_text)
            if program == "serving" and request.get("do") == "keys":
                answer = self._keys(request, connection)
            elif program == "serving":
                answer = self.linux.part(SimulatedServing).answer(request)
            else:
                answer = probe_answer(self.linux, request)
            return json.dumps({"answers": [answer]})

    def _keys(self, request: Mapping[str, Any], connection: int) -> dict[str, Any]:
        """Run the program for API keys. The gateway reads the changed file as soon as anybody looks."""
        serving = self.linux.part(SimulatedServing)
        serving.read_keys()
        self.linux.settle()
        # One of its own: on a Linux that program is another text than the agent, and has other names.
        with _ONE_AT_A_TIME, _KEYS.on(InnerLinux(self.linux, self._process(connection))) as inner:
            names = inner.load("winhost.agent.linux_keys")
            try:
                answer = {"ok": True, **names["keys"](request)}
            except Exception as error:  # noqa: BLE001 - as the program itself does
                answer = {"ok": False, "error": names["describe_error"](error), "warnings": []}
        self.linux.gather()
        return answer

    def connect(self, address: str, port: int) -> socket.socket | None:
        """A connection from within to this address, as sshd makes for a client; None where nobody listens."""
        with self._alone:
            self.look()
            return self.linux.part(ServedEndpoint).connect(address, port)

    def look(self) -> None:
        """Catch up with a restart, and with a deadline within which somebody had to come back."""
        linux = self.linux
        if not self._made:
            with self._alone:
                self._take_facts()
        if linux.own:
            linux.distro.starts = self.machine.boot - 1
        late = linux.undo_due is not None and self.machine.clock.scale and linux.now() >= linux.undo_due
        if late or linux.started != linux.distro.starts:
            self.pass_time()
        linux.look()

    def pass_time(self) -> None:
        """Nobody came back in time, or the machine has restarted."""
        with self._alone, self._scripts([], 0) as names, suppress(names["AgentFault"]):  # then it is tried again
            names["undo_unkept"]()

    @contextmanager
    def _scripts(self, resources: Sequence[str], connection: int) -> Iterator[Names]:
        """The agent, with what these resources take, and what has yet to be kept."""
        linux = self.linux
        linux.settle()
        unkept = json.loads(linux.disk.text(_UNKEPT) or "{}").get("resource")
        process = self._process(connection)
        with interpreter(InnerLinux(linux, process)) as inner:
            names = inner.load("winhost.agent.linux_serve")
            names["ONCE"].clear()
            known = [each for each in {*resources, unkept} if each in LINUX]
            entries = {each: self._entry(inner, each) for each in known}
            inner.replace("RESOURCES", {**entries, "RunMarks": names["RESOURCES"]["RunMarks"]})
            for name, stand_in in StandIns(linux, names).table().items():
                if name in names:
                    inner.replace(name, stand_in)
            try:
                yield names
            finally:
                linux.disk.remove(f"/proc/{process}")
                linux.gather()

    def _process(self, connection: int) -> int:
        """The process of sshd, as the kernel shows it."""
        if connection == 0:
            return _MACHINE
        process, began = 1000 + connection, self._began.get(connection, self.linux.since_boot())
        fields = ["S", "1", *["0"] * 17, str(int(began * TICKS))]
        self.linux.disk.write(f"/proc/{process}/stat", f"{process} (sshd) {' '.join(fields)}\n")
        return process

    def _entry(self, inner: Interpreter, resource: str) -> Any:
        """Load what the script of a resource declares, with the faults that were ordered; for some, read
        their records.
        """
        names = inner.load("winhost.agent.linux_agent")
        folder = _FOLDER.sub("_", resource).lower()
        declared = inner.declared(f"winhost.resources.linux.{folder}.script", "RESOURCES")[resource]
        if resource in RECORDS:
            found = lambda key: [(each.key, each.state) for each in RECORDS[resource](self.linux)]  # noqa: E731
            inner.replace(declared.get.__name__, found)
            declared = declared._replace(get=found)
        return declared._replace(set=declared.set and self._with_faults(names, resource, declared.set))

    def _with_faults(self, names: Names, resource: str, change: Callable[..., None]) -> Callable[..., None]:
        def changed(key: Key, desired: Mapping[str, Json], how: Mapping[str, Json]) -> None:
            with _as_agent(names):
                self._meet_fault(resource, changed=False)
            change(key, desired, how)
            with _as_agent(names):
                self._meet_fault(resource, changed=True)

        return changed

    def _meet_fault(self, resource: str, *, changed: bool) -> None:
        fault = None if self.linux.begins else self.faults.take(resource, "set", changed=changed)
        if fault is not None:
            self.machine.clock.sleep(fault.seconds)
            if fault.error is not None:
                raise fault.error


def _unread(value: Json) -> bool:
    """A recorded host could not tell it."""
    return isinstance(value, Mapping) and bool({"unknown", "unavailable"} & {*value})


@contextmanager
def _as_agent(names: Names) -> Iterator[None]:
    """Errors of the simulator, as the agent has them."""
    try:
        yield
    except NotYet as waits:
        raise names["NotThereYet"](waits.resource) from None
    except CmdletError as error:
        told = (error.code, error.category, error.message, error.cmdlet, error.hresults)
        raise names["AgentFault"](*told) from None


@dataclass(frozen=True)
class Sshd:
    """The SSH server of a Linux as it runs now, for one connection. user: who may log on, with which keys; host: whose
    boot its session ends with; up: it has run without a break since.
    """

    answers: LinuxAnswers
    user: str
    authorized: tuple[str, ...]
    host: Machine
    up: Callable[[], bool]
    connection: int

    @property
    def seed(self) -> bytes:
        """The seed of its host key."""
        return self.answers.linux.distro.seed

    def connect(self, address: str, port: int) -> socket.socket | None:
        """A connection from within; None where nobody listens. Raises HostDown."""
        self._check_up()
        return self.answers.connect(address, port)

    def invoke(self, request: str, *, program: str = "agent") -> str:
        """The answer to one request. Raises HostDown where there is none, because the machine is gone."""
        self._check_up()
        with self.host.for_session(self.up):
            answer = self.answers.told(program, request, self.connection)
        self._check_up()
        return answer

    def _check_up(self) -> None:
        if not self.up():
            raise HostDown


class DistrosOfHost:
    """The Linuxes of one simulated host."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: list[LinuxAnswers] = []

    def answers(self, distro: Distro) -> LinuxAnswers:
        """Return the answers of this very distro: one that is made again knows nothing of the one before."""
        found = next((each for each in self._known if each.linux.distro is distro), None)
        if found is None:
            found = LinuxAnswers(Linux(self._machine, distro))
            distro.holds = found.linux.disk.size
            self._known.append(found)
        return found

    def listening(self) -> Sshd | None:
        """The distro that lets somebody in now, if there is one and the network leads there."""
        machine = self._machine
        if not (machine.accepting() and machine.network.reachable):
            return None
        sessions = [s for account, s in machine.distros.sessions.items() if machine.distros.linked(account)]
        for distro in [distro for session in sessions for distro in session.running]:
            if distro.listens and distro.port is not None and machine.network.lets_through(distro.port):
                answers = self.answers(distro)
                answers.look()
                if answers.linux.cut_off():
                    continue
                return self._sshd(answers, distro)
        return None

    def _sshd(self, answers: LinuxAnswers, distro: Distro) -> Sshd:
        """The SSH server of a distro. It accepts no key where a controller is outside the allowed networks."""
        machine, starts, boot = self._machine, distro.starts, self._machine.boot
        near = all(within(peer, distro.allowed) for peer in machine.network.peers())

        def up() -> bool:
            here = machine.accepting() and machine.boot == boot
            return here and distro.running and distro.starts == starts

        return Sshd(answers, "root", tuple(distro.keys) if near else (), machine, up, answers.came_in())
