"""Answers to the agent's JSON contract from a simulated host: what `Invoke-Winhost` answers on a real one."""

import json
import threading
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from winhost.lab.contract.injected_faults import InjectedFaults
from winhost.lab.contract.property_changes import SENDERS, SETTERS
from winhost.lab.contract.set_call import SetCall
from winhost.lab.physics.cmdlet_host import HostDown
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, NotYet, own_error
from winhost.model.facts import Json, Key, Record, Unavailable, Unknown
from winhost.resources.registry import WINDOWS

Answer = dict[str, Json]

_SHUTTING_DOWN = 1115  # shutdown.exe: a shutdown is in progress already, which is what was asked for
_SLICE = 0.05  # real seconds between looks whether the pipeline was stopped


class PipelineStopped(Exception):
    """The client stopped the pipeline; what was done by then stays done."""


class AgentAnswers:
    """One for each machine, for all its sessions. `faults` is what a test or a rehearsal has ordered."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.faults = InjectedFaults()

    def invoke(self, json_text: str, stop: threading.Event | None = None) -> str:
        """The answer to one request. Raises HostDown when the host goes down meanwhile, and PipelineStopped."""
        boot, stop = self.machine.boot, stop or threading.Event()
        request = json.loads(json_text)
        calls = request.get("calls") or []
        exclusive = request.get("exclusive") or any(call.get("verb") != "get" for call in calls)
        with _Mutex(self.machine, boot, stop) if exclusive else nullcontext():
            answers = self._batch(calls, stop)
        if self.machine.boot != boot or not self.machine.accepting():
            raise HostDown
        return json.dumps({"answers": answers})

    def _batch(self, calls: list[Mapping[str, Json]], stop: threading.Event) -> list[Answer]:
        answers: list[Answer] = []
        failed = False
        for call in calls:
            changes = call.get("verb") != "get"
            if changes and failed:
                # Nothing was raised, so there is no HRESULT.
                skipped = CmdletError("", "OperationStopped", "Winhost.Skipped", (), "A call before it failed.")
                answers.append(_failure(skipped))
                continue
            answers.append(self._call(call, stop))
            failed = failed or (changes and not answers[-1]["ok"])
            if stop.is_set():
                raise PipelineStopped
        return answers

    def _call(self, call: Mapping[str, Json], stop: threading.Event) -> Answer:
        try:
            match call.get("verb"):
                case "get":
                    return self._get(call)
                case "set":
                    return self._set(call, stop)
                case "send":
                    return self._send(call)
                case "restart":
                    return self._restart(call)
                case _:
                    raise own_error("BadRequest", "InvalidArgument", "The verb is get, set, send or restart.")
        except NotYet as missing:
            return {"ok": False, "unavailable": missing.resource}
        except CmdletError as error:
            return _failure(error)

    # ---- get

    def _get(self, call: Mapping[str, Json]) -> Answer:
        resource, key = str(call.get("resource", "")), call.get("key")
        self._meet_fault(resource, "get", after=False)
        instances = self._instances(resource, key)
        if key is None:
            found = [{"key": dict(r.key), "state": dict(r.state)} for r in instances]
            return {"ok": True, "instances": found, "warnings": []}
        return {"ok": True, "state": dict(instances[0].state) if instances else None, "warnings": []}

    def _instances(self, resource: str, key: Key | None) -> list[Record]:
        """Those that match the key. Raises CmdletError and NotYet."""
        if resource not in WINDOWS:
            raise own_error("UnknownNoun", "InvalidArgument", f"There is no resource {resource}.")
        answer = self.machine.answer(resource)
        if isinstance(answer, Unavailable):
            raise NotYet(answer.unavailable)
        if isinstance(answer, Unknown):
            fault = answer.unknown
            raise CmdletError(fault.cmdlet, fault.category, fault.code, tuple(fault.hresults), fault.message)
        if (answer or WINDOWS[resource].absent) and key is not None and set(key) != set(WINDOWS[resource].key):
            raise own_error("BadRequest", "InvalidArgument", f"The key is {', '.join(sorted(WINDOWS[resource].key))}.")
        asked = self.machine.known_as[resource](key) if key is not None and resource in self.machine.known_as else key
        found = [r for r in answer if all(_same(r.key[name], value) for name, value in (asked or {}).items())]
        absent = WINDOWS[resource].absent
        return [Record(absent, key)] if absent is not None and key is not None and not found else found

    # ---- set

    def _set(self, call: Mapping[str, Json], stop: threading.Event) -> Answer:
        resource, desired, asked = str(call.get("resource", "")), call.get("desired"), call.get("key")
        self._can(resource, "set", (*SETTERS, *self.machine.changes))
        if asked is None or desired is None:
            raise own_error("BadRequest", "InvalidArgument", "A set says of what, and what it wants.")
        instances = self._instances(resource, asked)
        if not instances:
            raise own_error("NotFound", "ObjectNotFound", f"There is no such {resource}.")
        key, before = instances[0].key, dict(instances[0].state)
        drift = _differences(call.get("expect") or {}, before)
        if drift:
            return {"ok": False, "drift": drift, "before": before, "warnings": []}
        if not _differences(desired, before):
            return {"ok": True, "before": before, "after": before, "restart": [], "warnings": []}
        return self._change(resource, _call(key, desired, call.get("how") or {}, stop), before)

    def _change(self, resource: str, call: SetCall, before: Mapping[str, Json]) -> Answer:
        seen: Answer = {"before": dict(before)}
        try:
            for fixed in (name for name in call.desired if name not in WINDOWS[resource].sets):
                raise own_error("BadRequest", "InvalidArgument", f"{fixed} cannot be set.")
            self._meet_fault(resource, "set", after=False)
            restart = self._do(resource, call)
            self._meet_fault(resource, "set", after=True)
        except CmdletError as error:
            return {
                **_failure(error),
                **seen,
                "after": self._again(resource, call.key),
                "warnings": list(call.warnings),
            }
        except NotYet as missing:
            return {"ok": False, "unavailable": missing.resource}
        restarts = [{"system": "host"}] if restart else []
        after = self._read(resource, call.key)
        return {"ok": True, **seen, "after": after, "restart": restarts, "warnings": list(call.warnings)}

    def _do(self, resource: str, call: SetCall) -> bool:
        """Whether it takes a restart."""
        if resource in SETTERS:
            return SETTERS[resource](self.machine, call)
        self.machine.changes[resource](call.key, call.desired)
        return False

    def _again(self, resource: str, key: Key) -> Json:
        try:
            return self._read(resource, key)
        except (CmdletError, NotYet):
            return None

    def _read(self, resource: str, key: Key) -> Json:
        found = self._instances(resource, key)
        return dict(found[0].state) if found else None

    # ---- send

    def _send(self, call: Mapping[str, Json]) -> Answer:
        resource, asked = str(call.get("resource", "")), call.get("key")
        self._can(resource, "send", SENDERS)
        if asked is None:
            raise own_error("BadRequest", "InvalidArgument", "A send says of what.")
        found = self._instances(resource, asked)[0]
        if drift := _differences(call.get("expect") or {}, found.state):
            return {"ok": False, "drift": drift, "before": dict(found.state), "warnings": []}
        self._meet_fault(resource, "send", after=False)
        received = SENDERS[resource](self.machine, found.key, call.get("piece"))
        self._meet_fault(resource, "send", after=True)
        return {"ok": True, **received, "warnings": []}

    # ---- restart

    def _restart(self, call: Mapping[str, Json]) -> Answer:
        self._can(str(call.get("resource", "")), "restart", ("Boot",))
        self._meet_fault("Boot", "restart", after=False)
        code, errors = self.machine.run_shutdown()
        if code not in (0, _SHUTTING_DOWN):
            raise own_error("RestartRefused", "InvalidResult", f"shutdown.exe: {code} {errors}")
        return {"ok": True, "restart": [{"system": "host"}], "warnings": []}

    def _can(self, resource: str, verb: str, resources: Collection[str]) -> None:
        if resource not in WINDOWS:
            raise own_error("UnknownNoun", "InvalidArgument", f"There is no resource {resource}.")
        if resource not in resources:
            raise own_error("BadRequest", "InvalidArgument", f"{resource} cannot be asked to {verb}.")

    def _meet_fault(self, resource: str, verb: str, *, after: bool) -> None:
        fault = self.faults.take(resource, verb, changed=after)
        if fault is None:
            return
        self.machine.clock.sleep(fault.seconds)
        if fault.error is not None:
            raise fault.error


class _Mutex:
    """The host-wide mutex, waited for until the pipeline is stopped or the host goes down."""

    def __init__(self, machine: Machine, boot: int, stop: threading.Event) -> None:
        self._machine, self._boot, self._stop = machine, boot, stop

    def __enter__(self) -> None:
        while not self._machine.mutex.acquire(timeout=_SLICE):
            if self._stop.is_set():
                raise PipelineStopped
            if self._machine.boot != self._boot:
                raise HostDown

    def __exit__(self, *_: object) -> None:
        self._machine.mutex.release()


def _call(key: Key, desired: Mapping[str, Json], how: Mapping[str, Any], stop: threading.Event) -> SetCall:
    call = SetCall(key, desired, frozenset(how.get("accept") or ()), stop=stop)
    return call if how.get("within") is None else replace(call, within=float(how["within"]))


def _failure(error: CmdletError) -> Answer:
    return {"ok": False, "error": error.as_json(), "warnings": []}


def _differences(desired: Mapping[str, Json], state: Mapping[str, Json]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, expected in desired.items():
        if name not in state:
            raise own_error("BadRequest", "InvalidArgument", f"There is no property {name}.")
        # As JSON, because true is not 1 there.
        if json.dumps(expected, sort_keys=True) != json.dumps(state[name], sort_keys=True):
            found[name] = {"expected": expected, "found": state[name]}
    return found


def _same(mine: str, asked: object) -> bool:
    # PowerShell's -ne does not look at case.
    return mine.casefold() == str(asked).casefold()
