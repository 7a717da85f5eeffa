"""Tests of `winhost models`: the models for hosts, the catalogue, and its refresh from a hub."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Line
from tests.cli.test_workload_init import CONFIG
from tests.hub.stand_in_hub import COMMIT, StandInHub, safetensors, serving
from winhost.hub import refreshed
from winhost.hub.catalogue import catalogue, catalogue_of, refreshed_file, shipped_document
from winhost.model.workload import Attention
from winhost.model.workloadfile import load_workload

ENTRIES = catalogue_of(shipped_document()).entries


def test_without_a_host_it_is_the_catalogue(line: Line) -> None:
    shown = line("models")
    assert shown.code == 0
    assert all(entry.id in shown.out for entry in ENTRIES)
    assert "as shipped with winhost" in shown.out
    result = line("models", "--json").result
    assert (result["host"], result["path"], result["catalogue"]) == (None, None, None)
    assert [each["model"] for each in result["models"]] == [entry.id for entry in ENTRIES]
    assert all(each["sources"] and each["verdict"] is None for each in result["models"])


def test_of_a_host_the_best_comes_first_and_its_command_works(line: Line, tmp_path: Path) -> None:
    facts = line.facts("win11-pro-1gpu")
    shown = line("models", facts)
    assert shown.code == 0
    rows = shown.out.splitlines()
    assert rows[0] == "desk-01 by wsl2/mirrored, best first:"
    assert rows[3].split()[:3] == ["gpt-oss-20b", "mxfp4", "16k"]
    assert len(rows) <= 25
    assert max(len(row) for row in rows[1:15]) <= 80
    assert "openai/gpt-oss-20b" in line("models", facts, "-o", "wide").out.splitlines()[3]
    (more,) = (row.partition("fit: winhost ")[2] for row in rows if "more repositories fit" in row)
    assert line(*more.split()).code == 0
    assert "winhost workload init openai/gpt-oss-20b --context 16384 --sequences 4" in shown.out
    with serving(StandInHub(model="openai/gpt-oss-20b")) as hub:
        hub.put_json("config.json", CONFIG | {"max_position_embeddings": 131072})
        hub.files["model.safetensors"] = safetensors({"x": ("BF16", [64, 64])})
        words = shown.out.splitlines()[-1].split()[1:]
        assert line(*words, "--hub", hub.url).code == 0
    (model,) = load_workload(line.folder / "workload.yaml").models
    assert (model.context, model.sequences, model.parallel.tensor, model.revision) == (16384, 4, 1, COMMIT)


def test_all_shows_also_what_does_not_fit_and_why(line: Line) -> None:
    facts = line.facts("win11-pro-1gpu")
    result = line("models", facts, "--all", "--json").result
    assert {each["model"] for each in result["models"]} == {entry.id for entry in ENTRIES}
    lacks = {each["lacks"] for each in result["models"]}
    assert {"", "memory"} <= lacks
    assert "no: memory" in line("models", facts, "--all").out
    assert all(not each["lacks"] for each in line("models", facts, "--json").result["models"])


def test_its_names_are_those_of_models(line: Line) -> None:
    facts = line.facts("win11-pro-1gpu")
    offered = [each["model"] for each in line("models", facts, "--json").result["models"]]
    assert line("models", facts, "-o", "name").out.split() == offered
    assert line("models", "-o", "name").out.split() == [entry.id for entry in ENTRIES]


def test_where_nothing_fits_the_next_command_says_why(line: Line) -> None:
    said = line("models", line.facts("win11-no-gpu"))
    assert (said.code, "nothing of the catalogue fits" in said.out) == (0, True)
    assert line(*said.out.splitlines()[-1].split()[1:]).code in (0, 3)


def test_several_gpus_are_told_to_the_next_command(line: Line) -> None:
    shown = line("models", line.facts("server2025-2x4090"))
    assert "--gpus 2 -o workload.yaml" in shown.out.splitlines()[-1]
    assert " 2 x 21.9" in shown.out


def test_a_path_is_taken_and_a_wrong_one_corrected(line: Line) -> None:
    facts = line.facts("win11-pro-1gpu")
    assert line("models", facts, "--path", "wsl2/nat", "--json").result["path"] == "wsl2/nat"
    assert "there is no path 'wsl'" in line("models", facts, "--path", "wsl").err


def test_gated_models_say_what_they_need(line: Line) -> None:
    facts = line.facts("server2025-2xh100")
    models = line("models", facts, "--json").result["models"]
    gated = [each["gated"] for each in models]
    assert gated == sorted(gated)
    assert any(gated)
    token = ("--token", "env:HF_TOKEN")  # which is not read: nobody is asked
    with_token = [each["gated"] for each in line("models", facts, *token, "--json").result["models"]]
    assert with_token != gated
    assert "accept the licence on the hub first" in line("models", facts, "--all").out


def test_a_file_that_is_no_facts_is_that_hosts_error(line: Line) -> None:
    broken = line.folder / "broken.json"
    broken.write_text('{"schema": "winhost.facts/3"}', encoding="utf-8")
    said = line("models", line.facts("win11-pro-1gpu"), broken, "--json")
    assert said.code == 2
    assert [each.get("error") is None for each in said.results] == [True, False]


def test_one_model_is_judged_whether_it_is_of_the_catalogue_a_hub_or_a_folder(line: Line) -> None:
    facts = line.facts("win11-pro-1gpu")
    listed = line("models", facts, "--model", "qwen3-8b", "--json").result["models"]
    assert {each["model"] for each in listed} == {"Qwen/Qwen3-8B", "Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-8B-AWQ"}
    assert "no: memory" in line("models", facts, "--model", "MiniMaxAI/MiniMax-M2.5").out
    with serving(StandInHub()) as there:
        there.put_json("config.json", CONFIG)
        there.files["model.safetensors"] = safetensors({"x": ("BF16", [6400, 64])})
        there.sizes["model.safetensors"] = 5_000_000
        (found,) = line("models", facts, "--model", "org/model", "--hub", there.url, "--json").result["models"]
        assert (found["revision"], found["parameters"], found["context"]) == (COMMIT, 409_600, 4096)
        misspelt = line("models", facts, "--model", "Qwen/Qwen3-8B-AQW", "--hub", there.url)
        assert (misspelt.code, "Did you mean" in misspelt.err) == (1, True)
    folder = line.folder / "Small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(safetensors({"x": ("BF16", [6400, 64])}, data=True))
    (found,) = line("models", facts, "--model", "./Small", "--json").result["models"]
    assert (found["model"], found["name"], found["revision"]) == (str(folder), "Small", None)


# ---- refresh

DOCUMENT: dict[str, Any] = deepcopy({**shipped_document()})
DOCUMENT["models"] = {name: DOCUMENT["models"][name] for name in ("qwen3-8b", "gpt-oss-20b")}
OTHER = "Qwen/Qwen3-8B-AWQ"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """Serve a hub with one repository of the catalogue."""
    monkeypatch.setattr(refreshed, "shipped_document", lambda: DOCUMENT)
    with serving(StandInHub(model=OTHER)) as made:
        shape = {"hidden_size": 4096, "num_hidden_layers": 37, "num_attention_heads": 32, "intermediate_size": 12288}
        quantized = {"quantization_config": {"quant_method": "awq", "bits": 4}, "max_position_embeddings": 50_000}
        made.put_json("config.json", CONFIG | shape | quantized)
        made.files["model.safetensors"] = safetensors({"x": ("I32", [64, 64])})
        made.files["README.md"] = b"x" * 77
        made.sizes["model.safetensors"] = 6_000_000_000
        yield made


def test_a_refresh_takes_what_the_hub_says_and_keeps_the_rest(line: Line, hub: StandInHub) -> None:
    said = line("models", "refresh", "--hub", hub.url)
    assert said.code == 0, said.err
    assert "1 of 4 repositories read" in said.out
    assert said.out.count("Unchanged:") == 3
    found = catalogue()
    assert found.file == refreshed_file()
    by_id = {entry.id: entry for entry in found.entries}
    new, kept = by_id[OTHER], by_id["Qwen/Qwen3-8B-FP8"]
    assert (new.revision, new.weights, new.longest) == (COMMIT, 6_000_000_000, 50_000)
    assert new.download == 6_000_000_000 + 77 + len(hub.files["config.json"])
    assert new.shape.attention == Attention(37, 2, 128)
    assert f"{hub.url}/{OTHER} at {COMMIT}" in new.sources["weights"]
    assert kept == next(entry for entry in ENTRIES if entry.id == kept.id)
    assert "from the hub:" in line("models").out
    assert f"read {found.read}" in new.sources["shape"]


def test_a_second_refresh_keeps_what_the_first_one_learned(line: Line, hub: StandInHub) -> None:
    assert line("models", "refresh", "--hub", hub.url).code == 0
    first = {entry.id: entry for entry in catalogue().entries}[OTHER]
    with serving(StandInHub(model="Qwen/Qwen3-8B")) as another:
        another.put_json("config.json", CONFIG)
        another.files["model.safetensors"] = safetensors({"x": ("BF16", [64, 64])})
        outcome = {each["model"]: each for each in line("models", "refresh", "--hub", another.url, "--json").results}
    assert {entry.id: entry for entry in catalogue().entries}[OTHER] == first
    assert outcome[OTHER]["kept"]
    assert (outcome["Qwen/Qwen3-8B"]["kept"], outcome["Qwen/Qwen3-8B"]["revision"]) == ("", COMMIT)
    assert "shape" in outcome["Qwen/Qwen3-8B"]["changed"] or "longest" in outcome["Qwen/Qwen3-8B"]["changed"]


def test_a_hub_that_has_none_of_them_changes_nothing(line: Line, hub: StandInHub) -> None:
    hub.model = "org/other"
    said = line("models", "refresh", "--hub", hub.url)
    assert (said.code, "none of 4 models could be asked" in said.err) == (1, True)
    assert not refreshed_file().exists()
    said = line("models", "refresh", "--hub", "http://127.0.0.1:9")
    assert (said.code, "none of" in said.err) == (1, True)


def test_a_token_reaches_the_hub_alone_and_stays_out_of_the_file(
    line: Line, hub: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary-of-the-refresh")
    said = line("models", "refresh", "--hub", hub.url, "--token", "env:HF_TOKEN")
    assert said.code == 0
    assert {given for _, given in hub.asked} == {"Bearer hf_canary-of-the-refresh"}
    assert "canary" not in refreshed_file().read_text("utf-8") + said.out + said.err
    assert line("models", "refresh", "--token", "hf_plain").code == 2


def test_a_gate_that_the_hub_has_now_counts(line: Line, hub: StandInHub) -> None:
    hub.about["gated"] = "manual"
    assert line("models", "refresh", "--hub", hub.url).code == 0
    assert {entry.id: entry.gated for entry in catalogue().entries}[OTHER]


def test_a_broken_catalogue_of_the_user_is_written_over(line: Line, hub: StandInHub) -> None:
    refreshed_file().parent.mkdir()
    refreshed_file().write_text("{", encoding="utf-8")
    said = line("models")
    assert (said.code, "winhost models refresh" in said.err) == (2, True)
    assert line("models", "refresh", "--hub", hub.url).code == 0
    assert yaml.safe_load(refreshed_file().read_text("utf-8"))["schema"] == "winhost.models/1"
    assert json.loads(line("models", "--json").out)["results"]
