"""Runs the agent's own scripts on a simulated Linux, and serves them to SSH.

Functions of the scripts that reach hubs, engines or file contents are replaced. Each hub and archive has every file,
all downloads have the same rate, and only the size and hash of a downloaded file are stored.
"""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.contract.agent_answers import InjectedFaults, simulator_error
from winhost.lab.linux.containers import SimulatedCluster
from winhost.lab.linux.inner_python import TICKS, InnerFile, InnerLinux, Interpreter, interpreter
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.programs import PROGRAMS, DataDisks
from winhost.lab.linux.serving import ServedEngines, SimulatedServing
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, MissingDependency
from winhost.lab.physics.windows_firewall import is_within
from winhost.lab.physics.wsl_exe import Distro
from winhost.resources.registry import LINUX


def probe_answer(linux: Linux, request: Json) -> dict[str, Any]:
    """Return the answer of `winhost probe`: a simulator can measure nothing, so all parts are skipped."""
    skipped = {"outcome": "skipped", "seconds": 0.0, "why": "the simulator measures nothing", "error": None}
    return {"ok": True, "kernel": linux.kernel(), "outcomes": [{"part": part, **skipped} for part in request["parts"]]}


_BYTES_A_SECOND = 100e6
# An archive without members, which both tarfile and zipfile can read.
_EMPTY_ARCHIVE = bytes(1024) + b"PK\x05\x06" + bytes(18)


class StandIns:
    """Replacements for functions of the scripts. names: all names that the scripts define."""

    def __init__(self, linux: Linux, names: Mapping[str, Any]) -> None:
        self._linux, self._names = linux, names
        self._load_image = names.get("load_image")

    def table(self) -> Mapping[str, Any]:
        """Return the replacements by the names of the functions."""
        return {
            "NOW": self._linux.gpu_view(),
            "check_ready": self._check_ready,
            "open_wheel": self._download_wheel,
            "node_problem": lambda name: "" if name == self._linux.part(SimulatedCluster).node else "it is not there",
            "fetch_file": lambda source, part, file, token: self._download(source, part, file.size, file.hash),
            "compute_hash": lambda here, file: (
                here.node.placeholder[1] if here.node.placeholder else f"sha256:{here.node.sha256}"
            ),
            "load_image": self._load_image_archive,
            "mounted_at": self._linux.part(DataDisks).device_at,
            "sha256_of": lambda here: here.node.sha256,
        }

    def _check_ready(self, host: str, port: int, tls: bool) -> str:
        in_cluster = self._linux.part(SimulatedCluster).answers_at(host)
        return "" if in_cluster or self._linux.part(ServedEngines).serves() else "503 an engine does not answer"

    def _download(self, source: str, part: str, size: int, digest: str) -> Iterator[int]:
        if not self._linux.online and not source.startswith("/"):
            message = f"{source}: 5 attempts in a row brought nothing. It goes on from there the next time."
            raise self._names["AgentFault"]("Winhost.HubUnreachable", "ResourceUnavailable", message)
        self._linux.sleep(size / _BYTES_A_SECOND)
        self._linux.disk.write(part, _EMPTY_ARCHIVE.decode()).placeholder = (size, digest)
        yield size

    def _download_wheel(self, making: str, wheel: Any, source: str) -> AbstractContextManager[InnerFile]:
        part = making + self._names["WHEEL"]
        list(self._download(f"{source}/{wheel.path}", part, wheel.size, wheel.hash))
        file: AbstractContextManager[InnerFile] = self._names["open_file"](part)
        return file

    def _load_image_archive(self, engine: str, record: Mapping[str, Any], how: Mapping[str, Any]) -> Any:
        """Load an image archive as the script does. A missing archive is made for the duration of the call."""
        path, digest = str(record["archive"]), f"sha256:{record['archive_sha256']}"
        downloads = path.startswith("/") and self._linux.disk.node(path) is None
        if downloads:
            list(self._download(path, path, record["bytes"] or 0, digest))
        try:
            return self._load_image(engine, record, how)  # type: ignore[misc]
        finally:
            if downloads:
                self._linux.disk.remove(path)


RECORDS: Mapping[str, Callable[[Linux], Iterable[Record]]] = {
    "LinuxSystem": Linux.system,
    "LinuxGpuDriver": Linux.driver_state,
    "LinuxGpu": Linux.gpus,
    "ContainerEngine": Linux.engines,
    "LinuxDisk": lambda linux: linux.part(DataDisks).disks(),
    "DataDisk": lambda linux: linux.part(DataDisks).data_disks(),
    "ListeningPort": lambda linux: linux.fact_records("ListeningPort"),
}


