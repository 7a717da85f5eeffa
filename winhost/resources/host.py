"""The typed facts of one host, as rules and decisions read them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from operator import itemgetter, or_
from threading import Lock
from typing import Any, TypeVar

from packaging.version import Version

from winhost.core.answers import NOT_READ, MissingFact, Record
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible
from winhost.model.facts import Answer, Facts, Instance
from winhost.model.measured import Measurement
from winhost.model.once import once
from winhost.resources.base import State
from winhost.resources.registry import RESOURCE_TYPES, host_answers, is_linux
from winhost.resources.shape import faults, validator
from winhost.resources.shared import INSTALLER, SEED
from winhost.resources.windows.pci_device import PciDevice, gpu_location
from winhost.resources.windows.read_only import (
    DeviceAssignmentPolicy,
    Firmware,
    HyperVHost,
    Memory,
    OperatingSystem,
    Session,
    Vm,
)
from winhost.resources.windows.vms import AssignableDevice, HyperVRole

S = TypeVar("S", bound=State)
T = TypeVar("T")

DOCUMENT = "document"  # the input of an answer that read the whole document of facts
STATED = "stated"  # the input of an answer that read all stated versions


class _Inputs(dict[object, int]):
    """The bit for each input of cached answers: a class of states, DOCUMENT, `stated.vllm`, a path.

    Sets of inputs are integers with these bits, because thousands are created for each host.
    """

    def __missing__(self, name: object) -> int:
        with _NUMBERING:
            return self.setdefault(name, 1 << len(self))


_NUMBERING = Lock()
_INPUTS = _Inputs()


class WrongState(UsageError):
    """A state that this version of winhost cannot parse: from facts of another version, edited facts, or a bug."""

    def __init__(self, resource: str, faults: str) -> None:
        super().__init__(
            "WrongState",
            what=f"the facts of {resource} do not have the shape of this resource: {faults}",
            hint="Read the host again with this winhost: winhost detect HOST -o facts",
        )
        self.faults = faults


def typed_instance(state: type[S], record: Record) -> Instance[S]:
    """Parse a record as a state of this type. Raises WrongState."""
    from pydantic import ValidationError

    try:
        value: S = validator(state.resource_type.name).validate_python(dict(record.state))
    except ValidationError as error:
        raise WrongState(state.resource_type.name, faults(error)) from None
    return Instance(record.key, value)


@dataclass(frozen=True)
class Gpu:
    """A GPU: its display function, and the other functions in its slot."""

    pci: Instance[PciDevice]
    companions: tuple[Instance[PciDevice], ...] = ()

    @cached_property
    def location(self) -> str:
        return gpu_location(self.pci.key["location"])

    @property
    def functions(self) -> tuple[Instance[PciDevice], ...]:
        return (self.pci, *self.companions)


@dataclass(frozen=True)
class Selection:
    """The GPUs to assign, and the VM that receives them; None if no VM was chosen."""

    gpus: tuple[Gpu, ...]
    vm: Instance[Vm] | None = None


def other_system_error(facts: "HostFacts", what: str) -> UsageError:
    """Return the error for a request that needs Windows on a Linux host, or Linux on a Windows host."""
    host = visible(facts.host)
    if facts.is_linux:
        system, hint = "a Linux of its own", f"What it is: winhost detect {host}; what can be planned: --path linux"
        other = "a Windows host"
    else:
        system, hint = "a Windows host", f"What works on it: winhost assess {facts.named}; a Linux in it: --path wsl2"
        other = "a host with kind: linux"
    return UsageError("OtherSystem", what=f"{host} is {system}, and {what} is for {other}", hint=hint, host=facts.host)


class HostFacts:
    """The facts of one host, resource by resource, with the versions that a user states for it.

    Reading a fact that the host did not report raises `MissingFact`. named: the argument by which a command refers to
    these facts: the path of a facts file, or the host's name.

    Answers computed from facts are cached together with the inputs that they read, so that `updated` facts keep the
    answers that are still valid. Not thread-safe: each host is processed in one thread.
    """

    def __init__(self, facts: Facts, stated: Mapping[str, Version] | None = None, named: str | None = None) -> None:
        self.named = named or visible(facts.host)
        self._document = facts
        self._stated = stated or {}
        self.is_linux = is_linux(facts)  # a machine of its own, without a Windows to read
        self._answers = host_answers(facts)
        self._typed: dict[type[State], tuple[Instance[Any], ...]] = {}
        self._cache: dict[Any, tuple[Any, int]] = {}  # by question: the answer, and the inputs that it read
        # By path or variant, "" for answers that depend on neither.
        self._scoped_cache = defaultdict[str, dict[Any, tuple[Any, int]]](dict)
        self._inputs = 0  # the inputs that the answer being computed has read so far

    def updated(self, document: Facts, stated: Mapping[str, Version] | None = None) -> "HostFacts":
        """Return the facts in `document`, with the cached answers that did not read any changed input."""
        before, after = self._document.resources, document.resources
        names = [name for name in {**before, **after} if before.get(name) is not after.get(name)]
        new = HostFacts(document, stated, self.named)
        if document.measured is not self.measured or new.is_linux is not self.is_linux or {INSTALLER, SEED} & {*names}:
            return new  # these change the meaning of other answers
        states = {RESOURCE_TYPES[name].state for name in names if name in RESOURCE_TYPES}
        versions, old = new._stated, self._stated
        changed = [f"{STATED}.{name}" for name in {**old, **versions} if old.get(name) != versions.get(name)]
        changed += [STATED] if versions != old else []
        inputs = sum(_INPUTS[each] for each in (DOCUMENT, *states, *changed))
        new._typed = {state: instances for state, instances in self._typed.items() if state not in states}
        new._cache = {question: entry for question, entry in self._cache.items() if not entry[1] & inputs}
        for scope, answers in self._scoped_cache.items():
            new._scoped_cache[scope] = {judge: entry for judge, entry in answers.items() if not entry[1] & inputs}
        return new

    def cached(self, question: Any, answer: Callable[..., T], *about: Any) -> T:
        """Return the answer to a question, computed once. It must depend only on the facts and the question."""
        entry: tuple[T, int] | None = self._cache.get(question)
        if entry is None:
            outer, self._inputs = self._inputs, 0
            try:
                entry = self._cache[question] = answer(*about), self._inputs
            finally:
                self._inputs |= outer
        self._inputs |= entry[1]
        return entry[0]

    def outcomes(
        self, judges: Iterable[Callable[..., T]], *about: Any, key: object = (), given: Iterable[Any] = ()
    ) -> list[T | MissingFact]:
        """Return, for each judge, its result for a subject, or the fact that it is missing. Results are cached.

        key: identifies the subject; empty for the host. given: the inputs from which the subject was computed.
        """
        results, cache, outer = [], self._cache, self._inputs
        inputs = sum(_INPUTS[each] for each in given)
        for judge in judges:
            question: Any = (judge, key) if key else judge
            entry = cache.get(question)
            if entry is None:
                self._inputs = inputs
                try:
                    result: T | MissingFact = judge(*about)
                except MissingFact as missing:
                    result = missing.with_traceback(None)  # the traceback would keep all frames alive
                entry = cache[question] = (result, self._inputs)
            outer |= entry[1]
            results.append(entry[0])
        self._inputs = outer
        return results

    def outcomes_at(
        self, scopes: tuple[str, str], judges: Sequence[Callable[..., T]], *about: Any
    ) -> list[T | MissingFact]:
        """Return what `outcomes` returns, for judges that may read a path and its variant. scopes: path and variant.

        A result that read neither is cached for all variants; one that read only the path, for all variants of it.
        """
        shared, outer = self._scoped_cache[""], self._inputs
        of_path, of_variant = map(self._scoped_cache.__getitem__, scopes)
        entries: list[Any] = list(map(shared.get, judges))
        for number, judge in enumerate(judges):
            if entries[number] is not None:
                continue
            entry = of_path.get(judge) or of_variant.get(judge)
            if entry is None:
                self._inputs = 0
                try:
                    result: T | MissingFact = judge(*about)
                except MissingFact as missing:
                    result = missing.with_traceback(None)
                entry = result, self._inputs
                reads_path, reads_variant = (entry[1] & _INPUTS[scope] for scope in scopes)
                (of_variant if reads_variant else of_path if reads_path else shared)[judge] = entry
            entries[number] = entry
        self._inputs = reduce(or_, map(itemgetter(1), entries), outer)
        return list(map(itemgetter(0), entries))

    def inputs_of(self, question: Any) -> frozenset[Any]:
        """Return the inputs that the cached answer to a question read: classes of states, `stated.vllm`, DOCUMENT.

        Raises KeyError.
        """
        _, inputs = self._cache[question]
        return frozenset(name for name, bit in [*_INPUTS.items()] if inputs & bit)

    def add_inputs(self, *inputs: Any) -> None:
        """Record inputs of the answer being computed that it does not read through this class."""
        for each in inputs:
            self._inputs |= _INPUTS[each]

    @property
    def document(self) -> Facts:
        self._inputs |= _INPUTS[DOCUMENT]
        return self._document

    @property
    def host(self) -> str:
        return self._document.host

    @property
    def origin(self) -> str:
        return self._document.origin

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """The results of `winhost probe`."""
        return self._document.measured

    @property
    def stated(self) -> Mapping[str, Version]:
        self._inputs |= _INPUTS[STATED]
        return self._stated

    def version(self, name: str) -> Version | None:
        """Return the stated version of a program, or None."""
        self._inputs |= _INPUTS[f"{STATED}.{name}"]
        return self._stated.get(name)

    @cached_property
    def machine_id(self) -> str:
        """The identity of the machine. The host's name and address may change; this does not."""
        system: Any = self.the(RESOURCE_TYPES["LinuxSystem" if self.is_linux else "OperatingSystem"].state)
        return str(system.machine_id)

    def answer(self, resource: str) -> Answer:
        """Return the host's answer about a resource, not typed."""
        self._inputs |= _INPUTS[RESOURCE_TYPES[resource].state]
        return self._document.answer(resource)

    def all(self, state: type[S]) -> tuple[Instance[S], ...]:
        """Return every instance of a resource. Raises MissingFact, WrongState."""
        self._inputs |= _INPUTS[state]
        instances = self._typed.get(state)
        if instances is None:
            answer = self._answers.answer(state.resource_type.name)
            if not isinstance(answer, tuple):
                raise MissingFact(state.resource_type.name, answer)
            instances = self._typed[state] = tuple([typed_instance(state, record) for record in answer])
        return instances

    def the(self, state: type[S]) -> S:
        """Return the only instance of a resource without a key. Raises MissingFact, WrongState."""
        instances = self.all(state)
        if not instances:
            raise MissingFact(state.resource_type.name, NOT_READ)
        if len(instances) > 1:
            raise WrongState(state.resource_type.name, f"{len(instances)} records of what a host has once")
        return instances[0].state

    def ask(self, question: str) -> tuple[Any, ...]:
        """Return a property of every instance. question: as `OperatingSystem.build`. Raises MissingFact."""
        return property_reader(question)(self)

    def __getitem__(self, resource: str) -> State:
        """Return the only instance of a resource by its name, for messages in YAML. Raises as `the`."""
        return self.the(RESOURCE_TYPES[resource].state)

    def find(self, state: type[S], key: Mapping[str, str]) -> S | None:
        """Return the state of the instance with this key; if there is none, the declared absent state, or None."""
        key = dict(key)
        instance = next((each.state for each in self.all(state) if each.key == key), None)
        return _absent_state(state) if instance is None else instance

    @property
    def session(self) -> Session:
        return self.the(Session)

    @property
    def os(self) -> OperatingSystem:
        return self.the(OperatingSystem)

    @property
    def firmware(self) -> Firmware:
        return self.the(Firmware)

    @property
    def memory(self) -> Memory:
        return self.the(Memory)

    @property
    def role(self) -> HyperVRole:
        return self.the(HyperVRole)

    @property
    def hyperv(self) -> HyperVHost:
        return self.the(HyperVHost)

    @property
    def policy(self) -> DeviceAssignmentPolicy:
        return self.the(DeviceAssignmentPolicy)

    @property
    def vms(self) -> tuple[Instance[Vm], ...]:
        return self.all(Vm)

    def assignment(self, function: Instance[PciDevice]) -> str:
        """Return the assignment of a PCI function: host-enabled, host-disabled, dismounted or assigned:<VM GUID>."""
        device = self.find(AssignableDevice, function.key)
        if device is None:
            raise MissingFact(f"AssignableDevice at {function.key['location']}", NOT_READ)
        return device.assignment

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs, sorted by location path so that plans are stable."""
        return self.cached(_gpus, _gpus, self)


@lru_cache(maxsize=1024)
def property_reader(question: str) -> Callable[..., tuple[Any, ...]]:
    """Return a function that reads a property from facts. It accepts, and ignores, a subject as second argument.

    question: as in `HostFacts.ask`.
    """
    resource, _, name = question.partition(".")
    kind = RESOURCE_TYPES[resource]
    if kind.key:
        return lambda facts, _=None: tuple([getattr(instance.state, name) for instance in facts.all(kind.state)])
    return lambda facts, _=None: (getattr(facts.the(kind.state), name),)


def _gpus(facts: HostFacts) -> tuple[Gpu, ...]:
    slots: defaultdict[str, list[Instance[PciDevice]]] = defaultdict(list)
    for function in facts.all(PciDevice):
        slots[gpu_location(function.key["location"])].append(function)
    gpus = []
    for location in sorted(slots):
        functions = sorted(slots[location], key=lambda f: f.key["location"])
        displays = [f for f in functions if f.state.kind == "display"]
        if displays:
            gpus.append(Gpu(displays[0], tuple(f for f in functions if f is not displays[0])))
    return tuple(gpus)


@once
def _absent_state(state: type[S]) -> S | None:
    """Return the declared state of an instance that does not exist but can be created, or None."""
    absent = state.resource_type.absent
    return None if absent is None else typed_instance(state, Record(absent)).state
