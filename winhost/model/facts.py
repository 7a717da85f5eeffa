"""Facts: what a host answered. The file is exactly the agent's answers, resource by resource.

A value that could not be read is `Unknown`, one that cannot exist yet is `Unavailable`. Either may replace a whole
resource or one property of a state. Reading one through a typed state raises MissingFact.
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
    """Annotates a value that a host may not report: a value of its type, or the reason why there is none. known: the
    type of the value, where the annotated type is a union with the reasons.
    """

    known: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        if self.known is None:
            known, reasons = handler(source), _reasons()
        else:  # so that each has its own name in a JSON schema
            known = handler.generate_schema(self.known)
            reasons = {name: handler.generate_schema(kind) for name, kind in _REASONS.items()}
        return core_schema.tagged_union_schema({"known": known, **reasons}, discriminator=_tag)


_REASONS = {"unknown": Unknown, "unavailable": Unavailable}
# Checked first for every property of every resource, because `isinstance(…, Mapping)` is slow.
_NON_MAPPING_TYPES = frozenset({str, int, float, bool, type(None), list, tuple})


@once
def _reasons() -> "Mapping[str, CoreSchema]":
    """Return the schemas of the reasons why a value is missing, generated once for all properties of resources."""
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

    origin: `recorded` if the host answered, `imported` if the facts are from files of its tools, `synthetic` if a lab
    or a person made them up; every output made from synthetic facts says so. read_at: ISO 8601 in UTC. winhost: the
    version that wrote the facts; for imported facts, also the kinds of files. stated: statements of a user where
    nothing was read, such as `os=win11-pro`, which files do not contain. measured: the results of `winhost probe`.
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
        """Return the answer about a resource. A resource that the facts do not contain was not read."""
        return self.resources.get(resource, NOT_READ)

    def edited(self, resource: str, edit: Callable[[Record], Record | None]) -> "Facts":
        """Return the facts with each record of a resource replaced by what `edit` returns, and removed if that is None.
        An answer that could not be read stays as it is.
        """
        answer = self.answer(resource)
        if not isinstance(answer, tuple):
            return self
        after = tuple(changed for each in answer if (changed := edit(each)) is not None)
        return replace(self, resources={**self.resources, resource: after})


def with_state(record: Record, changed: Mapping[str, Json]) -> Record:
    """Return the record with these properties changed."""
    return replace(record, state={**record.state, **changed})


T = TypeVar("T")


@dataclass(frozen=True)
class Instance(Generic[T]):
    """A resource's key with its typed state."""

    key: Key
    state: T