_LOCAL_PROCESS = 1  # the process id of callers on the machine itself
_UNDO_RECORD = "/var/lib/winhost/undo/record.json"
# Resources of the facts that are made by a `set` of their scripts.
_SCRIPTED_RESOURCES = (
    *("Mount", "AptSource", "FirewallPort", "KernelModule", "LinuxFolder", "ModelFiles", "PythonVenv", "ReleaseFile"),
    *("SecretFile", "Sysctl", "ClusterObjects", "PackedModel"),
)
_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")
Names = Mapping[str, Any]
_SERVING = Interpreter()
_SERVING_LOCK = threading.Lock()


class LinuxAnswers:
    """Answers requests on one Linux, for all its sessions.

    connections: how many there have been; faults: added by a test or a demo.
    """

    def __init__(self, linux: Linux) -> None:
        self.machine = linux.machine
        self.linux = linux
        self.faults = InjectedFaults(self.machine)
        self.connections = 0
        self._connection_starts: dict[int, float] = {}
        self._lock = threading.RLock()
        linux.part(ServedEngines)
        self._has_facts = False

    def _load_facts(self) -> None:
        """Make the state in the facts with the scripts of the resources."""
        if self._has_facts:
            return
        records_by_resource = {name: self.linux.fact_records(name) for name in _SCRIPTED_RESOURCES}
        self.linux.is_initializing = True
        with self._scripts([name for name, records in records_by_resource.items() if records], 0) as names:
            for kind, name, content in _list_own_records(self.linux.fact_records):
                names["write_record"](kind, name, content)
            for name, records in records_by_resource.items():
                for record in records:
                    self._make_resource(names, name, record)
        self.linux.is_initializing, self._has_facts = False, True

    def _make_resource(self, names: Names, resource: str, record: Record) -> None:
        if resource == "PackedModel":
            files, folder = record.state["files"], record.key["folder"]
            if isinstance(files, list | tuple):
                paths = {str(line): f"{folder}/{str(line).split(' ', 2)[2]}" for line in files}
                for path in paths.values():
                    self.linux.disk.write(path, "")
                marks = {line: names["file_mark"](path) for line, path in paths.items()}
                names["write_record"](
                    "packed", folder, {"folder": folder, **record.state, "files": [*paths], "marks": marks}
                )
            return
        entry = names["RESOURCES"][resource]
        properties = {name: record.state[name] for name in entry.sets if not name.endswith("_due")}
        desired = {
            name: value for name, value in properties.items() if value not in (None, False) and not _is_unread(value)
        }
        with suppress(names["AgentFault"], names["NotThereYet"], OSError):  # a replica lacks what the script refuses
            if desired and names["read_instances"](resource, record.key):
                entry.set(record.key, desired, {"secret": "of a replica"})

    def count_connection(self) -> int:
        """Count a new connection, and return its number."""
        self.connections += 1
        self._connection_starts[self.connections] = self.linux.uptime()
        return self.connections

    def invoke(self, json_text: str, connection: int = 0) -> str:
        """Answer one request to the agent. It runs to its end even if the client has left."""
        request = json.loads(json_text)
        with self._lock:
            self.catch_up()
            calls = request.get("calls") or []
            with self._scripts([str(call.get("resource")) for call in calls], connection) as names:
                return json.dumps({"answers": names["answer_calls"]({**request, "calls": calls}, None)})

    def answer(self, program: str, json_text: str, connection: int) -> str:
        """Answer a request to the agent, or to the program of `winhost probe` or `winhost serve`."""
        if program == "agent":
            return self.invoke(json_text, connection)
        with self._lock:
            self.catch_up()
            request = json.loads(json_text)
            answer = self._serving(request, connection) if program == "serving" else probe_answer(self.linux, request)
            return json.dumps({"answers": [answer]})

    def _serving(self, request: Mapping[str, Any], connection: int) -> dict[str, Any]:
        """Run the program of `winhost serve`. The gateway has read changed keys by the time of the request."""
        serving = self.linux.part(SimulatedServing)
        if request.get("do") == "keys":
            serving.read_keys()
        self.linux.sync_to_disk()
        # A separate interpreter: on a real Linux that program does not share names with the agent.
        with _SERVING_LOCK, _SERVING.bind(InnerLinux(self.linux, self._process(connection), PROGRAMS)) as inner:
            names = inner.load("winhost.agent.linux_serving")
            for name, stand_in in serving.table().items():
                inner.replace(name, _wrap_stand_in(names, stand_in))
            answer: dict[str, Any] = names["answer_request"](request)
        self.linux.sync_from_disk()
        return answer

    def connect(self, address: str, port: int) -> socket.socket | None:
        """Return a connection to an address inside the Linux, as sshd's forwarding makes; None if nothing listens."""
        with self._lock:
            self.catch_up()
            return self.linux.part(SimulatedServing).connect(address, port)

    def catch_up(self) -> None:
        """Apply a restart, or a deadline for confirming a change, that has passed since."""
        linux = self.linux
        if not self._has_facts:
            with self._lock:
                self._load_facts()
        if linux.is_standalone:
            linux.distro.starts = self.machine.boot - 1
        is_overdue = linux.undo_due is not None and self.machine.clock.scale and linux.now() >= linux.undo_due
        if is_overdue or linux.last_start != linux.distro.starts:
            self.undo_unkept_change()
        linux.catch_up()

    def undo_unkept_change(self) -> None:
        """Undo a change that was not confirmed before its deadline or a restart."""
        with self._lock, self._scripts([], 0) as names, suppress(names["AgentFault"]):  # it is tried again later
            names["undo_unconfirmed"]()

    @contextmanager
    def _scripts(self, resources: Sequence[str], connection: int) -> Iterator[Names]:
        """Load the agent with the scripts of these resources, and of a resource with an unconfirmed change."""
        linux = self.linux
        linux.sync_to_disk()
        unkept = json.loads(linux.disk.text(_UNDO_RECORD) or "{}").get("resource")
        process = self._process(connection)
        with interpreter(InnerLinux(linux, process, PROGRAMS)) as inner:
            names = inner.load("winhost.agent.linux_serve")
            names["ONCE"].clear()
            known = [each for each in {*resources, unkept} if each in LINUX]
            entries = {each: self._load_entry(inner, each) for each in known}
            inner.replace("RESOURCES", {**entries, "RunMarks": names["RESOURCES"]["RunMarks"]})
            for name, stand_in in StandIns(linux, names).table().items():
                if name in names:
                    inner.replace(name, _wrap_stand_in(names, stand_in))
            try:
                yield names
            finally:
                linux.disk.remove(f"/proc/{process}")
                linux.sync_from_disk()

    def _process(self, connection: int) -> int:
        """Return the process id of a connection's sshd, and write its /proc entry."""
        if connection == 0:
            return _LOCAL_PROCESS
        process, start = 1000 + connection, self._connection_starts.get(connection, self.linux.uptime())
        fields = ["S", "1", *["0"] * 17, str(int(start * TICKS))]
        self.linux.disk.write(f"/proc/{process}/stat", f"{process} (sshd) {' '.join(fields)}\n")
        return process

    def _load_entry(self, inner: Interpreter, resource: str) -> Any:
        """Load the script of a resource, with injected faults. The resources in RECORDS read the simulator's state."""
        names = inner.load("winhost.agent.linux_agent")
        folder = _WORD_START.sub("_", resource).lower()
        entry = inner.load_table(f"winhost.resources.linux.{folder}.script", "RESOURCES")[resource]
        if resource in RECORDS:
            read_records = lambda key: [(each.key, each.state) for each in RECORDS[resource](self.linux)]  # noqa: E731
            inner.replace(entry.get.__name__, read_records)
            entry = entry._replace(get=read_records)
        if self.linux.is_initializing or entry.set is None:  # a replica is made without faults
            return entry

        def changed(key: Key, desired: Mapping[str, Json], how: Mapping[str, Json]) -> None:
            with _agent_errors(names):
                self.faults.trigger(resource, "set")
            entry.set(key, desired, how)
            with _agent_errors(names):
                self.faults.trigger(resource, "set", after_change=True)

        return entry._replace(set=changed)


