"""Facts of one host, typed: what rules and decisions read."""

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
from winhost.resources.shared import BESIDE, SEED
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

DOCUMENT = "document"  # stands for all facts among the inputs of an answer
STATED = "stated"  # for all versions that are stated


class _Inputs(dict[object, int]):
    """The bit of each input of answers: a class of states, DOCUMENT, `stated.vllm`, a path. Sets of inputs are numbers,
    because thousands are made for each host.
    """

    def __missing__(self, name: object) -> int:
        with _NUMBERING:
            return self.setdefault(name, 1 << len(self))


_NUMBERING = Lock()
_INPUTS = _Inputs()


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
class Gpu:
    """A GPU: its display function and the functions that share its slot."""

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
    """The GPUs that go, and the VM that gets them; None where no VM was chosen."""

    gpus: tuple[Gpu, ...]
    vm: Instance[Vm] | None = None


def of_other_system(facts: "HostFacts", what: str) -> UsageError:
    """Something that Windows hosts have was asked of a Linux, or the other way round."""
    here = visible(facts.host)
    if facts.is_linux:
        known, hint = "a Linux of its own", f"What it is: winhost detect {here}; what can be planned: --path linux"
        other = "a Windows host"
    else:
        known, hint = "a Windows host", f"What works on it: winhost assess {facts.named}; a Linux in it: --path wsl2"
        other = "a host with kind: linux"
    return UsageError("OtherSystem", what=f"{here} is {known}, and {what} is for {other}", hint=hint, host=facts.host)


