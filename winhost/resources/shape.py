"""The shape of a resource's records: its key, its properties and their types."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from winhost.core.answers import NOT_READ, Record
from winhost.model.errors import visible
from winhost.model.facts import OrMissing
from winhost.model.once import once
from winhost.resources.registry import RESOURCE_TYPES

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import CoreSchema, SchemaValidator

_FAULTS = 3  # of a record, at most, that an error lists


@once
def validator(resource: str) -> "SchemaValidator":
    """Makes the typed state of a resource, each property of which may be missing.

    Its schema is put together from those of the types of properties, of which all states together have a few dozen:
    pydantic would take a millisecond a state to find them anew.
    """
    from pydantic_core import SchemaValidator, core_schema

    state = RESOURCE_TYPES[resource].state
    hints = get_type_hints(state, include_extras=True)
    schemas = {name: _schema(hints[name]) for name in state.__annotations__}
    schemas |= {name: core_schema.with_default_schema(schemas[name], default=NOT_READ) for name in state.may_lack}
    properties = [core_schema.dataclass_field(name, schema) for name, schema in schemas.items()]
    arguments = core_schema.dataclass_args_schema(state.__name__, properties)
    return SchemaValidator(core_schema.dataclass_schema(state, arguments, [*state.__annotations__], post_init=True))


@once
def property_validator(resource: str, name: str) -> "SchemaValidator":
    """Checks one property of a resource, which may be missing."""
    from pydantic_core import SchemaValidator

    return SchemaValidator(_schema(get_type_hints(RESOURCE_TYPES[resource].state, include_extras=True)[name]))


@once
def _schema(hint: Any) -> "CoreSchema":
    """A value of a property's type, or why there is none."""
    from pydantic import TypeAdapter

    return TypeAdapter(Annotated[hint, OrMissing()]).core_schema


def misfit(resource: str, records: Sequence[Record]) -> str | None:
    """Say why these cannot be all records of a resource, or None: then each can be typed."""
    known = RESOURCE_TYPES[resource]
    if not known.key and len(records) > 1:
        return f"{len(records)} records of what a host has once"
    for record in records:
        if set(record.key) != set(known.key):
            return f"the key has the parts {_named(record.key)}, not {_named(known.key)}"
        if why := _misfit(resource, record.state):
            named = visible("/".join(record.key.values()))[:100]
            return f"{named}: {why}" if record.key else why
    return None


def faults(error: "ValidationError") -> str:
    """Say in a sentence what is wrong with a state; the first of several faults."""
    found = []
    for each in error.errors(include_url=False):
        # Without the tags that tell a value from the reason why there is none.
        path = ".".join(str(part) for part in each["loc"] if part not in ("known", "unknown", "unavailable"))
        found.append(f"{path}: {each['msg'].removeprefix('Value error, ')}")
    more = [f"and {len(found) - _FAULTS} more"] if len(found) > _FAULTS else []
    return visible("; ".join([*found[:_FAULTS], *more]))


def _misfit(resource: str, state: Mapping[str, Any]) -> str | None:
    from pydantic import ValidationError

    foreign = sorted(set(state) - RESOURCE_TYPES[resource].state.__annotations__.keys())
    if foreign:
        return f"there is no property {_named(foreign)}"
    try:
        # As JSON, where pydantic's strict mode fits: a list may be a tuple, and "5" is no number.
        validator(resource).validate_json(json.dumps(state), strict=True)
    except ValidationError as error:
        return faults(error)
    return None


def _named(names: Sequence[str] | Mapping[str, str]) -> str:
    return visible(", ".join(names))[:200] or "none"
