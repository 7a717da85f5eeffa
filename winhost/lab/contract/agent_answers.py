"""Answers to the agent's JSON contract from a simulated Windows: what `Invoke-Winhost` answers on a real one, and the
trouble that a test or a rehearsal orders, call by call.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from winhost.core.answers import Json, Key, Record, Unavailable, Unknown
from winhost.core.dataclass import dataclass
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import (
    CmdletError,
    NotYet,
    bad_request,
    not_administrator,
    own_error,
    refuse,
)
from winhost.lab.physics.windows_files import FOLDER
from winhost.lab.physics.windows_software import MODELS
from winhost.resources.registry import WINDOWS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InjectedFault:
    """Meets the next `times` calls of this resource and verb. `seconds`: lab seconds that each takes longer.

    `error` is raised instead of the change, or after it where `changed` says so; without one the call is only slow.
    """

    resource: str
    verb: str
    error: CmdletError | None = None
    seconds: float = 0.0
    changed: bool = False
    times: int = 1


class InjectedFaults:
    """The faults still to come on a machine. It is thread-safe."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lock = threading.Lock()
        self._coming: list[InjectedFault] = []

    def add(self, fault: InjectedFault) -> None:
        """Order a fault, after those that were ordered before."""
        with self._lock:
            self._coming += [fault] * fault.times

    def meet(self, resource: str, verb: str, *, changed: bool = False) -> None:
        """Let a call meet its next fault, if one is due. changed: the call has made its change. Raises CmdletError."""
        with self._lock:
            fault = next((each for each in self._coming if (each.resource, each.verb) == (resource, verb)), None)
            if fault is None or fault.changed is not changed:
                return
            self._coming.remove(fault)
        self._machine.clock.sleep(fault.seconds)
        if fault.error is not None:
            raise fault.error


MARKS = "RunMarks"
_VERBS = ("get", "set", "send", "restart")
_WITHIN = 300.0  # lab seconds
# Hyper-V refuses bad values of this one, not the script.
_WITH_OTHER_VALUES = "VmMmio"
# Values that were there before and are restored, though no plan asks for them.
BACK_TO: Mapping[str, tuple[Json, ...]] = {"Wsl": (None,), "GpuDriverModel": MODELS}
MARKS_FILE = f"{FOLDER}\\marks.txt"
_SLICE = 0.05  # real seconds between looks whether the pipeline was stopped
Answer = dict[str, Json]
Call = Mapping[str, Any]


class PipelineStopped(Exception):
    """The client stopped the pipeline; what was done by then stays done."""


