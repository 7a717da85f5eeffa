"""Facts of one host, typed: what rules and decisions read."""

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeVar

from winhost.core.answers import NOT_THERE, MissingFact, Record
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible
from winhost.model.facts import Facts, Instance
from winhost.resources.base import State
from winhost.resources.registry import RESOURCE_TYPES, answer, is_linux
from winhost.resources.shape import faults, validator
from winhost.resources.windows.assignable_device import AssignableDevice
from winhost.resources.windows.device_assignment_policy import DeviceAssignmentPolicy
from winhost.resources.windows.firmware import Firmware
from winhost.resources.windows.hyperv_host import HyperVHost
from winhost.resources.windows.hyperv_role import HyperVRole
from winhost.resources.windows.memory import Memory
from winhost.resources.windows.operating_system import OperatingSystem
from winhost.resources.windows.pci_device import PciDevice, card_location
from winhost.resources.windows.session import Session
from winhost.resources.windows.vm import Vm

S = TypeVar("S", bound=State)


class WrongState(UsageError):
    """A state that this winhost does not understand: facts of another version, edited facts, or a bug of winhost."""

    def __init__(self, resource: str, faults: str) -> None:
        super().__init__(
            "WrongState",
            what=f"the facts of {resource} do not have the shape of this resource: {faults}",
            hint="Read the host again with this winhost: winhost detect HOST -o facts",
        )
        self.faults = faults


def typed(state: type[S], record: Record) -> Instance[S]:
    """The typed state of a record. Raises WrongState."""
    from pydantic import ValidationError

    try:
        value: S = validator(state.resource_type.name).validate_python(dict(record.state))
    except ValidationError as error:
        raise WrongState(state.resource_type.name, faults(error)) from None
    return Instance(record.key, value)


@dataclass(frozen=True)
class Card:
    """A graphics card: its display function and the functions that share its slot."""

    gpu: Instance[PciDevice]
    companions: tuple[Instance[PciDevice], ...] = ()

    @property
    def location(self) -> str:
        return card_location(self.gpu.key["location"])

    @property
    def functions(self) -> tuple[Instance[PciDevice], ...]:
        return (self.gpu, *self.companions)


def of_other_system(facts: "HostFacts", what: str) -> UsageError:
    """Something that Windows hosts have was asked of a Linux, or the other way round."""
    here = visible(facts.host)
    if facts.is_linux:
        known, hint = "a Linux of its own", f"What it is: winhost detect {here}; what can be planned: --path linux"
        other = "a Windows host"
    else:
        known, hint = "a Windows host", f"What works on it: winhost assess {here}; a Linux in it: --path wsl2"
        other = "a host with kind: linux"
    return UsageError("OtherSystem", what=f"{here} is {known}, and {what} is for {other}", hint=hint, host=facts.host)


class HostFacts:
    """The facts of one host, resource by resource. Reading what could not be read raises `MissingFact`."""

    def __init__(self, facts: Facts) -> None:
        self.document = facts
        self._typed: dict[type[State], tuple[Instance[Any], ...]] = {}
        self.kept: dict[Any, Any] = {}  # what rules found in these facts

    @property
    def host(self) -> str:
        return self.document.host

    @property
    def is_linux(self) -> bool:
        """It is a Linux of its own, of which there is no Windows to read."""
        return is_linux(self.document)

    @cached_property
    def machine_id(self) -> str:
        """By what a host is known that may have got another name or address."""
        system: Any = self.the(RESOURCE_TYPES["LinuxSystem" if self.is_linux else "OperatingSystem"].state)
        return str(system.machine_id)

    def all(self, state: type[S]) -> tuple[Instance[S], ...]:
        """Every instance of a resource."""
        if state not in self._typed:
            found = answer(self.document, state.resource_type.name)
            if not isinstance(found, tuple):
                raise MissingFact(state.resource_type.name, found)
            self._typed[state] = tuple(typed(state, record) for record in found)
        return self._typed[state]

    def the(self, state: type[S]) -> S:
        """The only instance of a resource without a key. Raises MissingFact, WrongState."""
        instances = self.all(state)
        if not instances:
            raise MissingFact(state.resource_type.name, NOT_THERE)
        if len(instances) > 1:
            raise WrongState(state.resource_type.name, f"{len(instances)} records of what a host has once")
        return instances[0].state

    def ask(self, question: str) -> tuple[Any, ...]:
        """A property of every instance, asked for as `OperatingSystem.build`. Raises MissingFact."""
        resource, _, name = question.partition(".")
        kind = RESOURCE_TYPES[resource]
        if not kind.key:
            return (getattr(self.the(kind.state), name),)
        return tuple(getattr(instance.state, name) for instance in self.all(kind.state))

    def of(self, state: type[S], key: Mapping[str, str]) -> S | None:
        """The state of one key, or of what can yet be made; None where the host has no such instance."""
        found = next((i.state for i in self.all(state) if dict(i.key) == dict(key)), None)
        absent = state.resource_type.absent
        return typed(state, Record(absent, key)).state if found is None and absent is not None else found

    @cached_property
    def session(self) -> Session:
        return self.the(Session)

    @cached_property
    def os(self) -> OperatingSystem:
        return self.the(OperatingSystem)

    @cached_property
    def firmware(self) -> Firmware:
        return self.the(Firmware)

    @cached_property
    def memory(self) -> Memory:
        return self.the(Memory)

    @cached_property
    def role(self) -> HyperVRole:
        return self.the(HyperVRole)

    @cached_property
    def hyperv(self) -> HyperVHost:
        return self.the(HyperVHost)

    @cached_property
    def policy(self) -> DeviceAssignmentPolicy:
        return self.the(DeviceAssignmentPolicy)

    @property
    def vms(self) -> tuple[Instance[Vm], ...]:
        return self.all(Vm)

    def place(self, function: Instance[PciDevice]) -> str:
        """Where on the ladder a function stands."""
        found = self.of(AssignableDevice, function.key)
        if found is None:
            raise MissingFact(f"AssignableDevice at {function.key['location']}", NOT_THERE)
        return found.place

    @cached_property
    def cards(self) -> tuple[Card, ...]:
        """Graphics cards in the order of their location paths, so that plans are stable."""
        slots: defaultdict[str, list[Instance[PciDevice]]] = defaultdict(list)
        for function in self.all(PciDevice):
            slots[card_location(function.key["location"])].append(function)
        cards = []
        for location in sorted(slots):
            functions = sorted(slots[location], key=lambda f: f.key["location"])
            gpus = [f for f in functions if f.state.kind == "display"]
            if gpus:
                cards.append(Card(gpus[0], tuple(f for f in functions if f is not gpus[0])))
        return tuple(cards)
