"""What the agents of a simulated Windows and of the Linux in it have in common: how they answer a batch of calls."""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from winhost.core.answers import Json, Key, Record
from winhost.lab.contract.injected_faults import InjectedFaults
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, NotYet

MARKS = "RunMarks"
Answer = dict[str, Json]
Call = Mapping[str, Any]


class PipelineStopped(Exception):
    """The client stopped the pipeline; what was done by then stays done."""


class CallBatch(ABC):
    """One for each agent, for all its sessions. `faults` are those that a test or a demo has ordered."""

    verbs: Sequence[str]
    error: Callable[[str, str, str], CmdletError]
    """Makes an error of the agent itself, of its code, category and message."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.faults = InjectedFaults()

    @abstractmethod
    def _instances(self, resource: str, key: Key | None) -> Sequence[Record]:
        """Those that match the key. Raises CmdletError and NotYet."""

    @abstractmethod
    def _read_marks(self) -> list[str]:
        """What runs changed there, as their controllers say it."""

    @abstractmethod
    def _write_marks(self, marks: list[str]) -> None:
        """Raises CmdletError where they cannot be kept."""

    @abstractmethod
    def _check_settable(self, resource: str) -> None:
        """Raises CmdletError for what no agent sets."""

    @abstractmethod
    def _change(self, resource: str, key: Key, call: Call, before: Answer, stop: threading.Event) -> Answer:
        """The answer to a set that has something to change. Raises CmdletError and NotYet."""

    def _answers(self, calls: Sequence[Call], stop: threading.Event) -> list[Answer]:
        """After a change that failed no other is begun. Raises PipelineStopped."""
        answers: list[Answer] = []
        failed = False
        for call in calls:
            changes = call.get("verb") != "get"
            if changes and failed:
                # Nothing was raised, so there is no HRESULT.
                skipped = CmdletError("", "OperationStopped", "Winhost.Skipped", (), "A call before it failed.")
                answers.append(failure(skipped))
                continue
            answers.append(self._answer(call, stop))
            failed = failed or (changes and not answers[-1]["ok"])
            if stop.is_set():
                raise PipelineStopped
        return answers

    def _answer(self, call: Call, stop: threading.Event) -> Answer:
        try:
            if call.get("verb") not in self.verbs:
                raise self._bad_request(f"The verb is {', '.join(self.verbs[:-1])} or {self.verbs[-1]}.")
            answer: Answer = getattr(self, f"_{call['verb']}")(call, stop)
        except NotYet as missing:
            return {"ok": False, "unavailable": missing.resource}
        except CmdletError as error:
            return failure(error)
        return answer

    def _get(self, call: Call, _: threading.Event) -> Answer:
        resource, key = str(call.get("resource", "")), call.get("key")
        self._meet_fault(resource, "get", after=False)
        found = self._found(resource, key)
        if key is None:
            every = [{"key": dict(r.key), "state": dict(r.state)} for r in found]
            return {"ok": True, "instances": every, "warnings": []}
        return {"ok": True, "state": dict(found[0].state) if found else None, "warnings": []}

    def _set(self, call: Call, stop: threading.Event) -> Answer:
        resource, desired, asked = str(call.get("resource", "")), call.get("desired"), call.get("key")
        if resource != MARKS:
            self._check_settable(resource)
        if asked is None or desired is None:
            raise self._bad_request("A set says of what, and what it wants.")
        found = self._found(resource, asked)
        if not found:
            raise self.error("NotFound", "ObjectNotFound", f"There is no such {resource}.")
        key, before = found[0].key, dict(found[0].state)
        if drift := self._differences(call.get("expect") or {}, before):
            return {"ok": False, "drift": drift, "before": before, "warnings": []}
        if not self._differences(desired, before):
            return {"ok": True, "before": before, "after": before, "restart": [], "warnings": []}
        if resource == MARKS:
            return self._changed(resource, key, before, [], lambda: self._write_marks(desired["marks"]))
        return self._mark(call, before) or self._change(resource, key, call, before, stop)

    def _mark(self, call: Call, before: Answer) -> Answer | None:
        """The line that the controller wants kept from before the change, or why it cannot be."""
        mark, marks = (call.get("how") or {}).get("mark"), self._read_marks()
        try:
            if mark and mark not in marks:
                self._write_marks([*marks, mark])
        except CmdletError as error:
            return {**failure(error), "before": before, "after": before}
        return None

    def _found(self, resource: str, key: Key | None) -> Sequence[Record]:
        return [Record({"marks": self._read_marks()})] if resource == MARKS else self._instances(resource, key)

    def _changed(
        self, resource: str, key: Key, before: Answer, warnings: list[str], change: Callable[[], bool | None]
    ) -> Answer:
        """The answer of a change, which tells whether it takes a restart. Raises NotYet."""
        try:
            self._meet_fault(resource, "set", after=False)
            restart = change()
            self._meet_fault(resource, "set", after=True)
        except CmdletError as error:
            after = self._state(resource, key, or_none=True)
            return {**failure(error), "before": before, "after": after, "warnings": list(warnings)}
        restarts = [{"system": "host"}] if restart else []
        after = self._state(resource, key)
        return {"ok": True, "before": before, "after": after, "restart": restarts, "warnings": list(warnings)}

    def _state(self, resource: str, key: Key, *, or_none: bool = False) -> Json:
        try:
            found = self._found(resource, key)
        except (CmdletError, NotYet):
            if or_none:
                return None
            raise
        return dict(found[0].state) if found else None

    def _meet_fault(self, resource: str, verb: str, *, after: bool) -> None:
        fault = self.faults.take(resource, verb, changed=after)
        if fault is None:
            return
        self.machine.clock.sleep(fault.seconds)
        if fault.error is not None:
            raise fault.error

    def _bad_request(self, message: str) -> CmdletError:
        return self.error("BadRequest", "InvalidArgument", message)

    def _differences(self, desired: Mapping[str, Json], state: Mapping[str, Json]) -> dict[str, Json]:
        if unknown := sorted(set(desired) - set(state)):
            raise self._bad_request(f"There is no property {', '.join(unknown)}.")
        return {
            name: {"expected": expected, "found": state[name]}
            for name, expected in desired.items()
            # As JSON, because true is not 1 there.
            if json.dumps(expected, sort_keys=True) != json.dumps(state[name], sort_keys=True)
        }


def failure(error: CmdletError) -> Answer:
    """How an agent tells of an error."""
    return {"ok": False, "error": error.as_json(), "warnings": []}
