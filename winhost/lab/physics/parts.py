"""The parts of a simulated host, with a state of their own, and cmdlets that change it."""

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
"""The machine: its module imports those of its parts, so that they cannot name its class."""

P = ParamSpec("P")
R = TypeVar("R")


class ChangesHost(Protocol):
    """The machine itself, or a part of it."""

    def changing(self, cmdlet: str) -> AbstractContextManager[None]:
        """Hold the host for one cmdlet that changes something. Raises CmdletError, HostDown."""


W = TypeVar("W", bound=ChangesHost)


@dataclass(frozen=True)
class StandIn:
    """Describes how a stand-in for PowerShell calls a method. parameters: argument to parameter of the cmdlet, where
    `VM[].Id` is the id of each of the VMs given; ignored: parameters that may be given, and change nothing here.
    """

    method: Callable[..., object]
    parameters: Mapping[str, str]
    ignored: tuple[str, ...]


STANDINS: dict[str, StandIn] = {}


def as_cmdlet(
    name: str, ignored: str = "", /, **parameters: str
) -> Callable[[Callable[Concatenate[W, P], R]], Callable[Concatenate[W, P], R]]:
    """Make a method run as the cmdlet `name`: it needs an administrator, takes its time, and has the machine for
    itself.

    With `parameters` the stand-in of that name is a call of it (`StandIn`). In `ignored`, `!` marks what must be given.
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
    """One `set` call. within: lab seconds that it may take; secret: what its
    secret reference stands for.
    """

    resource: str
    key: Key
    desired: Mapping[str, Json]
    accept: frozenset[str]
    within: float
    stop: Event
    warnings: list[str] = field(default_factory=list)
    secret: str = field(default="", repr=False)

    def check_data(self) -> None:
        """Raises CmdletError where the resource declares that this takes the consent `data`, and nobody gave it."""
        known = WINDOWS[self.resource]
        for rule in known.risks:
            asks = all(self.desired.get(each.property) in each.one_of for each in rule.when)
            if asks and rule.consent == "data" and "data" not in self.accept:
                raise refusal("HoldsData", title=known.title)


Change = Callable[[SetCall], bool | None]
"""Changes the host; tells whether that takes a restart. Raises CmdletError and NotYet."""
StoredRecord = dict[str, Any]  # what winhost notes of a thing that it made


@dataclass(frozen=True)
class ManagedKind:
    """A kind of thing that winhost makes, notes in the registry by `kind`, and takes away again. change: sets what else
    can be set of one, if anything can.
    """

    kind: str
    make: Callable[[str, StoredRecord | None, Mapping[str, Any]], None]
    remove: Callable[[str, StoredRecord], None]
    change: Callable[[str, StoredRecord | None, Mapping[str, Any]], None] | None = None


class Part:
    """A piece of a host. for_administrators: resources of it that nobody else may see; administrators_set: those that
    refuse others before they look at what is wanted.
    """

    administrator_resources: ClassVar[tuple[str, ...]] = ()
    administrator_settable: ClassVar[tuple[str, ...]] = ()

    def __init__(self, host: Host) -> None:
        self.host = host

    def changing(self, cmdlet: str) -> AbstractContextManager[None]:
        given: AbstractContextManager[None] = self.host.changing(cmdlet)
        return given

    # ---- what winhost notes in the registry, of each kind by name

    def stored_record(self, kind: str, name: str) -> StoredRecord | None:
        text = self.host.software.record.get(f"{kind} {name}")
        return None if text is None else json.loads(text)

    def store_record(self, kind: str, name: str, record: Mapping[str, Json] | None) -> None:
        """Write a record; None removes it."""
        self.host.software.write_registry(f"{kind} {name}", None if record is None else json.dumps(record))

    def stored_records(self, kind: str) -> Iterator[tuple[str, StoredRecord]]:
        """Yield the records in the order of their names."""
        for entry in sorted(self.host.software.record):
            if match := re.fullmatch(rf"{kind} ([a-z0-9-]{{1,63}})", entry):
                yield match[1], self.stored_record(kind, match[1]) or {}

    def set_managed(self, how: ManagedKind, asked: SetCall) -> None:
        """Make, change or remove the thing of this name. Raises CmdletError."""
        name, desired = asked.key["name"], asked.desired
        record = self.stored_record(how.kind, name)
        if how.change is not None and "made" not in desired:
            how.change(name, record, desired)
            return
        asked.check_data()
        if desired["made"]:
            how.make(name, record, desired)
        elif record is not None:
            how.remove(name, record)
            self.store_record(how.kind, name, None)

    # ---- what it has

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        """The resources that the part knows: a call for each lists all its instances."""
        return {}

    def changes(self) -> Mapping[str, Change]:
        """The resources that can be set: a call for each applies a set, after the checks of its declared values."""
        return {}

    def on_restart(self) -> bool:
        """React to a restart of the host. Return True if Windows has changes to finish."""
        return False
