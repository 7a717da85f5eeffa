"""What assess, diff and explain answer with --json has the shape that `winhost schema` publishes."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.rows import each_row
from tests.schemas import faults
from winhost.cli.formats import schema_of
from winhost.cli.look.schema import results_schema as published
from winhost.compat.assess_answer import brief, full
from winhost.compat.compare import compare
from winhost.compat.evaluation import Requirements, evaluate
from winhost.compat.needs import merge_needs
from winhost.knowledge import catalogue
from winhost.knowledge.catalogue import explain
from winhost.lab.hostfile import expand, find, host_files
from winhost.model.documents import plain, write_document
from winhost.model.facts import Facts
from winhost.model.workloadfile import load_workload

WORKLOADS = sorted((Path(__file__).parents[2] / "examples" / "workloads").glob("*.yaml"))
HOSTS = host_files()
ASSESSMENT, FULL, DIFF, EXPLANATION = map(published, ("assessment", "assessment-full", "diff", "explanation"))
MOST = 50 * 1000  # bytes of a host, as it is printed


def document(kind: str, *results: object) -> Any:
    return {"schema": schema_of(kind), "results": [plain(result) for result in results]}


def wrong(document: object, schema: dict[str, Any]) -> list[str]:
    return list(faults(document, schema, schema))


def host(path: Path) -> Facts:
    return expand(path)[0]


def wish(number: int) -> Requirements:
    """Of every other host nothing, of the others one of the example workloads in turn."""
    if number % 2:
        return Requirements()
    workload = load_workload(WORKLOADS[number // 2 % len(WORKLOADS)])
    return Requirements(merge_needs(("nvlink",), workload), workload=workload)


@pytest.mark.costly
@pytest.mark.parametrize("number", range(len(HOSTS)), ids=[path.stem for path in HOSTS])
def test_every_shipped_host_is_answered_in_the_published_shape(number: int) -> None:
    wished = wish(number)
    evaluated = evaluate(host(HOSTS[number]), wished)
    short = document("assessment", brief(evaluated, wished))
    assert wrong(short, ASSESSMENT) == []
    assert wrong(document("assessment-full", full(evaluated, wished)), FULL) == []
    assert len(write_document(short).encode()) < MOST


@each_row("before", HOSTS[::8], ids=lambda path: path.stem)
def test_every_difference_is_told_in_the_published_shape(before: Path) -> None:
    found = compare(host(before), host(find("server2025-3gpu")))
    assert wrong(document("diff", found), DIFF) == []


def test_every_story_is_told_in_the_published_shape() -> None:
    assert wrong(document("explanation", *map(explain, catalogue.reason_entries())), EXPLANATION) == []


def objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in (schema, *schema["$defs"].values()) if "properties" in each]


@each_row("schema", [ASSESSMENT, FULL, DIFF, EXPLANATION])
def test_a_published_shape_holds_every_field_and_nothing_else(schema: dict[str, Any]) -> None:
    assert len(objects(schema)) > 2
    for each in objects(schema):
        assert each["additionalProperties"] is False
        assert sorted(each["required"]) == sorted(each["properties"])


def test_what_is_not_of_the_shape_is_found() -> None:
    good = document("assessment-full", full(evaluate(host(find("win11-pro-1gpu")), Requirements()), Requirements()))
    assert wrong(good, FULL) == []
    for spoil in (
        lambda it: it.update(schema="winhost.assessment/1"),
        lambda it: it.update(more=1),
        lambda it: it["results"][0].pop("options"),
        lambda it: it["results"][0]["options"][0].update(verdict="fine"),
        lambda it: it["results"][0]["options"][0]["capabilities"][0].update(reasons="none"),
    ):
        spoiled = copy.deepcopy(good)
        spoil(spoiled)
        assert wrong(spoiled, FULL)
