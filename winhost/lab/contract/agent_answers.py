"""Answers to the agent's JSON contract from a simulated Windows: what `Invoke-Winhost` answers on a real one."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from winhost.core.answers import Json, Key, Record, Unavailable, Unknown
from winhost.lab.contract.call_batch import Answer, Call, CallBatch, PipelineStopped
from winhost.lab.physics.cmdlet_host import HostDown
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.windows_errors import CmdletError, NotYet, not_administrator, own_error
from winhost.lab.physics.windows_files import FOLDER
from winhost.lab.physics.windows_software import MODELS
from winhost.resources.registry import WINDOWS

_SHUTTING_DOWN = 1115  # shutdown.exe: a shutdown is in progress already, which is what was asked for
_WITHIN = 300.0  # lab seconds
_SAID_OTHERWISE = {"PortForward": ("Ports are forwarded by administrators.",)}
# What is no place or size Hyper-V says, and not the script.
_WITH_OTHER_VALUES = ("AssignableDevice", "VmMmio")
# What was there before comes back, also where no plan could ask for it.
_BACK_TO: Mapping[str, tuple[Json, ...]] = {"Wsl": (None,), "GpuDriverModel": MODELS}
MARKS_FILE = f"{FOLDER}\\marks.txt"
_SLICE = 0.05  # real seconds between looks whether the pipeline was stopped


class AgentAnswers(CallBatch):
    """Of the agent on Windows, through which all its resources are read and set."""

    verbs = ("get", "set", "send", "restart")
    error = staticmethod(own_error)

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
            yield
        finally:
            self.machine.mutex.release()

    def _instances(self, resource: str, key: Key | None) -> list[Record]:
        self._check_known(resource)
        answer, known = self.machine.answer(resource), WINDOWS[resource]
        if isinstance(answer, Unavailable):
            raise NotYet(answer.unavailable)
        if isinstance(answer, Unknown):
            fault = answer.unknown
            raise CmdletError(fault.cmdlet, fault.category, fault.code, tuple(fault.hresults), fault.message)
        if (answer or known.absent) and key is not None and set(key) != set(known.key):
            raise self._bad_request(f"The key is {', '.join(sorted(known.key))}.")
        if key is None and resource in self.machine.listed_as:
            return [self.machine.listed_as[resource](record) for record in answer]
        asked = self.machine.known_as[resource](key) if key is not None and resource in self.machine.known_as else key
        found = [r for r in answer if all(_same(r.key[name], value) for name, value in (asked or {}).items())]
        return [Record(known.absent, key)] if known.absent is not None and key is not None and not found else found

    def _read_marks(self) -> list[str]:
        files = self.machine.files
        found = files.read(MARKS_FILE) if files.is_own(FOLDER) else None
        return (found or b"").decode().split("\n")[:-1]

    def _write_marks(self, marks: list[str]) -> None:
        if not marks:
            return self.machine.files.remove(MARKS_FILE)
        self.machine.files.make_folders(FOLDER)
        return self.machine.files.write(MARKS_FILE, "".join(f"{mark}\n" for mark in marks).encode())

    def _check_known(self, resource: str) -> None:
        if resource not in WINDOWS:
            raise own_error("UnknownNoun", "InvalidArgument", f"There is no resource {resource}.")

    def _check_settable(self, resource: str) -> None:
        self._check_can(resource, "set", resource in self.machine.changes)

    def _check_can(self, resource: str, verb: str, can: bool) -> None:
        self._check_known(resource)
        if not can:
            raise self._bad_request(f"{resource} cannot be asked to {verb}.")

    def _change(self, resource: str, key: Key, call: Call, before: Answer, stop: threading.Event) -> Answer:
        how = call.get("how") or {}
        within = _WITHIN if how.get("within") is None else float(how["within"])
        accepted, secret = frozenset(how.get("accept") or ()), str(how.get("secret") or "")
        asked = SetCall(key, call["desired"], accepted, within, stop, secret=secret)

        def change() -> bool | None:
            self._check_values(resource, asked)
            return self.machine.changes[resource](asked)

        return self._changed(resource, key, before, asked.warnings, change)

    def _check_values(self, resource: str, asked: SetCall) -> None:
        for fixed in (name for name in asked.desired if name not in WINDOWS[resource].sets):
            raise self._bad_request(f"{fixed} cannot be set.")
        if not self.machine.lab.administrator and any(resource in p.administrators_set for p in self.machine.parts):
            raise not_administrator(*_SAID_OTHERWISE.get(resource, ()))
        desired = {name: value for name, value in asked.desired.items() if value not in _BACK_TO.get(resource, ())}
        if resource not in _WITH_OTHER_VALUES and (wrong := WINDOWS[resource].wrong_value(desired)):
            raise self._bad_request(wrong)

    def _send(self, call: Call, _: threading.Event) -> Answer:
        resource, asked = str(call.get("resource", "")), call.get("key")
        self._check_can(resource, "send", resource == "StagedFile")
        if asked is None:
            raise self._bad_request("A send says of what.")
        found = self._instances(resource, asked)[0]
        if drift := self._differences(call.get("expect") or {}, found.state):
            return {"ok": False, "drift": drift, "before": dict(found.state), "warnings": []}
        self._meet_fault(resource, "send", after=False)
        received = self.machine.software.upload(found.key, call.get("piece"))
        self._meet_fault(resource, "send", after=True)
        return {"ok": True, **received, "warnings": []}

    def _restart(self, call: Call, _: threading.Event) -> Answer:
        resource = str(call.get("resource", ""))
        self._check_can(resource, "restart", resource == "Boot")
        self._meet_fault(resource, "restart", after=False)
        code, errors = self.machine.run_shutdown()
        if code not in (0, _SHUTTING_DOWN):
            raise own_error("RestartRefused", "InvalidResult", f"shutdown.exe: {code} {errors}")
        return {"ok": True, "restart": [{"system": "host"}], "warnings": []}


def _same(mine: str, asked: object) -> bool:
    # PowerShell's -ne does not look at case.
    return mine.casefold() == str(asked).casefold()
