"""Answers the agent's JSON calls for a simulated Windows, as `Invoke-Winhost` does on a real one.

Tests and demos can inject faults into single calls.
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
    MissingDependency,
    administrator_required,
    agent_error,
    bad_request,
    refuse_if,
)
from winhost.lab.physics.windows_files import FOLDER
from winhost.lab.physics.windows_software import MODELS
from winhost.resources.registry import WINDOWS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InjectedFault:
    """A fault in the next `times` calls of this resource and verb.

    seconds: lab seconds by which it delays a call; error: raised instead of the change, or after it with
    `after_change`. Without an error the call is only slow.
    """

    resource: str
    verb: str
    error: CmdletError | None = None
    seconds: float = 0.0
    after_change: bool = False
    times: int = 1


class InjectedFaults:
    """The faults that are still due on a machine. It is thread-safe."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lock = threading.Lock()
        self._pending: list[InjectedFault] = []

    def add(self, fault: InjectedFault) -> None:
        """Add a fault behind those that are due already."""
        with self._lock:
            self._pending += [fault] * fault.times

    def trigger(self, resource: str, verb: str, *, after_change: bool = False) -> None:
        """Raise or delay as the next fault says that is due for this call, before or after its change.

        Raises CmdletError.
        """
        with self._lock:
            fault = next((each for each in self._pending if (each.resource, each.verb) == (resource, verb)), None)
            if fault is None or fault.after_change is not after_change:
                return
            self._pending.remove(fault)
        self._machine.clock.sleep(fault.seconds)
        if fault.error is not None:
            raise fault.error


MARKS = "RunMarks"
_VERBS = ("get", "set", "send", "restart")
_DEFAULT_TIMEOUT = 300.0  # lab seconds
# Hyper-V refuses wrong values of this resource; its script does not check them.
_CHECKED_BY_HYPER_V = "VmMmio"
# Values that an undo may restore, though no plan can request them.
RESTORABLE_VALUES: Mapping[str, tuple[Json, ...]] = {"Wsl": (None,), "GpuDriverModel": MODELS}
MARKS_FILE = f"{FOLDER}\\marks.txt"
_POLL_SECONDS = 0.05  # real seconds between checks whether the pipeline was stopped
Answer = dict[str, Json]
Call = Mapping[str, Any]


class PipelineStopped(Exception):
    """The client stopped the pipeline. Changes made by then stay."""