class HostFacts:
    """The facts of one host, resource by resource, and the versions that a user states over them. Reading what could
    not be read raises `MissingFact`. named: how a command names them, which is the host if they are not of a file.

    Answers that follow from facts are kept with what they read, so that `changed` facts keep those that stay true.
    Not thread-safe: each host is worked on in one thread.
    """

    def __init__(self, facts: Facts, stated: Mapping[str, Version] | None = None, named: str | None = None) -> None:
        self.named = named or visible(facts.host)
        self._document = facts
        self._stated = stated or {}
        self.is_linux = is_linux(facts)  # a Linux of its own, of which there is no Windows to read
        self._answers = host_answers(facts)
        self._typed: dict[type[State], tuple[Instance[Any], ...]] = {}
        self._kept: dict[Any, tuple[Any, int]] = {}  # each answer, and the inputs that it was computed from
        self._kept_at = defaultdict[str, dict[Any, tuple[Any, int]]](
            dict
        )  # by the path or variant that matters, "" if none
        self._reads = 0

    def changed(self, document: Facts, stated: Mapping[str, Version] | None = None) -> "HostFacts":
        """The facts of this host as `document` has them. Answers that rest on nothing that differs are kept."""
        before, after = self._document.resources, document.resources
        names = [name for name in {**before, **after} if before.get(name) is not after.get(name)]
        found = HostFacts(document, stated, self.named)
        if document.measured is not self.measured or found.is_linux is not self.is_linux or {BESIDE, SEED} & {*names}:
            return found  # these decide what other answers mean
        changed = {RESOURCE_TYPES[name].state for name in names if name in RESOURCE_TYPES}
        stated, ours = found._stated, self._stated
        differ = [f"{STATED}.{name}" for name in {**ours, **stated} if ours.get(name) != stated.get(name)]
        differ += [STATED] if stated != ours else []
        inputs = sum(_INPUTS[each] for each in (DOCUMENT, *changed, *differ))
        found._typed = {state: known for state, known in self._typed.items() if state not in changed}
        found._kept = {asked: kept for asked, kept in self._kept.items() if not kept[1] & inputs}
        for scope, answers in self._kept_at.items():
            found._kept_at[scope] = {asked: kept for asked, kept in answers.items() if not kept[1] & inputs}
        return found

    def keep(self, question: Any, answer: Callable[..., T], *about: Any) -> T:
        """The answer to a question, computed once. It must follow from the facts and the question alone."""
        kept: tuple[T, int] | None = self._kept.get(question)
        if kept is None:
            outside, self._reads = self._reads, 0
            try:
                kept = self._kept[question] = answer(*about), self._reads
            finally:
                self._reads |= outside
        self._reads |= kept[1]
        return kept[0]

    def outcomes(
        self, judges: Iterable[Callable[..., T]], *about: Any, key: object = (), given: Iterable[Any] = ()
    ) -> list[T | MissingFact]:
        """The outcomes of judges about a subject, or the fact that each lacks, kept as by `keep`. key: of the subject,
        nothing for the host; given: the inputs of each, because the subject comes from them.
        """
        found, kept, outside = [], self._kept, self._reads
        inputs = sum(_INPUTS[each] for each in given)
        for judge in judges:
            asked: Any = (judge, key) if key else judge
            known = kept.get(asked)
            if known is None:
                self._reads = inputs
                try:
                    seen: T | MissingFact = judge(*about)
                except MissingFact as missing:
                    seen = missing.with_traceback(None)  # which would keep all frames
                known = kept[asked] = (seen, self._reads)
            outside |= known[1]
            found.append(known[0])
        self._reads = outside
        return found

    def outcomes_at(
        self, scopes: tuple[str, str], judges: Sequence[Callable[..., T]], *about: Any
    ) -> list[T | MissingFact]:
        """Like `outcomes`, of judges that may ask for a path and its variant. scopes: both. An answer that depends on
        neither is kept for all variants, one that depends on the path alone for the variants of that.
        """
        everywhere, outside = self._kept_at[""], self._reads
        wide, narrow = map(self._kept_at.__getitem__, scopes)
        known: list[Any] = list(map(everywhere.get, judges))
        for number, judge in enumerate(judges):
            if known[number] is not None:
                continue
            kept = wide.get(judge) or narrow.get(judge)
            if kept is None:
                self._reads = 0
                try:
                    seen: T | MissingFact = judge(*about)
                except MissingFact as missing:
                    seen = missing.with_traceback(None)
                kept = seen, self._reads
                read_wide, read_narrow = (kept[1] & _INPUTS[scope] for scope in scopes)
                (narrow if read_narrow else wide if read_wide else everywhere)[judge] = kept
            known[number] = kept
        self._reads = reduce(or_, map(itemgetter(1), known), outside)
        return list(map(itemgetter(0), known))

    def reads(self, question: Any) -> frozenset[Any]:
        """The inputs that the kept answer to a question was computed from: classes of states, `stated.vllm`, DOCUMENT.
        Raises KeyError.
        """
        _, reads = self._kept[question]
        return frozenset(name for name, bit in [*_INPUTS.items()] if reads & bit)

    def rest_on(self, *read: Any) -> None:
        """Note an input of the answer that is being computed, where it does not show by itself."""
        for each in read:
            self._reads |= _INPUTS[each]

    @property
    def document(self) -> Facts:
        self._reads |= _INPUTS[DOCUMENT]
        return self._document

    @property
    def host(self) -> str:
        return self._document.host

    @property
    def origin(self) -> str:
        return self._document.origin

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """The results of `winhost probe`, which no change of facts changes."""
        return self._document.measured

    @property
    def stated(self) -> Mapping[str, Version]:
        self._reads |= _INPUTS[STATED]
        return self._stated

    def version(self, name: str) -> Version | None:
        """The version of something that a user states."""
        self._reads |= _INPUTS[f"{STATED}.{name}"]
        return self._stated.get(name)

    @cached_property
    def machine_id(self) -> str:
        """The identity of a host that may have another name or address by now."""
        system: Any = self.the(RESOURCE_TYPES["LinuxSystem" if self.is_linux else "OperatingSystem"].state)
        return str(system.machine_id)

    def answer(self, resource: str) -> Answer:
        """A resource as the host answered it, before it is typed."""
        self._reads |= _INPUTS[RESOURCE_TYPES[resource].state]
        return self._document.answer(resource)

    def all(self, state: type[S]) -> tuple[Instance[S], ...]:
        """Every instance of a resource."""
        self._reads |= _INPUTS[state]
        known = self._typed.get(state)
        if known is None:
            found = self._answers.answer(state.resource_type.name)
            if not isinstance(found, tuple):
                raise MissingFact(state.resource_type.name, found)
            known = self._typed[state] = tuple([typed(state, record) for record in found])
        return known

    def the(self, state: type[S]) -> S:
        """The only instance of a resource without a key. Raises MissingFact, WrongState."""
        instances = self.all(state)
        if not instances:
            raise MissingFact(state.resource_type.name, NOT_READ)
        if len(instances) > 1:
            raise WrongState(state.resource_type.name, f"{len(instances)} records of what a host has once")
        return instances[0].state

    def ask(self, question: str) -> tuple[Any, ...]:
        """A property of every instance, asked for as `OperatingSystem.build`. Raises MissingFact."""
        return asking(question)(self)

    def __getitem__(self, resource: str) -> State:
        """The only instance of a resource by its name, for sentences of rows. Raises as `the`."""
        return self.the(RESOURCE_TYPES[resource].state)

    def of(self, state: type[S], key: Mapping[str, str]) -> S | None:
        """The state of one key, or of what can yet be made; None where the host has no such instance."""
        wanted = dict(key)
        found = next((each.state for each in self.all(state) if each.key == wanted), None)
        return _absent(state) if found is None else found

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
        """The step of the ladder of assignment on which a function is."""
        found = self.of(AssignableDevice, function.key)
        if found is None:
            raise MissingFact(f"AssignableDevice at {function.key['location']}", NOT_READ)
        return found.assignment

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs in the order of their location paths, so that plans are stable."""
        return self.keep(_gpus, _gpus, self)


@lru_cache(maxsize=1024)
def asking(question: str) -> Callable[..., tuple[Any, ...]]:
    """The reader of a property of facts, as `HostFacts.ask` names it, whatever subject comes with them."""
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
def _absent(state: type[S]) -> S | None:
    """The state of what can yet be made."""
    absent = state.resource_type.absent
    return None if absent is None else typed(state, Record(absent)).state
