"""Answers to the agent's JSON contract from the Linux of a simulated host, and when it is there to be asked."""

import json
import socket
import threading
from functools import partial

from winhost.core.answers import Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.contract.call_batch import Answer, Call, CallBatch
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.linux_resources import ENTRIES, LinuxResource, bad_request
from winhost.lab.linux.probe_answers import probe_answer
from winhost.lab.linux.served_endpoint import ServedEndpoint
from winhost.lab.linux.serving_answers import SimulatedServing
from winhost.lab.linux.unkept_change import RevocableChanges
from winhost.lab.physics.cmdlet_host import HostDown
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_firewall import within
from winhost.lab.physics.wsl_session import Distro
from winhost.resources.registry import LINUX


class LinuxAnswers(CallBatch):
    """Of one distro, for all its sessions."""

    verbs = ("get", "set", "restart")
    error = staticmethod(refused)

    def __init__(self, linux: Linux) -> None:
        super().__init__(linux.machine)
        self.linux = linux
        self.revocable = RevocableChanges(linux.machine.clock)
        self._alone = threading.RLock()

    def invoke(self, json_text: str, connection: int = 0) -> str:
        """The answer to one request: of all of it, also where nobody waits for it any more."""
        request = json.loads(json_text)
        with self._alone:
            self.look()
            self.revocable.connection = connection
            return json.dumps({"answers": self._answers(request.get("calls") or [], threading.Event())})

    def told(self, program: str, json_text: str, connection: int) -> str:
        """The answer of the agent, or of the program of `winhost probe` or `winhost serve`."""
        if program == "agent":
            return self.invoke(json_text, connection)
        with self._alone:
            self.linux.look()
            request = json.loads(json_text)
            serving = program == "serving"
            answer = self.linux.part(SimulatedServing).answer(request) if serving else probe_answer(self.linux, request)
            return json.dumps({"answers": [answer]})

    def connect(self, address: str, port: int) -> socket.socket | None:
        """A connection from within to this address, as sshd makes for a client; None where nobody listens."""
        with self._alone:
            self.look()
            return self.linux.part(ServedEndpoint).connect(address, port)

    def look(self) -> None:
        """What happened since: a restart, and the time within which somebody had to come back."""
        if self.linux.own:
            self.linux.distro.starts = self.machine.boot - 1
        if self.linux.started != self.linux.distro.starts:
            self.revocable.pass_time()
        self.revocable.look()
        self.linux.look()

    def _instances(self, resource: str, key: Key | None) -> list[Record]:
        known = self._known(resource)
        if key is not None and (set(key) != set(known.key) or not all(isinstance(part, str) for part in key.values())):
            raise bad_request(f"The key is {', '.join(sorted(known.key))}.")
        found = [record for record in known.get(self.linux, key) if key is None or dict(record.key) == dict(key)]
        return [self.revocable.as_kept(resource, record) for record in found]

    def _read_marks(self) -> list[str]:
        return list(self.linux.marks)

    def _write_marks(self, marks: list[str]) -> None:
        self.linux.marks = list(marks)

    def _known(self, resource: str) -> LinuxResource:
        if resource not in ENTRIES:
            raise refused("UnknownNoun", "InvalidArgument", f"There is no resource {resource}.")
        return ENTRIES[resource]

    def _check_settable(self, resource: str) -> None:
        if self._known(resource).set is None:
            raise bad_request(f"{resource} cannot be asked to set.")

    def _change(self, resource: str, key: Key, call: Call, before: Answer, _: threading.Event) -> Answer:
        missing = {name: call["desired"][name] for name in self._differences(call["desired"], before)}
        foreign = sorted(set(missing) - set(LINUX[resource].sets))
        if foreign:
            raise bad_request(f"{', '.join(foreign)} cannot be set.")
        change = self._known(resource).set
        assert change is not None
        self.linux.accepted = tuple((call.get("how") or {}).get("accept", ()))
        if self._known(resource).cuts(self.linux, key):
            return self._changed(resource, key, before, [], partial(self._revocably, call, before, missing))
        answer = self._changed(resource, key, before, [], partial(change, self.linux, key, missing))
        due = self.linux.own and (answer["after"] or {}).get("restart_due") is True
        return {**answer, "restart": [{"system": "host"}]} if answer["ok"] and due else answer

    def _restart(self, call: Call, _: threading.Event) -> Answer:
        if call.get("resource") != "LinuxBoot" or not self.linux.own:
            raise bad_request("Only a machine of its own can be asked to restart.")
        self.machine.run_shutdown()  # that it goes down already is as good
        return {"ok": True, "restart": [{"system": "host"}], "warnings": []}

    def _revocably(self, call: Call, before: Answer, missing: Answer) -> None:
        change = self._known(str(call["resource"])).set
        assert change is not None
        if not self.linux.distro.systemd:
            raise refused("WrongPlace", "InvalidOperation", "Without systemd nothing would undo this change.")
        self.revocable.change(call, before, missing, lambda desired, how: change(self.linux, call["key"], desired))


@dataclass(frozen=True)
class Listening:
    """sshd of a distro as it runs now. seed: of its host key; starts, boot: the runs that this is true of."""

    machine: Machine
    distro: Distro
    answers: LinuxAnswers
    starts: int
    boot: int
    connection: int = 0

    user = "root"

    @property
    def seed(self) -> bytes:
        return self.distro.seed

    @property
    def authorized(self) -> tuple[str, ...]:
        """The keys that lead in from where the controller is: from elsewhere sshd takes none."""
        near = all(within(peer, self.distro.allowed) for peer in self.machine.network.peers())
        return tuple(self.distro.keys) if near else ()

    def alive(self) -> bool:
        """It has run without a break since."""
        up = self.machine.accepting() and self.machine.boot == self.boot
        return up and self.distro.running and self.distro.starts == self.starts

    def connect(self, address: str, port: int) -> socket.socket | None:
        """A connection from within; None where nobody listens."""
        return self.answers.connect(address, port) if self.alive() else None

    def invoke(self, request: str, *, program: str = "agent") -> str:
        """The answer to one request. Raises HostDown where there is none, because the machine is gone."""
        if not self.alive():
            raise HostDown
        answer = self.answers.told(program, request, self.connection)
        if not self.alive():
            raise HostDown
        return answer


class DistrosOfHost:
    """The Linuxes of one simulated host."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: list[LinuxAnswers] = []

    def answers(self, distro: Distro) -> LinuxAnswers:
        """Of this very distro: one that is made again knows nothing of what was in another."""
        found = next((each for each in self._known if each.linux.distro is distro), None)
        if found is None:
            found = LinuxAnswers(Linux(self._machine, distro))
            self._known.append(found)
        return found

    def listening(self) -> Listening | None:
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
                answers.revocable.newest += 1
                return Listening(machine, distro, answers, distro.starts, machine.boot, answers.revocable.newest)
        return None
