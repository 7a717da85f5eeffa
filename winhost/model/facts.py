"""Facts: what a host answered. The file is exactly the agent's answers, resource by resource.

A value that could not be read is `Unknown`, one that cannot exist yet is `Unavailable`; both may stand for a whole
resource or for one property of a state. Nothing hides them: reading one through a typed state raises.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from winhost.core.answers import NOT_READ, Json, Key, Record, Unavailable, Unknown
from winhost.core.dataclass import dataclass
from winhost.model.measured import Measurement
from winhost.model.once import once

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

SCHEMA = "winhost.facts/3"
ORIGINS = ("recorded", "imported", "synthetic")


@dataclass(frozen=True)
class OrMissing:
    """Marks what a host may not tell: a value of its type, or why there is none. known: the type, where a union with
    the others stands for it.
    """

    known: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        if self.known is None:
            known, reasons = handler(source), _reasons()
        else:  # each has a name of its own in a JSON schema
            known = handler.generate_schema(self.known)
            reasons = {name: handler.generate_schema(kind) for name, kind in _REASONS.items()}
        return core_schema.tagged_union_schema({"known": known, **reasons}, discriminator=_tag)


_REASONS = {"unknown": Unknown, "unavailable": Unavailable}
# Asked of every property of every resource, where `Mapping` is slow to say no.
_NON_MAPPING_TYPES = frozenset({str, int, float, bool, type(None), list, tuple})


@once
def _reasons() -> "Mapping[str, CoreSchema]":
    """The schemas of the reasons why a value is missing, generated once for all properties of resources."""
    from pydantic import TypeAdapter

    return {name: TypeAdapter(kind).core_schema for name, kind in _REASONS.items()}


def _tag(value: object) -> str:
    if type(value) not in _NON_MAPPING_TYPES and isinstance(value, Mapping) and len(value) == 1:
        only = next(iter(value))
        if only in _REASONS:
            return str(only)
    return "known"


Answer = Annotated[tuple[Record, ...] | Unknown | Unavailable, OrMissing(tuple[Record, ...])]


@dataclass(frozen=True)
class Facts:
    """All answers of one host at one time.

    `origin` is `recorded` where a host answered, `imported` where files of its tools were brought in, and `synthetic`
    where a lab or a person made it up; every output made from synthetic facts says so. `read_at` is ISO 8601 in UTC.
    `winhost`: the version that wrote this; of imported facts, also from what kinds of files. `stated`: what a user said
    where nothing was read, as `os=win11-pro`; no file of facts holds any. `measured`: what `winhost probe` tried.
    """

    host: str
    origin: str
    read_at: str
    winhost: str
    resources: Mapping[str, Answer]
    schema: str = SCHEMA
    stated: tuple[str, ...] = ()
    measured: tuple[Measurement, ...] = ()

    def answer(self, resource: str) -> Answer:
        """Facts need not hold every resource: what they lack was not read."""
        return self.resources.get(resource, NOT_READ)

    def edited(self, resource: str, edit: Callable[[Record], Record | None]) -> "Facts":
        """The facts with each record of a resource as `edit` returns it, without those for which it returns None. What
        could not be read stays so.
        """
        answer = self.answer(resource)
        if not isinstance(answer, tuple):
            return self
        after = tuple(changed for each in answer if (changed := edit(each)) is not None)
        return replace(self, resources={**self.resources, resource: after})


def with_state(record: Record, changed: Mapping[str, Json]) -> Record:
    """The record with other values of these properties."""
    return replace(record, state={**record.state, **changed})


T = TypeVar("T")


@dataclass(frozen=True)
class Instance(Generic[T]):
    """A resource's key with its typed state."""

    key: Key
    state: T
