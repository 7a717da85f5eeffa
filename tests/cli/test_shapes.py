"""No field of a published format is removed or renamed without a new version."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cases import read_cases
from tests.rows import each_row
from winhost.cli.formats import FILES, KINDS, schema_of
from winhost.cli.look.schema import file_schema, results_schema

# Version → the names of all fields that documents of it may have, as they were when it was published.
PUBLISHED: dict[str, list[str]] = read_cases(Path(__file__).parents[1] / "data" / "shapes.yaml")


def fields(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for part in schema.values():
            yield from fields(part)
    if isinstance(schema, list):
        for part in schema:
            yield from fields(part)


def _version(field: dict[str, Any]) -> str:
    return str(field.get("const") or field["default"])


def schemas() -> Iterator[tuple[str, Any]]:
    yield from ((schema_of(kind), results_schema(kind)) for kind in KINDS)
    of_files = [file_schema(name) for name in FILES if name != "journal"]
    yield from ((_version(schema["properties"]["schema"]), schema) for schema in of_files)


@each_row(("version", "schema"), schemas)
def test_a_published_shape_keeps_its_fields_or_gets_a_new_version(version: str, schema: Any) -> None:
    assert set(PUBLISHED[version]) <= set(fields(schema)), f"{version} lost a field: give it the next version"
    assert set(fields(schema)) <= set(PUBLISHED[version]), (
        f"{version} has new fields: add them to tests/data/shapes.yaml"
    )


@each_row(("version", "schema"), schemas)
def test_a_finding_has_the_same_fields_in_every_answer(version: str, schema: Any) -> None:
    common = results_schema("assessment")["$defs"]["Finding"]["properties"]
    for name, part in schema.get("$defs", {}).items():
        own = part.get("properties", {})
        if {"code", "severity"} <= own.keys():
            assert {field: own.get(field) for field in common} == common, f"{name} of {version}"
