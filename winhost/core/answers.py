"""A host's answers, resource by resource, including those that it could not give: an unread value never passes for a
value.
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
    """The host could not read it: it may exist or not."""

    unknown: RemoteFault

    def __str__(self) -> str:
        return f"could not be read ({self.unknown})"


@dataclass(frozen=True)
class Unavailable:
    """It cannot be read before the named resource is there."""

    unavailable: str

    def __str__(self) -> str:
        return f"cannot be read before {self.unavailable} is there"


Missing = Unknown | Unavailable
NOT_THERE = Unknown(RemoteFault("NotRead", message="these facts do not hold it"))


class MissingFact(Exception):
    """Raised on reading a fact that was not read. `fact` names it, as in `PciDevice.acs`."""

    def __init__(self, fact: str, missing: Missing) -> None:
        super().__init__(fact, missing)
        self.fact = fact
        self.missing = missing

    @cached_property
    def said(self) -> str:
        return f"{self.fact} {self.missing}"

    def __str__(self) -> str:
        return self.said

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
    """The identity of an instance of a resource: hashable, independent of the key's order."""
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
    """Raises MissingFact where the host could not tell a property; if not asked otherwise, also before it can be."""
    if isinstance(value, Mapping) and len(value) == 1:
        if "unknown" in value:
            raise MissingFact(fact, Unknown(fault(value["unknown"])))
        if unavailable and "unavailable" in value:
            raise MissingFact(fact, Unavailable(value["unavailable"]))


@dataclass(frozen=True)
class HostAnswers:
    """A host's answers at one time by resource, with what is declared of these: all that a decision is made from."""

    answers: Mapping[str, tuple[Record, ...] | Missing]
    rules: Mapping[str, ResourceRules]

    def answer(self, resource: str) -> tuple[Record, ...] | Missing:
        """Answers need not hold every resource: what they lack was not read."""
        return self.answers.get(resource, NOT_THERE)

    def state_of(self, resource: str, key: Key) -> Mapping[str, Json] | None:
        """The state as the host answered it, or that of something not yet created; None where there is no such thing.
        Raises MissingFact.
        """
        found = self.answer(resource)
        if isinstance(found, (Unknown, Unavailable)):
            raise MissingFact(resource, found)
        return next((record.state for record in found if dict(record.key) == dict(key)), self.rules[resource].absent)

    def unlisted(self, ids: Iterable[Id]) -> tuple[Id, ...]:
        """The resources to read by name. A Linux has more files, packages and settings than it lists; where a type
        lists all its instances, `absent` says what a missing one is.
        """
        unlisted = set()
        for resource, key in ids:
            found = self.answers.get(resource)
            if not isinstance(found, tuple) or self.rules[resource].absent is not None:
                continue
            if (resource, key) not in {identity(resource, record.key) for record in found}:
                unlisted.add((resource, key))
        return tuple(sorted(unlisted))