def _list_own_records(find: Callable[[str], Sequence[Record]]) -> Iterator[tuple[str, str, Mapping[str, Json]]]:
    """Yield winhost's own records of things in the facts: kind, name and content."""
    for each in find("LinuxUser"):
        if each.state["ours"]:
            record = {"uid": each.state["uid"], "joined": False, "home": None}
            yield "made", f"user {each.key['user']}", record
    for each in find("LinuxGroup"):
        if each.state["ours"]:
            yield "made", f"group {each.key['group']}", {"gid": each.state["gid"]}
    for each in find("ContainerImage"):
        if each.state["present"] is True:  # facts do not show whether winhost pulled it
            names = ("id", "archive", "archive_sha256", "bytes", "credentials")
            yield "images", " ".join(each.key.values()), {**each.key, **{name: each.state[name] for name in names}}


def _is_unread(value: Json) -> bool:
    """Tell whether a recorded host could not read this value."""
    return isinstance(value, Mapping) and bool({"unknown", "unavailable"} & {*value})


@contextmanager
def _agent_errors(names: Names) -> Iterator[None]:
    """Raise errors of the simulator as errors of the agent."""
    try:
        yield
    except MissingDependency as missing:
        raise names["NotThereYet"](missing.resource) from None
    except (CmdletError, LookupError, StopIteration, ValueError, AssertionError) as error:
        fault = error if isinstance(error, CmdletError) else simulator_error(error)
        arguments = (fault.code, fault.category, fault.message, fault.cmdlet, fault.hresults)
        raise names["AgentFault"](*arguments) from None


