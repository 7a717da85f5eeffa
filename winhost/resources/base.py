"""The base of all resource types: a key, a state, needs and risks. The engine does the rest."""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, dataclass_transform

from packaging.version import Version

from winhost.core.answers import NOT_READ, Json, Key, MissingFact, Unavailable, Unknown
from winhost.core.dataclass import dataclass
from winhost.core.rules import UNDO_EACH_PROPERTY, ConsentRule, DependentRule, KeepIf, NeedRule, UndoRule
from winhost.core.steps import Change
from winhost.resources.values import Value

S = TypeVar("S", bound="State")


_MISSING = frozenset((Unknown, Unavailable))


class State:
    """A typed state. Reading a property that the host could not tell raises `MissingFact`; nothing tests for it.

    Such a property is no attribute of the instance, so that Python asks `__getattr__` for it and for no other: rules
    read tens of thousands of properties.
    """

    resource_type: ClassVar["ResourceType"]
    may_lack: ClassVar[frozenset[str]]

    def __post_init__(self) -> None:
        told = vars(self)
        if not _MISSING.isdisjoint(map(type, told.values())):
            missing = {name: value for name, value in told.items() if type(value) in _MISSING}
            for name in missing:
                del told[name]
            told["_missing"] = missing

    if not TYPE_CHECKING:  # which would take any name for a property

        def __getattr__(self, name: str) -> Any:
            why = vars(self).get("_missing", {}).get(name)
            if why is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            raise MissingFact(f"{type(self).__name__}.{name}", why)


@dataclass(frozen=True)
class Attachment:
    """A file next to the plan file, and the SHA-256 that it must have."""

    name: str
    sha256: str


@dataclass(frozen=True)
class ResourceType:
    """A resource's declaration.

    name: as in `Get-Winhost<name>`; title: what sentences for people call it, in the plural but for what a host has
    once; order: lower ones are read first, and without one the last; key: names of the
    key's parts; sets: the properties that `set` can change, and to
    what; after: resources whose steps come first; requires: the resource without which this one is unavailable;
    absent: the state of an instance that the host does not list, where `set` can make one;
    usual: the state on a new Windows, which a simulated host has that states none;
    restarts: a change takes effect with a restart; asks: every consent that a change can ask for;
    needs: what must hold while it changes; risks: consents that this change asks for; may_need: consents that the host
    may turn out to ask for; dependents: what depends on an instance as it is, so that rollback keeps it for newer ones;
    within: what it lies in, and goes with; known_as: the part of others' keys that names it, and its property
    with that name, where others are parts of it and go with it; upload: the file next to the plan that a change takes,
    sent to the host before it, or nothing; download: the address from which the host fetches what a change takes;
    credential: the property that holds a secret reference, whose value goes to the host with a change and nowhere else;
    lasts: seconds that a change may take, where that is more than others get;
    irreversible: why a change cannot be taken back; undo: how rollback takes it back.
    """

    name: str
    title: str
    order: int = 10_000
    key: tuple[str, ...] = ()
    sets: Mapping[str, Value] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    requires: str | None = None
    absent: Mapping[str, Json] | None = None
    usual: Mapping[str, Json] | None = None
    restarts: bool = False
    asks: tuple[str, ...] = ()
    needs: tuple[NeedRule, ...] = ()
    risks: tuple[ConsentRule, ...] = ()
    may_need: tuple[ConsentRule, ...] = ()
    dependents: tuple[DependentRule, ...] = ()
    within: DependentRule | None = None
    known_as: tuple[str, str] | None = None
    upload: Callable[[Change], Attachment | None] = lambda change: None
    download: Callable[[Change], str | None] = lambda change: None
    credential: str = ""
    lasts: Callable[[Change], float] = lambda change: 0
    irreversible: tuple[KeepIf, ...] = ()
    undo: UndoRule = UNDO_EACH_PROPERTY
    state: type[State] = field(default=State)

    def misfit(self, key: Key, desired: Mapping[str, Json]) -> str | None:
        """Say why this cannot be desired of an instance of this resource, or None."""
        if set(key) != set(self.key):
            return f"the key of {self.name} has the parts: {', '.join(self.key) or 'none'}"
        wrong = sorted(set(desired) - set(self.sets))
        if wrong:
            return f"{self.name} cannot set {', '.join(wrong)}; it sets: {', '.join(self.sets) or 'nothing'}"
        return None

    def wrong_value(self, desired: Mapping[str, Json]) -> str | None:
        """Say why a property cannot be set to the desired value, or None. Its names must be right (`misfit`)."""
        for name, value in desired.items():
            if not self.sets[name].fits(value):
                return f"{self.name}.{name} should be {self.sets[name].expected}, not {value!r:.80}"
        return None


@dataclass(frozen=True)
class Within:
    """Marks a whole number that has bounds: no host has a value beyond them, and arithmetic with one would overflow."""

    least: int
    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.int_schema(ge=self.least, le=self.most)


@dataclass(frozen=True)
class Form:
    """Marks text that rules parse. parse: raises ValueError for text of another form; expected: the rest of a sentence
    that begins `should be`.
    """

    parse: Callable[[str], object]
    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, text: str) -> str:
        try:
            self.parse(text)
        except ValueError:
            raise ValueError(f"should be {self.expected}") from None
        return text


# The default of a property that facts may lack: reading it raises as if the host had not told it.
NOT_TOLD: Any = NOT_READ
VERSION = Form(Version, "a version such as 2.6.1")
ADDRESS = Form(ip_address, "an IP address")


@dataclass_transform(frozen_default=True)
def resource(declared: ResourceType) -> Callable[[type[S]], type[S]]:
    """Make a class the typed state of `declared`: a frozen dataclass each of whose properties may be missing."""

    def declare(cls: type[S]) -> type[S]:
        cls.may_lack = frozenset(name for name in cls.__annotations__ if vars(cls).get(name) is NOT_TOLD)
        for name in cls.may_lack:
            setattr(cls, name, field(default_factory=lambda: NOT_TOLD))
        made = dataclass(frozen=True)(cls)
        if cls.may_lack:  # until its methods are generated, a default is in the class, where it hides `__getattr__`
            fields(cast(Any, made))
        unknown = set(declared.sets) - set(made.__annotations__)
        if unknown:
            raise TypeError(f"{declared.name} sets {sorted(unknown)}, which its state does not have")
        made.resource_type = ResourceType(**{**declared.__dict__, "state": made})
        return made

    return declare


__all__ = [
    "ADDRESS",
    "NOT_TOLD",
    "VERSION",
    "Attachment",
    "Form",
    "ResourceType",
    "State",
    "Within",
    "resource",
]
