"""The catalogue of models that comes with winhost: each value has a source, and names mean one thing."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.rows import each_row
from winhost.hub.catalogue import (
    Entry,
    catalogue,
    catalogue_of,
    named,
    refreshed_file,
    shipped_document,
    similar_names,
    workload_document,
)
from winhost.model.errors import UsageError
from winhost.model.workload import (
    Parallel,
    Quantization,
    is_model_name,
)
from winhost.model.workloadfile import load_workload
from winhost.sizing.engines import MemoryPart, weights

ROOT = Path(__file__).parents[2]
DOCUMENT = shipped_document()
ENTRIES = catalogue_of(DOCUMENT).entries
# Every key of a model or repository that holds a value, and the name of its source. Words say how, not how much.
VALUES = {"released", "parameters", "longest", "shape", "experts", "takes", "weights", "gated"}
WORDS = {"quantization", "dtype"}
MODELS: list[tuple[str, Any]] = [*DOCUMENT["models"].items()]


@each_row("name, model", MODELS)
def test_each_value_has_a_source_that_can_be_looked_up(name: str, model: Any) -> None:
    rows = [model, *model["repositories"].values()]
    for row in rows:
        values = set(row) - {"from", "repositories"} - WORDS
        assert values <= VALUES
        assert values <= set(row["from"]), f"{name} has no source of {values - set(row['from'])}"
        for source in row["from"].values():
            assert source in DOCUMENT["sources"] or source.startswith("https://"), source
    assert {"released", "parameters", "longest", "shape"} <= set(model)
    assert all("id" in row["from"] for row in model["repositories"].values())


def test_sources_are_addresses_and_used() -> None:
    used = {
        source
        for _, model in MODELS
        for row in (model, *model["repositories"].values())
        for source in row["from"].values()
    }
    assert all(text.startswith("https://github.com/") for text in DOCUMENT["sources"].values())
    assert set(DOCUMENT["sources"]) <= used


def test_documents_count_as_many_models_as_there_are() -> None:
    said = f"{len(MODELS)} models in {len(ENTRIES)} repositories"
    assert said in (ROOT / "docs/models.md").read_text("utf-8")
    assert f"which of {len(MODELS)} open models" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_names_are_unique_and_can_be_served() -> None:
    ids = [entry.id.lower() for entry in ENTRIES]
    assert len(set(ids)) == len(ids)
    assert len(MODELS) >= 40
    assert all(is_model_name(entry.name) for entry in ENTRIES)
    text = (Path(catalogue.__code__.co_filename).parent / "models.yaml").read_text("utf-8")
    assert sum(f"\n  {name}:\n" in text for name, _ in MODELS) == len(MODELS)


@each_row("entry", ENTRIES, ids=lambda entry: entry.id)
def test_the_numbers_agree_with_each_other(entry: Entry) -> None:
    assert entry.model.embedding is not None
    assert entry.model.embedding.parameters < entry.parameters
    assert entry.heads % (entry.shape.kv_heads or 0) == 0
    assert entry.splits_over(1)
    found = weights(entry.model)
    assert isinstance(found, MemoryPart), found
    whole = entry.parameters * entry.dtype.bytes
    assert found.bytes == whole if entry.quantization is None else whole / 5 < found.bytes < whole


def test_what_a_source_says_of_weights_is_near_what_would_be_computed() -> None:
    """MXFP4 of gpt-oss leaves attention in 16 bits, so a little more is told than computed."""
    told = [entry for entry in ENTRIES if entry.weights]
    assert {entry.quantization for entry in told} == {Quantization.MXFP4}
    for entry in told:
        assert entry.weights is not None
        assert 0.45 < entry.weights / entry.parameters < 0.8


@each_row("entry", ENTRIES[::9], ids=lambda entry: entry.id)
def test_a_workload_file_of_an_entry_reads_back(entry: Entry, tmp_path: Path) -> None:
    from dataclasses import replace

    model = replace(entry.model, context=8192, sequences=4, revision="a" * 40)
    model = replace(model, parallel=Parallel(2 if entry.splits_over(2) else 1))
    file = tmp_path / "w.yaml"
    file.write_text(yaml.safe_dump(workload_document(model)), encoding="utf-8")
    (read,) = load_workload(file).models
    assert (read.id, read.revision, read.context, read.parallel) == (entry.id, "a" * 40, 8192, model.parallel)
    assert (read.shape, read.quantization) == (model.shape, model.quantization)
    assert weights(read) == weights(model)


NEAR = {
    "Qwen/Qwen3-8B-AQW": "Qwen/Qwen3-8B-AWQ",
    "qwen/qwen3-8b": "Qwen/Qwen3-8B",
    "openai/gpt-os-20b": "openai/gpt-oss-20b",
    "gptoss-20b": "openai/gpt-oss-20b",
    "Qwen3-14B-AWK": "Qwen/Qwen3-14B-AWQ",
}


@each_row("wrong, right", [*NEAR.items()])
def test_a_misspelt_name_finds_the_near_one(wrong: str, right: str) -> None:
    assert right in similar_names(wrong, ENTRIES)
    assert wrong not in similar_names(wrong, ENTRIES)


def test_what_is_far_from_every_name_finds_none() -> None:
    assert similar_names("somebody/private-thing", ENTRIES) == ()


def test_a_model_is_meant_by_its_repository_or_a_short_name() -> None:
    assert [entry.id for entry in named("Qwen3-8B-AWQ", ENTRIES)] == ["Qwen/Qwen3-8B-AWQ"]
    assert {entry.name for entry in named("qwen3-8b", ENTRIES)} == {"qwen3-8b"}
    assert named("nothing", ENTRIES) == ()


def test_layers_are_not_split_below_a_head_or_a_group() -> None:
    by_id = {entry.id: entry for entry in ENTRIES}
    assert by_id["Qwen/Qwen3-30B-A3B"].splits_over(4)
    assert not by_id["Qwen/Qwen3-30B-A3B-FP8"].splits_over(4)  # 768 numbers are six blocks of 128
    assert not by_id["Qwen/Qwen2.5-14B-Instruct"].splits_over(16)  # 40 heads
    assert by_id["openai/gpt-oss-20b"].splits_over(8)


def test_a_catalogue_of_the_user_takes_the_place_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINHOST_DATA", str(tmp_path / "data"))
    assert (catalogue().file, len(catalogue().entries)) == (None, len(ENTRIES))
    refreshed_file().parent.mkdir()
    (name, model), *_ = MODELS
    own = {"schema": DOCUMENT["schema"], "read": "2027-01-02", "models": {name: model}}
    refreshed_file().write_text(yaml.safe_dump(own), encoding="utf-8")
    found = catalogue()
    assert (found.read, found.file, {each.name for each in found.entries}) == ("2027-01-02", refreshed_file(), {name})


@each_row(
    "text", ["schema: winhost.models/9\n", "[]", "{", "schema: winhost.models/1\nread: x\nmodels: {a: {}}\n", "\0"]
)
def test_a_catalogue_that_cannot_be_used_is_refused_with_the_way_out(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINHOST_DATA", str(tmp_path))
    refreshed_file().write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        catalogue()
    assert (refused.value.code, str(refreshed_file()) in refused.value.what) == ("CatalogueUnusable", True)
