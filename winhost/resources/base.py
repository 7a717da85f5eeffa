"""The base of all resource types: `State`, the properties of an instance, and `ResourceType`, its declaration."""

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
    """A typed state. Reading a property that the host did not report raises `MissingFact`, so callers need no test.

    Such a property is not stored on the instance. Python therefore calls `__getattr__` only for missing properties,
    which keeps the others fast: rules read tens of thousands of properties.
    """

    resource_type: ClassVar["ResourceType"]
    optional_properties: ClassVar[frozenset[str]]

    def __post_init__(self) -> None:
        properties = vars(self)
        if not _MISSING.isdisjoint(map(type, properties.values())):
            missing = {name: value for name, value in properties.items() if type(value) in _MISSING}
            for name in missing:
                del properties[name]
            properties["_missing"] = missing

    if not TYPE_CHECKING:  # with this method, a type checker would accept any attribute name

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

    - name: as in `Get-Winhost<name>`.
    - title: its name in messages; plural unless a host has only one instance.
    - order: resources with a lower order are read first; those without one are read last.
    - key: the names of the key's parts.
    - sets: the properties that `set` can change, with their allowed values.
    - after: resources whose steps run before the steps of this one.
    - requires: the resource without which this one is unavailable.
    - absent: the state of an instance that the host does not list, if `set` can create it.
    - usual: the state on a new Windows, and on a simulated host that states none.
    - restarts: a change takes effect only after a restart.
    - asks: every consent that a change can require.
    - needs: states of other resources that must hold during a change.
    - risks: consents that a change requires.
    - may_need: consents that a change requires only if the host turns out to need them.
    - dependents: what depends on an instance; rollback keeps the instance while newer dependents exist.
    - within: what contains an instance; the instance is removed with its container.
    - known_as: for a container, the part of its contents' keys that names it, and its own property with that name.
    - upload: the file next to the plan that a change needs and that is sent to the host first, or None.
    - download: the address from which the host downloads what a change needs, or None.
    - credential: the property that holds a secret reference; the secret goes to the host with a change, nowhere else.
    - timeout: the seconds that a change may take, if more than the default.
    - irreversible: reasons why a change cannot be undone.
    - undo: how rollback undoes a change.
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
    timeout: Callable[[Change], float] = lambda change: 0
    irreversible: tuple[KeepIf, ...] = ()
    undo: UndoRule = UNDO_EACH_PROPERTY
    state: type[State] = field(default=State)

    def check_names(self, key: Key, desired: Mapping[str, Json]) -> str | None:
        """Return what is wrong with the names of the key's parts or of the desired properties, or None."""
        if set(key) != set(self.key):
            return f"the key of {self.name} has the parts: {', '.join(self.key) or 'none'}"
        unknown = sorted(set(desired) - set(self.sets))
        if unknown:
            return f"{self.name} cannot set {', '.join(unknown)}; it sets: {', '.join(self.sets) or 'nothing'}"
        return None

    def check_values(self, desired: Mapping[str, Json]) -> str | None:
        """Return why a property cannot be set to its desired value, or None. Call `check_names` first."""
        for name, value in desired.items():
            if not self.sets[name].fits(value):
                return f"{self.name}.{name} should be {self.sets[name].expected}, not {value!r:.80}"
        return None


@dataclass(frozen=True)
class Bounds:
    """The bounds of an integer property. No host has a value outside them, and such a value would overflow."""

    minimum: int
    maximum: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.int_schema(ge=self.minimum, le=self.maximum)


@dataclass(frozen=True)
class Form:
    """The format of a text property that rules parse. parse: raises ValueError for text in another format; expected:
    completes a sentence that begins with `should be`.
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


# The default of a property that facts of older versions may not contain. Reading such a property raises `MissingFact`.
NOT_REPORTED: Any = NOT_READ
VERSION = Form(Version, "a version such as 2.6.1")
ADDRESS = Form(ip_address, "an IP address")


@dataclass_transform(frozen_default=True)
def resource(declared: ResourceType) -> Callable[[type[S]], type[S]]:
    """Make a class the typed state of `declared`: a frozen dataclass, of which each property may be missing."""

    def declare(cls: type[S]) -> type[S]:
        cls.optional_properties = frozenset(name for name in cls.__annotations__ if vars(cls).get(name) is NOT_REPORTED)
        for name in cls.optional_properties:
            setattr(cls, name, field(default_factory=lambda: NOT_REPORTED))
        state = dataclass(frozen=True)(cls)
        if cls.optional_properties:
            # Generate the dataclass's methods now. Until then its defaults are class attributes, which Python finds
            # without calling `__getattr__`.
            fields(cast(Any, state))
        unknown = set(declared.sets) - set(state.__annotations__)
        if unknown:
            raise TypeError(f"{declared.name} sets {sorted(unknown)}, which its state does not have")
        state.resource_type = ResourceType(**{**declared.__dict__, "state": state})
        return state

    return declare


__all__ = ["ADDRESS", "NOT_REPORTED", "VERSION", "Attachment", "Bounds", "Form", "ResourceType", "State", "resource"]
