"""A host's answers by resource. A resource or property that could not be read is `Unknown` or `Unavailable`, and never
passes for a value.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, TypeVar

from .dataclass import dataclass
from .rules import Json as Json
from .rules import ResourceRules

Key = Mapping[str, str]
Id = tuple[str, tuple[tuple[str, str], ...]]
T = TypeVar("T")


@dataclass(frozen=True)
class RemoteFault:
    """An error as the host reported it. Match on the codes; `message` is in the host's language."""

    category: str
    code: str = ""
    hresults: tuple[str, ...] = ()
    cmdlet: str = ""
    message: str = ""

    def __str__(self) -> str:
        where = f"{self.cmdlet}: " if self.cmdlet else ""
        return f"{where}{self.message or self.code or self.category}"


@dataclass(frozen=True)
class Unknown:
    """The host could not read the resource or property, which may exist or not."""

    unknown: RemoteFault

    def __str__(self) -> str:
        return f"could not be read ({self.unknown})"


@dataclass(frozen=True)
class Unavailable:
    """The resource or property cannot be read before the named resource exists."""

    unavailable: str

    def __str__(self) -> str:
        return f"cannot be read before {self.unavailable} is there"


Missing = Unknown | Unavailable
NOT_READ = Unknown(RemoteFault("NotRead", message="these facts do not hold it"))


class MissingFact(Exception):
    """Raised on reading a fact that was not read. `fact` names it, as in `PciDevice.acs`."""

    def __init__(self, fact: str, missing: Missing) -> None:
        super().__init__(fact, missing)
        self.fact = fact
        self.missing = missing

    @cached_property
    def sentence(self) -> str:
        return f"{self.fact} {self.missing}"

    def __str__(self) -> str:
        return self.sentence

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MissingFact) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.fact)


def if_known(read: Callable[[], T | None]) -> T | None:
    """Return a fact, or None where it was not read."""
    try:
        return read()
    except MissingFact:
        return None


def if_available(read: Callable[[], T | None]) -> T | None:
    """Return a fact, or None where it cannot be read yet. Raises MissingFact where reading it failed."""
    try:
        return read()
    except MissingFact as missing:
        if isinstance(missing.missing, Unavailable):
            return None
        raise


@dataclass(frozen=True)
class Record:
    """One instance of a resource as it travels: raw JSON, not yet typed."""

    state: Mapping[str, Json]
    key: Key = field(default_factory=dict)


def identity(resource: str, key: Key) -> Id:
    """Return the identity of an instance of a resource: hashable, independent of the key's order."""
    return resource, tuple(sorted(key.items()))


def fault(error: Mapping[str, Any]) -> RemoteFault:
    """Read an error as the agent writes it."""
    return RemoteFault(
        category=error["category"],
        code=error.get("code", ""),
        hresults=tuple(error.get("hresults", ())),
        cmdlet=error.get("cmdlet", ""),
        message=error.get("message", ""),
    )


def refuse_missing(fact: str, value: Json, *, unavailable: bool = True) -> None:
    """Raise MissingFact if the host could not read a property and, unless `unavailable` is false, if it cannot be read
    yet.
    """
    if isinstance(value, Mapping) and len(value) == 1:
        if "unknown" in value:
            raise MissingFact(fact, Unknown(fault(value["unknown"])))
        if unavailable and "unavailable" in value:
            raise MissingFact(fact, Unavailable(value["unavailable"]))


@dataclass(frozen=True)
class HostAnswers:
    """A host's answers at one time and the rules of these resources: the input of each decision."""

    answers: Mapping[str, tuple[Record, ...] | Missing]
    rules: Mapping[str, ResourceRules]

    def answer(self, resource: str) -> tuple[Record, ...] | Missing:
        """Return the answer of a resource; `NOT_READ` if it was not read."""
        return self.answers.get(resource, NOT_READ)

    def state_of(self, resource: str, key: Key) -> Mapping[str, Json] | None:
        """Return the state of an instance as the host answered it. For an instance that does not exist, return the
        state `absent` of its rules, or None where these have none. Raises MissingFact.
        """
        found = self.answer(resource)
        if isinstance(found, (Unknown, Unavailable)):
            raise MissingFact(resource, found)
        return next((record.state for record in found if dict(record.key) == dict(key)), self.rules[resource].absent)

    def unlisted(self, ids: Iterable[Id]) -> tuple[Id, ...]:
        """Return those of `ids` that have to be read by name. A Linux has more files, packages and settings than it
        lists; of a type that lists all its instances, `absent` is the state of one that is not listed.
        """
        unlisted = set()
        for resource, key in ids:
            found = self.answers.get(resource)
            if not isinstance(found, tuple) or self.rules[resource].absent is not None:
                continue
            if (resource, key) not in {identity(resource, record.key) for record in found}:
                unlisted.add((resource, key))
        return tuple(sorted(unlisted))
