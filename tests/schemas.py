"""Validates the part of JSON Schema that our published schemas use; other keywords are errors, never ignored."""

from collections.abc import Iterator
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
SAID = {"$schema", "$defs", "title", "description", "default", "discriminator"}
CHECKED = {"$ref", "anyOf", "oneOf", "type", "enum", "const", "properties", "required", "additionalProperties"}
CHECKED |= {"items", "prefixItems", "minItems", "maxItems"}


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> Iterator[str]:
    """Return the faults of a value against a schema, with their positions."""
    assert schema.keys() <= SAID | CHECKED, schema.keys()
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at)
    if "anyOf" in schema and all(list(faults(value, each, root, at)) for each in schema["anyOf"]):
        yield f"{at}: none of {len(schema['anyOf'])} shapes fits"
    if "oneOf" in schema and [list(faults(value, each, root, at)) for each in schema["oneOf"]].count([]) != 1:
        yield f"{at}: not one of {len(schema['oneOf'])} shapes fits"
    if "type" in schema and not is_a(value, schema["type"]):
        yield f"{at}: {value!r:.60} is no {schema['type']}"
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        yield f"{at}: {value!r:.60} is not allowed"
    if isinstance(value, dict):
        yield from of_object(value, schema, root, at)
    if isinstance(value, list):
        yield from of_array(value, schema, root, at)


def is_a(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and not (isinstance(value, bool) and kind != "boolean")


def of_object(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    yield from (f"{at}: lacks {name}" for name in schema.get("required", ()) if name not in value)
    for name, inner in value.items():
        if name in known:
            yield from faults(inner, known[name], root, f"{at}.{name}")
        elif isinstance(others, dict):
            yield from faults(inner, others, root, f"{at}.{name}")
        elif not others:
            yield f"{at}: has {name}, which is not told"


def of_array(value: list[Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{at}: has {len(value)} items"
    first = schema.get("prefixItems", [])
    for place, inner in enumerate(value):
        told = first[place] if place < len(first) else schema.get("items", {})
        yield from faults(inner, told, root, f"{at}[{place}]")