class AgentAnswers:
    """The answers of the agent on Windows, for all its sessions. `faults` are those that a test or a demo has
    ordered.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.faults = InjectedFaults(machine)

    def invoke(self, json_text: str, stop: threading.Event | None = None) -> str:
        """The answer to one request. Raises HostDown when the host goes down meanwhile, and PipelineStopped."""
        boot, stop = self.machine.boot, stop or threading.Event()
        request = json.loads(json_text)
        calls = request.get("calls") or []
        exclusive = request.get("exclusive") or any(call.get("verb") != "get" for call in calls)
        session = self.machine.for_session(lambda: self.machine.boot == boot)
        with session, self._mutex(boot, stop) if exclusive else nullcontext():
            answers = self._answers(calls, stop)
        if self.machine.boot != boot or not self.machine.accepting():
            raise HostDown
        return json.dumps({"answers": answers})

    @contextmanager
    def _mutex(self, boot: int, stop: threading.Event) -> Iterator[None]:
        """The host-wide mutex, waited for until the pipeline is stopped or the host goes down."""
        while not self.machine.mutex.acquire(timeout=_SLICE):
            if stop.is_set():
                raise PipelineStopped
            if self.machine.boot != boot:
                raise HostDown
        try:
            if stop.is_set():  # whoever asked has gone on by now, and counts on what is read
                raise PipelineStopped
            yield
        finally:
            self.machine.mutex.release()

    def _answers(self, calls: Sequence[Call], stop: threading.Event) -> list[Answer]:
        """Answer calls in order; after a change that failed, no other is begun. Raises PipelineStopped."""
        answers: list[Answer] = []
        failed = False
        for call in calls:
            changes = call.get("verb") != "get"
            if changes and failed:
                # Nothing was raised, so there is no HRESULT.
                skipped = CmdletError("", "OperationStopped", "Winhost.Skipped", (), "A call before it failed.")
                answers.append(failure(skipped))
                continue
            try:
                if call.get("verb") not in _VERBS:
                    raise bad_request(f"The verb is {', '.join(_VERBS[:-1])} or {_VERBS[-1]}.")
                answers.append(getattr(self, f"_{call['verb']}")(call, stop))
            except NotYet as missing:
                answers.append({"ok": False, "unavailable": missing.resource})
            except CmdletError as error:
                answers.append(failure(error))
            failed = failed or (changes and not answers[-1]["ok"])
            if stop.is_set():
                raise PipelineStopped
        return answers

    def _get(self, call: Call, _: threading.Event) -> Answer:
        resource, key = str(call.get("resource", "")), call.get("key")
        self.faults.meet(resource, "get")
        found = self._found(resource, key)
        if key is None:
            every = [{"key": dict(r.key), "state": dict(r.state)} for r in found]
            return {"ok": True, "instances": every, "warnings": []}
        return {"ok": True, "state": dict(found[0].state) if found else None, "warnings": []}

    def _set(self, call: Call, stop: threading.Event) -> Answer:
        resource, desired, asked = str(call.get("resource", "")), call.get("desired"), call.get("key")
        if resource != MARKS:
            self._check_can(resource, "set", resource in WINDOWS and bool(WINDOWS[resource].sets))
        if asked is None or desired is None:
            raise bad_request("A set says of what, and what it wants.")
        found = self._found(resource, asked)
        if not found:
            raise own_error("NotFound", "ObjectNotFound", f"There is no such {resource}.")
        key, before = found[0].key, dict(found[0].state)
        if drift := self._differences(call.get("expect") or {}, before):
            return {"ok": False, "drift": drift, "before": before, "warnings": []}
        if not self._differences(desired, before):
            return {"ok": True, "before": before, "after": before, "restart": [], "warnings": []}
        if resource == MARKS:
            return self._changed(resource, key, before, [], lambda: self._write_marks(desired["marks"]))
        return self._change(resource, key, call, before, stop)

    def _found(self, resource: str, key: Key | None) -> Sequence[Record]:
        return [Record({"marks": self._read_marks()})] if resource == MARKS else self._instances(resource, key)

    def _changed(
        self, resource: str, key: Key, before: Answer, warnings: list[str], change: Callable[[], bool | None]
    ) -> Answer:
        """The answer of a change, which tells whether it takes a restart. Raises NotYet."""
        try:
            self.faults.meet(resource, "set")
            restart = change()
            self.faults.meet(resource, "set", changed=True)
        except (CmdletError, LookupError, StopIteration) as error:
            fault = error if isinstance(error, CmdletError) else not_simulated(error)
            try:
                after = self._state(resource, key)
            except (CmdletError, NotYet):
                after = None
            return {**failure(fault), "before": before, "after": after, "warnings": list(warnings)}
        restarts = [{"system": "host"}] if restart else []
        after = self._state(resource, key)
        return {"ok": True, "before": before, "after": after, "restart": restarts, "warnings": list(warnings)}

    def _state(self, resource: str, key: Key) -> Json:
        found = self._found(resource, key)
        return dict(found[0].state) if found else None

    def _differences(self, desired: Mapping[str, Json], state: Mapping[str, Json]) -> dict[str, Json]:
        if unknown := sorted(set(desired) - set(state)):
            raise bad_request(f"There is no property {', '.join(unknown)}.")
        return {
            name: {"expected": expected, "found": state[name]}
            for name, expected in desired.items()
            # As JSON, because true is not 1 there.
            if json.dumps(expected, sort_keys=True) != json.dumps(state[name], sort_keys=True)
        }

    def _instances(self, resource: str, key: Key | None) -> list[Record]:
        """The instances that match the key. Raises CmdletError and NotYet."""
        self._check_known(resource)
        answer, known = self.machine.answer(resource), WINDOWS[resource]
        if isinstance(answer, Unavailable):
            raise NotYet(answer.unavailable)
        if isinstance(answer, Unknown):
            fault = answer.unknown
            raise CmdletError(fault.cmdlet, fault.category, fault.code, tuple(fault.hresults), fault.message)
        if (answer or known.absent) and key is not None and set(key) != set(known.key):
            raise bad_request(f"The key is {', '.join(sorted(known.key))}.")
        if key is None and resource in self.machine.listed_as:
            return [self.machine.listed_as[resource](record) for record in answer]
        asked = self.machine.known_as[resource](key) if key is not None and resource in self.machine.known_as else key
        # As PowerShell's -ne, which does not look at case.
        wanted = {name: str(value).casefold() for name, value in (asked or {}).items()}
        found = [r for r in answer if all(r.key[name].casefold() == value for name, value in wanted.items())]
        return [Record(known.absent, key)] if known.absent is not None and key is not None and not found else found

    def _read_marks(self) -> list[str]:
        files = self.machine.files
        if files.has_folder(FOLDER) and not self.machine.lab.administrator:
            raise not_administrator()
        found = files.read(MARKS_FILE) if files.is_own(FOLDER) else None
        return (found or b"").decode().split("\n")[:-1]

    def _write_marks(self, marks: list[str]) -> None:
        if not marks:
            return self.machine.files.remove(MARKS_FILE)
        self.machine.files.make_folders(FOLDER)
        return self.machine.files.write(MARKS_FILE, "".join(f"{mark}\n" for mark in marks).encode())

    def _check_known(self, resource: str) -> None:
        refuse(resource not in WINDOWS, "UnknownNoun", resource=resource)

    def _check_can(self, resource: str, verb: str, can: bool) -> None:
        self._check_known(resource)
        if not can:
            raise bad_request(f"{resource} cannot be asked to {verb}.")

    def _change(self, resource: str, key: Key, call: Call, before: Answer, stop: threading.Event) -> Answer:
        how = call.get("how") or {}
        mark = how.get("mark")  # which the controller wants kept from before the change
        try:
            if mark and self.machine.lab.administrator and mark not in (marks := self._read_marks()):
                self._write_marks([*marks, mark])
        except CmdletError as error:
            return {**failure(error), "before": before, "after": before}
        within = _WITHIN if how.get("within") is None else float(how["within"])
        accepted, secret = frozenset(how.get("accept") or ()), str(how.get("secret") or "")
        asked = SetCall(resource, key, call["desired"], accepted, within, stop, secret=secret)

        def change() -> bool | None:
            self._check_values(resource, asked)
            return self.machine.changes.get(resource, self.machine.set_record)(asked)

        return self._changed(resource, key, before, asked.warnings, change)

    def _check_values(self, resource: str, asked: SetCall) -> None:
        if fixed := [name for name in asked.desired if name not in WINDOWS[resource].sets]:
            raise bad_request(f"{fixed[0]} cannot be set.")
        if not self.machine.lab.administrator and any(resource in p.administrators_set for p in self.machine.parts):
            raise not_administrator()
        desired = {name: value for name, value in asked.desired.items() if value not in BACK_TO.get(resource, ())}
        if resource != _WITH_OTHER_VALUES and (wrong := WINDOWS[resource].check_values(desired)):
            raise bad_request(wrong)

    def _send(self, call: Call, _: threading.Event) -> Answer:
        resource, asked = str(call.get("resource", "")), call.get("key")
        self._check_can(resource, "send", resource == "StagedFile")
        if asked is None:
            raise bad_request("A send says of what.")
        found = self._instances(resource, asked)[0]
        if drift := self._differences(call.get("expect") or {}, found.state):
            return {"ok": False, "drift": drift, "before": dict(found.state), "warnings": []}
        self.faults.meet(resource, "send")
        received = self.machine.software.upload(found.key, call.get("piece"))
        self.faults.meet(resource, "send", changed=True)
        return {"ok": True, **received, "warnings": []}

    def _restart(self, call: Call, _: threading.Event) -> Answer:
        resource = str(call.get("resource", ""))
        self._check_can(resource, "restart", resource == "Boot")
        self.faults.meet(resource, "restart")
        self.machine.restart_computer()
        return {"ok": True, "restart": [{"system": "host"}], "warnings": []}


def failure(error: CmdletError) -> Answer:
    """The answer of an agent that met this error."""
    return {"ok": False, "error": error.as_json(), "warnings": []}


def not_simulated(error: Exception) -> CmdletError:
    """The simulator's own fault or limit, which must not read as an answer of the machine."""
    log.debug("the simulated host has nothing that this is about", exc_info=error)
    text = f"The simulator cannot do this ({error!r}). What a real machine would do is unknown; please report it."
    return CmdletError("", "NotImplemented", "Lab.NotStoodIn", (), text)
