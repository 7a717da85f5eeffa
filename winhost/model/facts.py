"""Facts: what a host answered. The file is exactly the agent's answers, resource by resource.

A value that could not be read is `Unknown`, one that cannot exist yet is `Unavailable`; both may stand for a whole
resource or for one property of a state. Nothing hides them: reading one through a typed state raises.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeVar

from winhost.core.answers import NOT_THERE, Key, Record, Unavailable, Unknown
from winhost.core.dataclass import dataclass
from winhost.model.measured import Measurement

SCHEMA = "winhost.facts/2"
ORIGINS = ("recorded", "imported", "synthetic")


@dataclass(frozen=True)
class OrMissing:
    """Marks what a host may not tell: a value of its type, or why there is none. known: the type, where a union with
    the others stands for it.
    """

    known: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.tagged_union_schema(
            {
                "known": handler(source) if self.known is None else handler.generate_schema(self.known),
                "unknown": handler.generate_schema(Unknown),
                "unavailable": handler.generate_schema(Unavailable),
            },
            discriminator=_tag,
        )


def _tag(value: object) -> str:
    if isinstance(value, Mapping) and len(value) == 1:
        only = next(iter(value))
        if only in ("unknown", "unavailable"):
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
        return self.resources.get(resource, NOT_THERE)


T = TypeVar("T")


@dataclass(frozen=True)
class Instance(Generic[T]):
    """A resource's key with its typed state."""

    key: Key
    state: T
