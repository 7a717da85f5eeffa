"""Reads and writes facts and plans as JSON files, and generates JSON Schemas."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from winhost.model.errors import UsageError, visible_json
from winhost.model.facts import SCHEMA as FACTS
from winhost.model.facts import Facts
from winhost.model.lazy import LazySequence
from winhost.model.plan import SCHEMA as PLAN
from winhost.model.plan import Plan
from winhost.model.versions import refuse_other_kind, refuse_other_version
from winhost.model.yamlfile import load_json

T = TypeVar("T")
SCHEMAS: Mapping[type[Any], str] = {Facts: FACTS, Plan: PLAN}
_HOW_TO_CREATE: Mapping[type[Any], str] = {
    Facts: "read the host into a file: winhost detect HOST -o facts",
    Plan: "plan: winhost plan HOST -o plan.json",
}


def read_document(path: Path, kind: type[T]) -> T:
    """Read facts or a plan from a file. Raises UsageError: WrongDocument, OtherVersion, or FileFaults with
    every fault.
    """

    def check(data: object) -> None:
        is_facts = kind is Plan and isinstance(data, dict) and _is_kind(str(data.get("schema")), Facts)
        hint = "plan from it: winhost plan FACTS -o plan.json" if is_facts else _HOW_TO_CREATE[kind]
        refuse_other_kind(str(path), data, SCHEMAS[kind], hint[0].upper() + hint[1:])
        refuse_other_version(str(path), data)

    return load_json(path, kind, check, _HOW_TO_CREATE[kind])


def _is_kind(schema: str, kind: type[Any]) -> bool:
    return schema.rpartition("/")[0] == SCHEMAS[kind].rpartition("/")[0]


def is_document(path: Path, kind: type[Any]) -> bool:
    """Tell whether a file is of this kind, in any version. True also for an unreadable file: reading it as a document
    then reports why.
    """
    try:
        schema = load_json(path, dict[str, Any]).get("schema")
    except UsageError:
        return True
    return _is_kind(str(schema), kind)


def plain(value: object) -> Any:
    """Turn a value with dataclasses at any depth into JSON data, with fields in the order of their declaration."""
    return json.loads(json.dumps(value, default=_fields))


def _fields(value: object) -> object:
    if isinstance(value, LazySequence):
        return tuple(value)
    if not is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is not data")
    return {field.name: getattr(value, field.name) for field in fields(value)}


def write_document(value: object) -> str:
    """Format a value as indented JSON in a stable order, with a newline at the end."""
    return visible_json(plain(value), indent=2) + "\n"


def json_schema(kind: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document."""
    return TypeAdapter(kind).json_schema(by_alias=True)


class _AllFieldsRequired(GenerateJsonSchema):
    """Requires all fields, and allows no others."""

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        return {**super().dataclass_schema(schema), "additionalProperties": False}

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True


def answer_schema(kind: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a document that only winhost writes, in which every field is present."""
    return TypeAdapter(kind).json_schema(mode="serialization", schema_generator=_AllFieldsRequired)
