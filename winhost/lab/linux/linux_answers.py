"""Answers to the agent's JSON contract from the Linux of a simulated host, and when it is there to be asked."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from winhost.lab.contract.injected_faults import InjectedFaults
from winhost.lab.linux.linux_machine import Linux, refused
from winhost.lab.linux.linux_resources import ENTRIES, LinuxResource, bad_request
from winhost.lab.physics.cmdlet_host import HostDown
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, NotYet
from winhost.lab.physics.windows_network import within
from winhost.lab.physics.wsl_session import Distro
from winhost.model.facts import Json, Key, Record
from winhost.resources.registry import LINUX

Answer = dict[str, Json]


class LinuxAnswers:
    """Of one distro, for all its sessions. `faults` is what a test or a rehearsal has ordered."""

    def __init__(self, linux: Linux) -> None:
        self.linux = linux
        self.faults = InjectedFaults()
        self._alone = threading.RLock()

    def invoke(self, json_text: str) -> str:
        """The answer to one request: of all of it, also where nobody waits for it any more."""
        request = json.loads(json_text)
        with self._alone:
            self.linux.look()
            return json.dumps({"answers": self._batch(request.get("calls") or [])})

    def _batch(self, calls: list[Mapping[str, Json]]) -> list[Answer]:
        answers: list[Answer] = []
        failed = False
        for call in calls:
            changes = call.get("verb") != "get"
            if changes and failed:
                answers.append(_failure(refused("Skipped", "OperationStopped", "A call before it failed.")))
                continue
            answers.append(self._call(call))
            failed = failed or (changes and not answers[-1]["ok"])
        return answers

    def _call(self, call: Mapping[str, Json]) -> Answer:
        try:
            match call.get("verb"):
                case "get":
                    return {**self._get(call), "warnings": []}
                case "set":
                    return {**self._set(call), "warnings": []}
                case _:
                    raise bad_request("The verb is get or set.")
        except NotYet as missing:
            return {"ok": False, "unavailable": missing.resource}
        except CmdletError as error:
            return _failure(error)

    def _get(self, call: Mapping[str, Json]) -> Answer:
        resource, key = str(call.get("resource", "")), call.get("key")
        self._meet_fault(resource, "get", after=False)
        found = self._instances(resource, key)
        if key is None:
            return {"ok": True, "instances": [{"key": dict(r.key), "state": dict(r.state)} for r in found]}
        return {"ok": True, "state": dict(found[0].state) if found else None}

    def _instances(self, resource: str, key: Key | None) -> list[Record]:
        """Raises CmdletError, NotYet."""
        known = _entry(resource)
        if key is not None and (set(key) != set(known.key) or not all(isinstance(part, str) for part in key.values())):
            raise bad_request(f"The key is {', '.join(sorted(known.key))}.")
        return list(known.get(self.linux, key))

    def _set(self, call: Mapping[str, Json]) -> Answer:
        resource, key, desired = str(call.get("resource", "")), call.get("key"), call.get("desired")
        if _entry(resource).set is None:
            raise bad_request(f"{resource} cannot be asked to set.")
        if key is None or desired is None:
            raise bad_request("A set says of what, and what it wants.")
        before = dict(self._instances(resource, key)[0].state)
        drift = _differences(call.get("expect") or {}, before)
        if drift:
            return {"ok": False, "drift": drift, "before": before}
        missing = {name: desired[name] for name in _differences(desired, before)}
        foreign = sorted(set(missing) - set(LINUX[resource].sets))
        if foreign:
            raise bad_request(f"{', '.join(foreign)} cannot be set.")
        return self._change(resource, key, missing, before)

    def _change(self, resource: str, key: Key, missing: Mapping[str, Json], before: Answer) -> Answer:
        change = ENTRIES[resource].set
        try:
            if missing and change:
                self._meet_fault(resource, "set", after=False)
                change(self.linux, key, missing)
                self._meet_fault(resource, "set", after=True)
        except CmdletError as error:
            return {**_failure(error), "before": before, "after": self._state(resource, key)}
        return {"ok": True, "before": before, "after": self._state(resource, key), "restart": []}

    def _state(self, resource: str, key: Key) -> Json:
        return dict(self._instances(resource, key)[0].state)

    def _meet_fault(self, resource: str, verb: str, *, after: bool) -> None:
        fault = self.faults.take(resource, verb, changed=after)
        if fault is None:
            return
        self.linux.machine.clock.sleep(fault.seconds)
        if fault.error is not None:
            raise fault.error


def _entry(resource: str) -> LinuxResource:
    if resource not in ENTRIES:
        raise refused("UnknownNoun", "InvalidArgument", f"There is no resource {resource}.")
    return ENTRIES[resource]


def _failure(error: CmdletError) -> Answer:
    return {"ok": False, "error": error.as_json(), "warnings": []}


def _differences(desired: Mapping[str, Json], state: Mapping[str, Json]) -> dict[str, Json]:
    unknown = sorted(set(desired) - set(state))
    if unknown:
        raise bad_request(f"There is no property {', '.join(unknown)}.")
    return {
        name: {"expected": value, "found": state[name]}
        for name, value in desired.items()
        # As JSON, because true is not 1 there.
        if json.dumps(value, sort_keys=True) != json.dumps(state[name], sort_keys=True)
    }


@dataclass(frozen=True)
class Listening:
    """sshd of a distro as it runs now. seed: of its host key; starts, boot: the runs that this is true of."""

    machine: Machine
    distro: Distro
    answers: LinuxAnswers
    starts: int
    boot: int

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

    def invoke(self, request: str) -> str:
        """The answer to one request. Raises HostDown where there is none, because the machine is gone."""
        if not self.alive():
            raise HostDown
        answer = self.answers.invoke(request)
        if not self.alive():
            raise HostDown
        return answer


class LinuxHost:
    """The Linuxes of one simulated host."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: list[LinuxAnswers] = []

    def answers(self, distro: Distro) -> LinuxAnswers:
        """Of this very distro: one that is made anew knows nothing of what was in another."""
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
                return Listening(machine, distro, self.answers(distro), distro.starts, machine.boot)
        return None
