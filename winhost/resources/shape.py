"""Checks of a resource's records: the parts of the key, the names of the properties, and their types."""

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

_MAX_FAULTS = 3  # of one record that an error message lists


@once
def validator(resource: str) -> "SchemaValidator":
    """Return the validator that parses a state of a resource. Each property may be missing.

    Its schema is assembled from the cached schemas of the properties' types. All states together have a few dozen such
    types, while pydantic takes a millisecond to derive a schema for each state.
    """
    from pydantic_core import SchemaValidator, core_schema

    state = RESOURCE_TYPES[resource].state
    hints = get_type_hints(state, include_extras=True)
    schemas = {name: _schema(hints[name]) for name in state.__annotations__}
    schemas |= {
        name: core_schema.with_default_schema(schemas[name], default=NOT_READ) for name in state.optional_properties
    }
    properties = [core_schema.dataclass_field(name, schema) for name, schema in schemas.items()]
    arguments = core_schema.dataclass_args_schema(state.__name__, properties)
    return SchemaValidator(core_schema.dataclass_schema(state, arguments, [*state.__annotations__], post_init=True))


@once
def property_validator(resource: str, name: str) -> "SchemaValidator":
    """Return the validator of one property of a resource. The property may be missing."""
    from pydantic_core import SchemaValidator

    return SchemaValidator(_schema(get_type_hints(RESOURCE_TYPES[resource].state, include_extras=True)[name]))


@once
def _schema(hint: Any) -> "CoreSchema":
    """Return the schema for a value of a property's type, or for the reason why the value is missing."""
    from pydantic import TypeAdapter

    return TypeAdapter(Annotated[hint, OrMissing()]).core_schema


def check_records(resource: str, records: Sequence[Record]) -> str | None:
    """Return what is wrong with the records of a resource, or None. Records that pass can be typed."""
    resource_type = RESOURCE_TYPES[resource]
    if not resource_type.key and len(records) > 1:
        return f"{len(records)} records of what a host has once"
    for record in records:
        if set(record.key) != set(resource_type.key):
            return f"the key has the parts {_join_names(record.key)}, not {_join_names(resource_type.key)}"
        if why := _check_state(resource, record.state):
            key = visible("/".join(record.key.values()))[:100]
            return f"{key}: {why}" if record.key else why
    return None


def faults(error: "ValidationError") -> str:
    """Return the faults of a state as one line: the first few of them, and how many more there are."""
    lines = []
    for each in error.errors(include_url=False):
        # The tags known, unknown and unavailable are names of pydantic union members, not of properties.
        path = ".".join(str(part) for part in each["loc"] if part not in ("known", "unknown", "unavailable"))
        lines.append(f"{path}: {each['msg'].removeprefix('Value error, ')}")
    more = [f"and {len(lines) - _MAX_FAULTS} more"] if len(lines) > _MAX_FAULTS else []
    return visible("; ".join([*lines[:_MAX_FAULTS], *more]))


def _check_state(resource: str, state: Mapping[str, Any]) -> str | None:
    from pydantic import ValidationError

    unknown = sorted(set(state) - RESOURCE_TYPES[resource].state.__annotations__.keys())
    if unknown:
        return f"there is no property {_join_names(unknown)}"
    try:
        # For JSON, pydantic's strict mode accepts a list for a tuple but refuses "5" for a number.
        validator(resource).validate_json(json.dumps(state), strict=True)
    except ValidationError as error:
        return faults(error)
    return None


def _join_names(names: Sequence[str] | Mapping[str, str]) -> str:
    return visible(", ".join(names))[:200] or "none"