def _wrap_stand_in(names: Names, stand_in: Any) -> Any:
    """Make a replacement for a function of the scripts raise errors of the agent."""
    if not callable(stand_in):
        return stand_in

    def call(*arguments: Any, **keywords: Any) -> Any:
        with _agent_errors(names):
            return stand_in(*arguments, **keywords)

    return call


@dataclass(frozen=True)
class Sshd:
    """The SSH server of a running Linux, for one connection.

    user, authorized: who may log on; host: the machine whose restart ends the session; is_up: tells whether the Linux
    has been running since the connection was made.
    """

    answers: LinuxAnswers
    user: str
    authorized: tuple[str, ...]
    host: Machine
    is_up: Callable[[], bool]
    connection: int

    @classmethod
    def open(
        cls, answers: LinuxAnswers, user: str, keys: Sequence[str], host: Machine, current_run: Callable[[], object]
    ) -> "Sshd":
        """Make the server for a new connection.

        current_run: returns a value that changes when the Linux stops or restarts.
        """
        first_run = current_run()
        return cls(answers, user, tuple(keys), host, lambda: current_run() == first_run, answers.count_connection())

    @property
    def seed(self) -> bytes:
        """The seed of its host key."""
        return self.answers.linux.distro.seed

    def connect(self, address: str, port: int) -> socket.socket | None:
        """Return a connection to an address inside the Linux; None if nothing listens. Raises HostDown."""
        self._check_up()
        return self.answers.connect(address, port)

    def invoke(self, request: str, *, program: str = "agent") -> str:
        """Answer one request. Raises HostDown if the Linux has stopped."""
        self._check_up()
        with self.host.session_scope(self.is_up):
            answer = self.answers.answer(program, request, self.connection)
        self._check_up()
        return answer

    def _check_up(self) -> None:
        if not self.is_up():
            raise HostDown


class HostDistros:
    """The Linuxes in the distros of one host."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known_answers: list[LinuxAnswers] = []

    def answers(self, distro: Distro) -> LinuxAnswers:
        """Return the answers of a distro. One that is imported again under the same name is a new distro."""
        answers = next((each for each in self._known_answers if each.linux.distro is distro), None)
        if answers is None:
            answers = LinuxAnswers(Linux(self._machine, distro))
            distro.added_bytes = answers.linux.disk.size
            self._known_answers.append(answers)
        return answers

    def find_sshd(self) -> Sshd | None:
        """Return the SSH server of the first running distro that the network can reach, or None."""
        machine = self._machine
        if not (machine.accepts_connections() and machine.network.is_reachable):
            return None
        sessions = [s for account, s in machine.distros.sessions.items() if machine.distros.has_network(account)]
        for distro in [distro for session in sessions for distro in session.running]:
            if distro.is_listening and distro.port is not None and machine.network.allows_peers(distro.port):
                answers = self.answers(distro)
                answers.catch_up()
                if answers.linux.is_cut_off():
                    continue
                return self._sshd(answers, distro)
        return None

    def _sshd(self, answers: LinuxAnswers, distro: Distro) -> Sshd:
        """Return the SSH server of a distro. It accepts no key if a controller is outside the allowed networks."""
        machine = self._machine
        is_admitted = all(is_within(peer, distro.allowed) for peer in machine.network.peers())
        current_run = lambda: (machine.accepts_connections(), machine.boot, distro.running, distro.starts)  # noqa: E731
        return Sshd.open(answers, "root", distro.keys if is_admitted else (), machine, current_run)