class AgentAnswers:
    """Answers requests as the agent on Windows does, for all its sessions. faults: added by a test or a demo."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.faults = InjectedFaults(machine)

    def invoke(self, json_text: str, stop: threading.Event | None = None) -> str:
        """Answer one request. Raises HostDown when the host goes down meanwhile, and PipelineStopped."""
        boot, stop = self.machine.boot, stop or threading.Event()
        request = json.loads(json_text)
        calls = request.get("calls") or []
        exclusive = request.get("exclusive") or any(call.get("verb") != "get" for call in calls)
        session = self.machine.session_scope(lambda: self.machine.boot == boot)
        with session, self._mutex(boot, stop) if exclusive else nullcontext():
            answers = self._answers(calls, stop)
        if self.machine.boot != boot or not self.machine.accepts_connections():
            raise HostDown
        return json.dumps({"answers": answers})

    @contextmanager
    def _mutex(self, boot: int, stop: threading.Event) -> Iterator[None]:
        """Hold the host-wide mutex. Raises PipelineStopped or HostDown if either happens while it waits."""
        while not self.machine.mutex.acquire(timeout=_POLL_SECONDS):
            if stop.is_set():
                raise PipelineStopped
            if self.machine.boot != boot:
                raise HostDown
        try:
            if stop.is_set():  # the client has continued by now, and relies on the state that it reads
                raise PipelineStopped
            yield
        finally:
            self.machine.mutex.release()

    def _answers(self, calls: Sequence[Call], stop: threading.Event) -> list[Answer]:
        """Answer calls in order; a failed change skips all later changes. Raises PipelineStopped."""
        answers: list[Answer] = []
        failed = False
        for call in calls:
            changes = call.get("verb") != "get"
            if changes and failed:
                # No exception was raised, so there is no HRESULT.
                skipped = CmdletError("", "OperationStopped", "Winhost.Skipped", (), "A call before it failed.")
                answers.append(failure_answer(skipped))
                continue
            try:
                if call.get("verb") not in _VERBS:
                    raise bad_request(f"The verb is {', '.join(_VERBS[:-1])} or {_VERBS[-1]}.")
                answers.append(getattr(self, f"_{call['verb']}")(call, stop))
            except MissingDependency as missing:
                answers.append({"ok": False, "unavailable": missing.resource})
            except CmdletError as error:
                answers.append(failure_answer(error))
            failed = failed or (changes and not answers[-1]["ok"])
            if stop.is_set():
                raise PipelineStopped
        return answers

    def _get(self, call: Call, _: threading.Event) -> Answer:
        resource, key = str(call.get("resource", "")), call.get("key")
        self.faults.trigger(resource, "get")
        records = self._read(resource, key)
        if key is None:
            instances = [{"key": dict(r.key), "state": dict(r.state)} for r in records]
            return {"ok": True, "instances": instances, "warnings": []}
        return {"ok": True, "state": dict(records[0].state) if records else None, "warnings": []}

    def _set(self, call: Call, stop: threading.Event) -> Answer:
        resource, desired, key = str(call.get("resource", "")), call.get("desired"), call.get("key")
        if resource != MARKS:
            self._check_verb(resource, "set", resource in WINDOWS and bool(WINDOWS[resource].sets))
        if key is None or desired is None:
            raise bad_request("A set needs a key and desired properties.")
        records = self._read(resource, key)
        if not records:
            raise agent_error("NotFound", "ObjectNotFound", f"There is no such {resource}.")
        key, before = records[0].key, dict(records[0].state)
        if drift := self._differences(call.get("expect") or {}, before):
            return {"ok": False, "drift": drift, "before": before, "warnings": []}
        if not self._differences(desired, before):
            return {"ok": True, "before": before, "after": before, "restart": [], "warnings": []}
        if resource == MARKS:
            return self._run_change(resource, key, before, [], lambda: self._write_marks(desired["marks"]))
        return self._set_windows_resource(resource, key, call, before, stop)

    def _read(self, resource: str, key: Key | None) -> Sequence[Record]:
        return [Record({"marks": self._read_marks()})] if resource == MARKS else self._instances(resource, key)

    def _run_change(
        self, resource: str, key: Key, before: Answer, warnings: list[str], change: Callable[[], bool | None]
    ) -> Answer:
        """Run a change, which returns whether it needs a restart, and answer its call. Raises MissingDependency."""
        try:
            self.faults.trigger(resource, "set")
            restart = change()
            self.faults.trigger(resource, "set", after_change=True)
        except (CmdletError, LookupError, StopIteration) as error:
            fault = error if isinstance(error, CmdletError) else simulator_error(error)
            try:
                after = self._state(resource, key)
            except (CmdletError, MissingDependency):
                after = None
            return {**failure_answer(fault), "before": before, "after": after, "warnings": list(warnings)}
        restarts = [{"system": "host"}] if restart else []
        after = self._state(resource, key)
        return {"ok": True, "before": before, "after": after, "restart": restarts, "warnings": list(warnings)}

    def _state(self, resource: str, key: Key) -> Json:
        records = self._read(resource, key)
        return dict(records[0].state) if records else None

    def _differences(self, desired: Mapping[str, Json], state: Mapping[str, Json]) -> dict[str, Json]:
        if unknown := sorted(set(desired) - set(state)):
            raise bad_request(f"There is no property {', '.join(unknown)}.")
        return {
            name: {"expected": expected, "found": state[name]}
            for name, expected in desired.items()
            # Compared as JSON, where true is not 1.
            if json.dumps(expected, sort_keys=True) != json.dumps(state[name], sort_keys=True)
        }

    def _instances(self, resource: str, key: Key | None) -> list[Record]:
        """Return the instances that match the key. Raises CmdletError and MissingDependency."""
        self._check_known(resource)
        answer, declared = self.machine.answer(resource), WINDOWS[resource]
        if isinstance(answer, Unavailable):
            raise MissingDependency(answer.unavailable)
        if isinstance(answer, Unknown):
            fault = answer.unknown
            raise CmdletError(fault.cmdlet, fault.category, fault.code, tuple(fault.hresults), fault.message)
        if (answer or declared.absent) and key is not None and set(key) != set(declared.key):
            raise bad_request(f"The key is {', '.join(sorted(declared.key))}.")
        if key is None and resource in self.machine.listing_views:
            return [self.machine.listing_views[resource](record) for record in answer]
        if key is None:
            return list(answer)
        resolved_key = self.machine.key_resolvers[resource](key) if resource in self.machine.key_resolvers else key
        # Case does not matter to PowerShell's -ne.
        lowered_key = {name: str(value).casefold() for name, value in resolved_key.items()}
        matches = [r for r in answer if all(r.key[name].casefold() == value for name, value in lowered_key.items())]
        return matches if matches or declared.absent is None else [Record(declared.absent, key)]

    def _read_marks(self) -> list[str]:
        files = self.machine.files
        if files.has_folder(FOLDER) and not self.machine.lab.administrator:
            raise administrator_required()
        content = files.read(MARKS_FILE) if files.is_owned(FOLDER) else None
        return (content or b"").decode().split("\n")[:-1]

    def _write_marks(self, marks: list[str]) -> None:
        if not marks:
            return self.machine.files.remove(MARKS_FILE)
        self.machine.files.make_folders(FOLDER)
        return self.machine.files.write(MARKS_FILE, "".join(f"{mark}\n" for mark in marks).encode())

    def _check_known(self, resource: str) -> None:
        refuse_if(resource not in WINDOWS, "UnknownNoun", resource=resource)

    def _check_verb(self, resource: str, verb: str, can: bool) -> None:
        self._check_known(resource)
        if not can:
            raise bad_request(f"{resource} does not support {verb}.")

    def _set_windows_resource(
        self, resource: str, key: Key, call: Call, before: Answer, stop: threading.Event
    ) -> Answer:
        options = call.get("how") or {}
        mark = options.get("mark")  # written before the change
        try:
            if mark and self.machine.lab.administrator and mark not in (marks := self._read_marks()):
                self._write_marks([*marks, mark])
        except CmdletError as error:
            return {**failure_answer(error), "before": before, "after": before}
        timeout = _DEFAULT_TIMEOUT if options.get("within") is None else float(options["within"])
        accepted, secret = frozenset(options.get("accept") or ()), str(options.get("secret") or "")
        set_call = SetCall(resource, key, call["desired"], accepted, timeout, stop, secret=secret)

        def change() -> bool | None:
            self._check_values(resource, set_call)
            return self.machine.changes.get(resource, self.machine.set_record)(set_call)

        return self._run_change(resource, key, before, set_call.warnings, change)

    def _check_values(self, resource: str, set_call: SetCall) -> None:
        if fixed := [name for name in set_call.desired if name not in WINDOWS[resource].sets]:
            raise bad_request(f"{fixed[0]} cannot be set.")
        if not self.machine.lab.administrator and any(resource in p.administrator_settable for p in self.machine.parts):
            raise administrator_required()
        desired = {
            name: value for name, value in set_call.desired.items() if value not in RESTORABLE_VALUES.get(resource, ())
        }
        if resource != _CHECKED_BY_HYPER_V and (wrong := WINDOWS[resource].check_values(desired)):
            raise bad_request(wrong)

    def _send(self, call: Call, _: threading.Event) -> Answer:
        resource, key = str(call.get("resource", "")), call.get("key")
        self._check_verb(resource, "send", resource == "StagedFile")
        if key is None:
            raise bad_request("A send needs a key.")
        record = self._instances(resource, key)[0]
        if drift := self._differences(call.get("expect") or {}, record.state):
            return {"ok": False, "drift": drift, "before": dict(record.state), "warnings": []}
        self.faults.trigger(resource, "send")
        received = self.machine.software.upload(record.key, call.get("piece"))
        self.faults.trigger(resource, "send", after_change=True)
        return {"ok": True, **received, "warnings": []}

    def _restart(self, call: Call, _: threading.Event) -> Answer:
        resource = str(call.get("resource", ""))
        self._check_verb(resource, "restart", resource == "Boot")
        self.faults.trigger(resource, "restart")
        self.machine.restart_computer()
        return {"ok": True, "restart": [{"system": "host"}], "warnings": []}


def failure_answer(error: CmdletError) -> Answer:
    """Return the agent's answer for this error."""
    return {"ok": False, "error": error.as_json(), "warnings": []}


def simulator_error(error: Exception) -> CmdletError:
    """Return the error for a fault or limit of the simulator itself: no real machine answers like this."""
    log.debug("the simulator cannot do this", exc_info=error)
    text = f"The simulator cannot do this ({error!r}). What a real machine would do is unknown; please report it."
    return CmdletError("", "NotImplemented", "Lab.NotStoodIn", (), text)
