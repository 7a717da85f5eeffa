"""winhost schema: our file formats, for editors and validators."""

from importlib import import_module
from typing import Any

from winhost.cli.envelope import print_json
from winhost.cli.formats import FILES, KINDS, LINES, schema_of
from winhost.model.documents import answer_schema, json_schema
from winhost.model.errors import ErrorResult


def schema(name: str) -> None:
    if name == "event":
        found = answer_schema(_model(LINES))
    else:
        found = file_schema(name) if name in FILES else results_schema(name)
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **found}, indent=2)


def file_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a file."""
    return json_schema(_model(FILES[name]))


def results_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a document of this kind. Whoever reads one can rely on every field."""
    result = answer_schema(_model(KINDS[kind][1]) | ErrorResult)
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


def _model(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"winhost.{module}"), name)
