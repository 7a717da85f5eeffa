"""Shared by the parts of a simulated host: their base class, decorators for cmdlets, and calls that set a resource."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import field
from functools import wraps
from threading import Event
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.physics.windows_errors import refusal
from winhost.resources.registry import WINDOWS

Host = Any
"""The machine. Its module imports the modules of its parts, so that these cannot import its class."""

P = ParamSpec("P")
R = TypeVar("R")


class ChangesHost(Protocol):
    """The machine itself, or a part of it."""

    def changing(self, cmdlet: str) -> AbstractContextManager[None]:
        """Lock the host for one cmdlet that changes something. Raises CmdletError, HostDown."""


W = TypeVar("W", bound=ChangesHost)


@dataclass(frozen=True)
class StandIn:
    """The way in which the stand-in for a cmdlet calls a method.

    parameters: argument of the method to parameter of the cmdlet; with `VM[].Id`, one call for each VM, with its id.
    ignored: parameters that are accepted without any effect.
    """

    method: Callable[..., object]
    parameters: Mapping[str, str]
    ignored: tuple[str, ...]


STANDINS: dict[str, StandIn] = {}


def as_cmdlet(
    name: str, ignored: str = "", /, **parameters: str
) -> Callable[[Callable[Concatenate[W, P], R]], Callable[Concatenate[W, P], R]]:
    """Run a method as the cmdlet `name`: it needs an administrator, takes the cmdlet's time, and locks the machine.

    With `parameters`, the stand-in of that cmdlet calls the method (`StandIn`). `!` in `ignored` marks parameters that
    must be given.
    """

    def make(method: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R]:
        @wraps(method)
        def run(self: W, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with self.changing(name):
                return method(self, *args, **kwargs)

        if parameters:
            STANDINS[name] = StandIn(run, parameters, tuple(ignored.split()))
        return run

    return make


@dataclass(frozen=True)
class SetCall:
    """One `set` call. timeout: in lab seconds; secret: the value of its secret reference."""

    resource: str
    key: Key
    desired: Mapping[str, Json]
    accept: frozenset[str]
    timeout: float
    stop: Event
    warnings: list[str] = field(default_factory=list)
    secret: str = field(default="", repr=False)

    def check_data(self) -> None:
        """Raise CmdletError if the resource declares that this change needs the consent `data`, which is missing."""
        known = WINDOWS[self.resource]
        for rule in known.risks:
            asks = all(self.desired.get(each.property) in each.one_of for each in rule.when)
            if asks and rule.consent == "data" and "data" not in self.accept:
                raise refusal("HoldsData", title=known.title)


Change = Callable[[SetCall], bool | None]
"""Applies a `set`, and returns whether it takes effect with the next restart. Raises CmdletError, MissingDependency."""
StoredRecord = dict[str, Any]  # winhost's record of a thing that it made


@dataclass(frozen=True)
class ManagedKind:
    """A kind of thing that winhost makes and removes, with a record in the registry. change: sets other properties."""

    kind: str
    make: Callable[[str, StoredRecord | None, Mapping[str, Any]], None]
    remove: Callable[[str, StoredRecord], None]
    change: Callable[[str, StoredRecord | None, Mapping[str, Any]], None] | None = None


class Part:
    """A part of a host, with resources of its own.

    administrator_resources: those that only administrators can read; administrator_settable: those whose script checks
    for an administrator before it checks the desired values.
    """

    administrator_resources: ClassVar[tuple[str, ...]] = ()
    administrator_settable: ClassVar[tuple[str, ...]] = ()

    def __init__(self, host: Host) -> None:
        self.host = host

    def changing(self, cmdlet: str) -> AbstractContextManager[None]:
        lock: AbstractContextManager[None] = self.host.changing(cmdlet)
        return lock

    # ---- winhost's records in the registry, by kind and name

    def stored_record(self, kind: str, name: str) -> StoredRecord | None:
        text = self.host.software.registry_values.get(f"{kind} {name}")
        return None if text is None else json.loads(text)

    def store_record(self, kind: str, name: str, record: Mapping[str, Json] | None) -> None:
        """Write a record; None removes it."""
        self.host.software.write_registry(f"{kind} {name}", None if record is None else json.dumps(record))

    def stored_records(self, kind: str) -> Iterator[tuple[str, StoredRecord]]:
        """Yield the records in the order of their names."""
        for entry in sorted(self.host.software.registry_values):
            if match := re.fullmatch(rf"{kind} ([a-z0-9-]{{1,63}})", entry):
                yield match[1], self.stored_record(kind, match[1]) or {}

    def set_managed(self, kind: ManagedKind, call: SetCall) -> None:
        """Make, change or remove the thing of this name. Raises CmdletError."""
        name, desired = call.key["name"], call.desired
        record = self.stored_record(kind.kind, name)
        if kind.change is not None and "made" not in desired:
            kind.change(name, record, desired)
            return
        call.check_data()
        if desired["made"]:
            kind.make(name, record, desired)
        elif record is not None:
            kind.remove(name, record)
            self.store_record(kind.kind, name, None)

    # ---- the resources of a part

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        """Return the resources of this part, each with a call that lists all instances."""
        return {}

    def changes(self) -> Mapping[str, Change]:
        """Return the resources that can be set, each with a call that applies a `set` of checked values."""
        return {}

    def on_restart(self) -> bool:
        """React to a restart of the host. Return True if Windows has changes to finish."""
        return False
