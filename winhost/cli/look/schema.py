"""winhost schema: print the JSON Schema of winhost's file and output formats, for editors and validators."""

from importlib import import_module
from typing import Any

from winhost.cli.envelope import print_json
from winhost.cli.formats import FILES, KINDS, LINES, schema_of
from winhost.model.documents import answer_schema, json_schema
from winhost.model.errors import ErrorResult


def schema(name: str) -> None:
    if name == "event":
        body = answer_schema(_import_model(LINES))
    else:
        body = file_schema(name) if name in FILES else results_schema(name)
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **body}, indent=2)


def file_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a file format."""
    return json_schema(_import_model(FILES[name]))


def results_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of the document that a command writes with --json. All of its fields are required."""
    result = answer_schema(_import_model(KINDS[kind][1]) | ErrorResult)
    return {
        "title": schema_of(kind),
        "type": "object",
        "properties": {
            "schema": {"const": schema_of(kind), "type": "string"},
            "results": {"type": "array", "items": {name: part for name, part in result.items() if name != "$defs"}},
        },
        "required": ["schema", "results"],
        "additionalProperties": False,
        "$defs": result["$defs"],
    }


def _import_model(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"winhost.{module}"), name)
