"""`workload.yaml`: the cases in tests/data/workloads/files, the examples, and its schema."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.cases import read_cases
from tests.errors import faults, raises
from tests.rows import each_row
from winhost.model.capabilities import CAPABILITIES
from winhost.model.documents import json_schema
from winhost.model.units import SIZE_PATTERN, GiB, about, gib, parse_size, size
from winhost.model.workload import VERSIONS, Model, Workload, WorkloadFile
from winhost.model.workloadfile import load_workload

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/data/workloads/files").glob("*.yaml"))
EXAMPLES = sorted((ROOT / "examples/workloads").glob("*.yaml"))


def written(folder: Path, text: str) -> Path:
    path = folder / "workload.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def shown(value: Any) -> Any:
    """Format a value like YAML."""
    if isinstance(value, dict):
        return {key: shown(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [shown(inner) for inner in value]
    return str(value) if isinstance(value, str | Version) else value


def meant(workload: Workload) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    models = {each.name: {**shown(asdict(each)), "kv_bytes": each.kv_bytes} for each in workload.models}
    return models, {key: value for key, value in shown(asdict(workload)).items() if key != "models"}


@each_row("case", CASES, ids=lambda path: path.stem)
def test_a_workload_file_means_what_its_case_says(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_cases(case)
    assert expected.keys() in ({"says", "file", "models", "workload"}, {"says", "file", "faults"})
    written(tmp_path, expected["file"])
    monkeypatch.chdir(tmp_path)
    if "faults" in expected:
        with raises("FileFaults") as caught:
            load_workload(Path("workload.yaml"))
        assert faults(caught.value) == expected["faults"]
        return
    models, rest = meant(load_workload(Path("workload.yaml")))
    assert list(models) == list(expected["models"])
    for name, said in expected["models"].items():
        assert {key: models[name][key] for key in said} == said
    assert {key: rest[key] for key in expected["workload"]} == expected["workload"]


def test_the_fullest_case_says_something_of_every_field() -> None:
    expected = read_cases(ROOT / "tests/data/workloads/files/everything.yaml")
    fields = set(Model.__dataclass_fields__) - {"name", "memory", "suspend", "chosen_level", "stands_by", "starts_anew"}
    assert set(expected["models"]["big"]) == fields
    assert set(expected["workload"]) == set(Workload.__dataclass_fields__) - {"models"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_and_states_what_is_needed_to_compute_it(example: Path) -> None:
    for model in load_workload(example).models:
        assert model.attention is not None
        assert model.context is not None
        assert model.embedding is not None


def test_versions_compare_as_versions(tmp_path: Path) -> None:
    text = 'schema: winhost.workload/1\nmodels: {a: {parameters: 1B}}\nversions: {vllm: "0.9.2", driver: "610"}\n'
    stated = load_workload(written(tmp_path, text)).versions
    assert stated["vllm"] < Version("0.17.0")
    assert stated["driver"] >= Version("590.48")


# ---- sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24 GiB", 24 * GiB),
        ("24GiB", 24 * GiB),
        ("1.5 TiB", 1536 * GiB),
        ("39.8 GB", 39_800_000_000),
        ("64 MB", 64_000_000),
        ("0.3 KiB", 308),  # 307.2, and half a byte is one
        ("1277025750 KiB", 1_307_674_368_000),
        (4096, 4096),
    ],
)
def test_a_size_is_read_as_it_is_written(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@each_row("text", ["24", "24 gib", "24 G", "-1 GiB", "0 GiB", 0, -1, True, 1.5, None, "1e3 GiB", "²4 GiB", ""])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="should be a size"):
        parse_size(text)


@given(st.integers(1, 1 << 50))
def test_a_size_that_is_shown_in_one_unit_is_read_back(n: int) -> None:
    text = size(n).replace(",", "")
    assert parse_size(int(text.removesuffix(" bytes")) if text.endswith("bytes") else text) == n


def test_gib_rounds_for_the_eye() -> None:
    assert gib(15_231_233_024) == "14.19 GiB"
    assert gib(2048 * GiB) == "2,048.00 GiB"
    assert [gib(n) for n in (0, 5_002, 1_300_000, GiB // 100)] == ["0.00 GiB", "5,002 bytes", "1.24 MiB", "0.01 GiB"]


@pytest.mark.parametrize(
    ("n", "text"), [(64 * GiB, "64 GiB"), (68_497_051_648, "63.79 GiB"), (2048 * GiB, "2,048 GiB")]
)
def test_memory_as_windows_tells_it_is_told_in_gib(n: int, text: str) -> None:
    assert about(n) == text


# ---- the schema for editors


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, definition in {"WorkloadFile": schema, **schema["$defs"]}.items():
        for key, entry in definition.get("properties", {}).items():
            yield f"{name}.{key}", entry


def test_every_key_of_the_schema_is_described_and_none_may_be_null() -> None:
    entries = dict(properties(json_schema(WorkloadFile)))
    assert "Model.kv_dtype" in entries
    assert [name for name, entry in entries.items() if not entry.get("description")] == []
    assert [name for name, entry in entries.items() if {"type": "null"} in entry.get("anyOf", [])] == []


def test_every_model_of_the_schema_refuses_unknown_keys() -> None:
    schema = json_schema(WorkloadFile)
    objects = [entry for entry in [schema, *schema["$defs"].values()] if entry["type"] == "object"]
    assert len(objects) == 14
    assert all(entry["additionalProperties"] is False for entry in objects)


def test_the_schema_offers_capabilities_and_versions_and_knows_sizes() -> None:
    definitions = json_schema(WorkloadFile)["$defs"]
    assert definitions["Needs"]["properties"]["must"]["items"]["enum"] == list(CAPABILITIES)
    assert tuple(definitions["Versions"]["properties"]) == VERSIONS
    pattern = definitions["Model"]["properties"]["memory"]["anyOf"][0]["pattern"]
    assert pattern == f"^{SIZE_PATTERN}$"
    assert re.search(pattern, "24 GiB")
    assert not re.search(pattern, "24 gigs")


def test_capabilities_are_told_apart() -> None:
    assert len(set(CAPABILITIES)) == len(CAPABILITIES)
