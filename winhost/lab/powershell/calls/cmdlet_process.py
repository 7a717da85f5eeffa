"""One PowerShell process on a simulated host: it asks cmdlets by their names and parameters, and gets objects."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from winhost.lab.physics.parts import STANDINS
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.powershell.standins import cmdlets

BoundParameters = Mapping[str, Any]
Answer = Callable[["CmdletProcess", BoundParameters], Iterable[Any]]

_ANSWERS: dict[str, tuple[frozenset[str], Answer]] = {}
_LOOK = ("Get", "Test", "Read", "Open")  # verbs of what changes nothing


def answers(name: str, *parameters: str) -> Callable[[Answer], Answer]:
    """Register the answer to calls of `name` with these parameters; any other parameter is refused, not ignored."""

    def note(answer: Answer) -> Answer:
        _ANSWERS[name] = (frozenset(parameters), answer)
        return answer

    return note


def calls(rows: Mapping[str, Callable[[Machine, BoundParameters], Any]]) -> None:
    """Those that are one call of the host, by the name and the parameters. One of them gives nothing by None, and
    several objects by a list.
    """
    for line, call in rows.items():
        answers(*line.split())(partial(_one_call, call))


def _one_call(call: Callable[[Machine, BoundParameters], Any], process: "CmdletProcess", bound: BoundParameters) -> Any:
    found = call(process.machine, bound)
    return found if isinstance(found, list) else () if found is None else [found]


class CmdletProcess:
    """One PowerShell process on one host. Time here is what that process has slept, in lab seconds."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.slept = 0.0
        self.stopping: dict[str, float] = {}  # VMs whose guests were asked to stop, and when they have
        self.jobs = 0  # that nobody has removed
        self.has_mutex = False

    def run(self, name: str, bound: BoundParameters) -> list[Any]:
        """The objects that the cmdlet gives. Raises CmdletError, HostDown."""
        known, answer = _ANSWERS.get(name) or _declared(name)
        if answer is None or set(bound) - known:
            what = "such a call" if answer is None else ", ".join(f"-{p}" for p in sorted(set(bound) - known))
            raise self.machine.fail("not-stood-in", name, what=what)
        module = cmdlets()[name]["module"] if name in cmdlets() else ""
        if name.split("-")[0] in _LOOK:
            with self.machine.reading(name, module):
                return list(answer(self, bound))
        return list(answer(self, bound))

    def close(self) -> None:
        """The process is gone; a mutex that it held is abandoned, and the next one takes it."""
        if self.has_mutex:
            self.machine.mutex.release()
            self.has_mutex = False

    def each_vm(self, bound: BoundParameters) -> Iterator[str]:
        for vm in bound["VM"]:
            yield vm["Id"]


def _declared(name: str) -> tuple[frozenset[str], Answer | None]:
    """A cmdlet that is one call of the machine, or of a part of it, as its method declares."""
    if (stand_in := STANDINS.get(name)) is None:
        return frozenset(), None
    paths = {argument: re.split(r"[.:]", path) for argument, path in stand_in.parameters.items()}
    required = {each[1:] for each in stand_in.ignored if each.startswith("!")}
    known = {each.lstrip("!") for each in stand_in.ignored} | {path[0].removesuffix("[]") for path in paths.values()}

    def answer(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
        if any(not bound.get(each) for each in required):
            raise process.machine.fail("not-stood-in", name, what="somebody who answers its question")
        method = stand_in.method.__name__
        owner = next(each for each in (process.machine, *process.machine.parts) if hasattr(each, method))
        many = next((path[0] for path in paths.values() if path[0].endswith("[]")), "")
        for one in bound[many[:-2]] if many else (None,):
            given = {many: one, **bound}
            getattr(owner, method)(**{name: _at(given, path) for name, path in paths.items() if path[0] in given})
        return ()

    return frozenset(known), answer


def _at(value: Any, path: Sequence[str]) -> Any:
    """`word` is how Windows writes one of ours."""
    for name in path:
        value = our_word(value) if name == "word" else value[name]
    return value


# ---- words: TurnOff on the host is turn-off in the machine


def windows_word(word: Any) -> str:
    return "".join(part.capitalize() for part in str(word).split("-"))


def our_word(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return "".join(f"-{c.lower()}" if c.isupper() and place else c.lower() for place, c in enumerate(value))


def braced(guid: Any) -> Any:
    """A GUID as Windows writes it; nothing stays nothing."""
    return None if guid is None else "{" + str(guid).upper() + "}"
