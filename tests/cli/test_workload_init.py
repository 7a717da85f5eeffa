"""Tests of `winhost workload init`: drafts of models on a hub, which is on loopback."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Line
from tests.hub.stand_in_hub import COMMIT, StandInHub, safetensors, serving
from winhost.model.workload import Attention, DType, Embedding, Quantization
from winhost.model.workloadfile import load_workload

CANARY = "hf_canary-of-the-draft"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
EMBEDDED = {"model.embed_tokens.weight": ("BF16", [1000, 64]), "model.layers.0.weight": ("BF16", [64, 64])}
MAIN, RESOLVE = "/api/models/org/model/revision/main", f"/org/model/resolve/{COMMIT}/"
UNREADABLE = "cannot be read as safetensors"
OTHER_NAME = json.dumps({"sha": COMMIT, "id": "../x\n"}).encode()
HEAD = {"lm_head.weight": ("BF16", [1000, 64])}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HF_TOKEN", CANARY)
    with serving(StandInHub()) as made:
        made.put_json("config.json", CONFIG)
        made.files["model.safetensors"] = safetensors(EMBEDDED | HEAD)
        made.sizes["model.safetensors"] = 5_000_000
        yield made


def drafted(line: Line, hub: StandInHub, *words: str, name: str = "org/model") -> Any:
    said = line("workload", "init", name, "--hub", hub.url, *words)
    assert said.code == 0, said.err
    return said


def model_of(line: Line, hub: StandInHub, *words: str) -> Any:
    file = line.folder / "workload.yaml"
    drafted(line, hub, "-o", str(file), "--force", *words)
    (model,) = load_workload(file).models
    return model


def test_a_workload_is_filled_in_from_the_models_own_files(line: Line, hub: StandInHub) -> None:
    model = model_of(line, hub)
    assert (model.name, model.id, model.revision, model.dtype) == ("model", "org/model", COMMIT, DType.BFLOAT16)
    assert model.parameters == 2 * 1000 * 64 + 64 * 64
    assert model.attention == Attention(4, 2, 8)
    assert model.embedding == Embedding(1000, 64, tied=False)
    assert (model.context, model.sequences, model.token, model.trust_remote_code) == (4096, 4, None, False)
    assert {given for _, given in hub.asked} == {None}


def test_no_weights_are_downloaded(line: Line, hub: StandInHub) -> None:
    drafted(line, hub)
    assert [path.rpartition("/")[2] for path, _ in hub.asked if "/resolve/" in path] == [
        "config.json",
        "model.safetensors",
    ]


def test_the_file_says_what_is_assumed_and_is_not_written_over(line: Line, hub: StandInHub) -> None:
    file = line.folder / "my w.yaml"
    said = drafted(line, hub, "-o", str(file))
    assert "Assumed: context 4096: it was made for 4,096 tokens" in said.out
    assert f"Next:\n  winhost assess HOST --workload '{file}'\n" in said.out
    assert "# assumed: it was made for 4,096 tokens" in file.read_text("utf-8")
    again = line("workload", "init", "org/model", "--hub", hub.url, "-o", str(file))
    assert (again.code, "is there already" in again.err) == (2, True)


def test_weights_in_several_files_are_counted_by_the_index(line: Line, hub: StandInHub) -> None:
    parts = {f"model-{number}-of-9.safetensors": {f"layer.{number}": ("BF16", [1000, 200])} for number in range(9)}
    for name, tensors in (parts | {"consolidated.safetensors": EMBEDDED}).items():
        hub.files[name] = safetensors(tensors)
        hub.sizes[name] = 5_000_000
    hub.put_json(
        "model.safetensors.index.json", {"weight_map": {f"layer.{n}": f"model-{n}-of-9.safetensors" for n in range(9)}}
    )
    model = model_of(line, hub)
    assert model.parameters == 9 * 200_000
    assert model.embedding.tied


def test_a_long_header_is_read_in_two_pieces(line: Line, hub: StandInHub) -> None:
    hub.files["model.safetensors"] = safetensors(
        {f"layer.{number}.{'x' * 100}": ("F16", [8]) for number in range(1500)}
    )
    assert model_of(line, hub).parameters == 12_000


def test_what_is_quantized_has_its_bytes(line: Line, hub: StandInHub) -> None:
    hub.put_json("config.json", CONFIG | {"quantization_config": {"quant_method": "awq", "bits": 4}})
    hub.files["model.safetensors"] = safetensors(EMBEDDED | {"layer.qweight": ("I32", [64, 8])})
    model = model_of(line, hub)
    assert (model.quantization, model.weights, model.parameters) == (Quantization.AWQ, 136_192 + 2048, None)


def test_modelopt_tells_its_kind_in_a_file_of_its_own(line: Line, hub: StandInHub) -> None:
    hub.put_json("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}})
    assert model_of(line, hub).quantization is Quantization.FP8


def test_whole_numbers_are_no_parameters(line: Line, hub: StandInHub) -> None:
    hub.files["model.safetensors"] = safetensors(EMBEDDED | {"positions": ("I64", [1, 512])})
    assert model_of(line, hub).parameters == 64_000 + 4096


def test_pickles_count_by_their_size_and_are_told(line: Line, hub: StandInHub) -> None:
    del hub.files["model.safetensors"]
    hub.files |= {
        "pytorch_model-00001-of-00002.bin": b"",
        "pytorch_model-00002-of-00002.bin": b"",
        "training_args.bin": b"",
    }
    hub.sizes |= {
        "pytorch_model-00001-of-00002.bin": 1000,
        "pytorch_model-00002-of-00002.bin": 234,
        "training_args.bin": 9,
    }
    model = model_of(line, hub)
    assert (model.weights, model.parameters) == (1234, None)
    assert "Its weights are pickles" in drafted(line, hub).out


def test_a_programme_of_the_repository_is_told_and_never_allowed(line: Line, hub: StandInHub) -> None:
    hub.put_json("config.json", CONFIG | {"auto_map": {"AutoModel": "modeling.Model"}})
    assert model_of(line, hub).trust_remote_code is False
    assert "# Look: It wants to run Python files" in drafted(line, hub).out


def test_a_gated_model_needs_a_token_which_reaches_the_hub_alone(line: Line, hub: StandInHub) -> None:
    hub.about, hub.token = {"gated": "manual"}, CANARY
    said = line("workload", "init", "org/model", "--hub", hub.url)
    assert (said.code, "gated: its licence" in said.err, "--token env:HF_TOKEN" in said.err) == (1, True, True)
    model = model_of(line, hub, "--token", "env:HF_TOKEN")
    assert str(model.token) == "env:HF_TOKEN"
    shown = drafted(line, hub, "--token", "env:HF_TOKEN", "--json")
    assert CANARY not in shown.out + (line.folder / "workload.yaml").read_text("utf-8")
    (result,) = json.loads(shown.out)["results"]
    assert "It is gated" in result["look"][0]


def test_a_token_is_not_named_where_none_is_needed(line: Line, hub: StandInHub) -> None:
    assert model_of(line, hub, "--token", "env:HF_TOKEN").token is None


def test_a_token_is_no_secret_reference_and_goes_nowhere_in_the_clear(line: Line, hub: StandInHub) -> None:
    for words in (["--token", CANARY], ["--token", "env:HF_TOKEN", "--hub", "http://example.org"]):
        said = line("workload", "init", "org/model", *words)
        assert said.code in (1, 2)
        assert CANARY not in said.out + said.err
    assert "over https alone" in said.err


def test_a_model_that_moved_is_named_as_it_is_called_now(line: Line, hub: StandInHub) -> None:
    to = {"Location": f"{hub.url}/api/models/org/model/revision/main"}
    hub.answers["/api/models/old/name/revision/main"] = (307, to, b"")
    assert "old/name is called org/model by now" in drafted(line, hub, name="old/name").out


def test_files_may_lie_with_another_host_which_gets_no_token(line: Line, hub: StandInHub) -> None:
    with serving(replace(hub, answers={}, asked=[], url="")) as other:
        path = RESOLVE + "model.safetensors"
        hub.answers[path] = (302, {"Location": f"{other.url}{path}"}, b"")
        assert model_of(line, hub, "--token", "env:HF_TOKEN").parameters
        assert {given for _, given in other.asked} == {None}


REFUSED = {
    "no such model": (MAIN, (401, {"X-Error-Code": "RepoNotFound"}, b""), "or it is private"),
    "no such revision": (MAIN, (404, {"X-Error-Code": "RevisionNotFound"}, b""), "no revision main"),
    "no code": (MAIN, (404, {}, b""), "no such model or file (404)"),
    "no file": (RESOLVE + "config.json", (404, {"X-Error-Code": "EntryNotFound"}, b""), "no such file (404)"),
    "too often": (MAIN, (429, {"RateLimit": '"api";r=0;t=55'}, b""), "in 55 s"),
    "down": (MAIN, (503, {}, b""), "answers 503 Service Unavailable"),
    "no commit": (MAIN, (200, {}, b'{"sha": "main"}'), "does not tell its commit"),
    "another name": (MAIN, (200, {}, OTHER_NAME), "not the name"),
    "elsewhere": (MAIN, (302, {"Location": "http://example.org/x"}, b""), "example.org without TLS"),
    "deep": (RESOLVE + "config.json", (200, {}, b"[" * 100_000), "no JSON"),
    "huge": (RESOLVE + "config.json", (200, {}, b" " * (3 << 20)), "more than 2 MiB"),
    "long numbers": (RESOLVE + "config.json", (200, {}, b'{"hidden_size": ' + b"9" * 5000 + b"}"), "no JSON"),
    "no object": (RESOLVE + "config.json", (200, {}, b"[]"), "no object"),
    "all of it": (RESOLVE + "model.safetensors", (200, {}, b"x" * 1000), "answers 200"),
    "no header": (RESOLVE + "model.safetensors", (206, {}, b"x" * 1000), UNREADABLE),
    "short header": (RESOLVE + "model.safetensors", (206, {}, b"x"), UNREADABLE),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_each_refusal_is_one_sentence_with_what_to_do(line: Line, hub: StandInHub, case: Any) -> None:
    path, answer, says = case
    hub.answers[path] = answer
    said = line("workload", "init", "org/model", "--hub", hub.url)
    assert said.code == 1
    assert says in said.err
    assert len(said.err.strip().splitlines()) in (2, 3)
    assert said.out == ""


def test_a_misspelt_model_is_no_missing_revision(line: Line) -> None:
    """A hub may answer RevisionNotFound for a model that it does not have, so winhost asks for the model itself."""
    with serving(StandInHub(model="Qwen/Qwen3-8B-AWQ")) as there:
        said = line("workload", "init", "Qwen/Qwen3-8B-AQW", "--hub", there.url)
        assert (said.code, "the hub has no such model" in said.err) == (1, True)
        assert "Did you mean" in said.err
        assert "Qwen/Qwen3-8B-AWQ" in said.err
        said = line("workload", "init", "Qwen/Qwen3-8B-AWQ", "--revision", "mian", "--hub", there.url)
        assert (said.code, "no revision mian of it" in said.err) == (1, True)
        refused = (401, {"X-Error-Code": "RepoNotFound"}, b"")
        there.answers["/api/models/Qwen/Qwen3-8B-AVQ/revision/main"] = refused
        said = line("workload", "init", "Qwen/Qwen3-8B-AVQ", "--hub", there.url)
        assert (said.code, "or it is private" in said.err, "Qwen/Qwen3-8B-AWQ" in said.err) == (1, True, True)
        assert "--token env:HF_TOKEN" in said.err


@pytest.mark.parametrize(
    "tensors",
    [
        {"x": []},
        {"x": {"dtype": 1, "shape": [1], "data_offsets": [0, 2]}},
        {"x": {"dtype": "BF16", "shape": [1 << 60, 1 << 60], "data_offsets": [0, 2]}},
        {"x": {"dtype": "BF16", "shape": [-1], "data_offsets": [0, 2]}},
        {"x": {"dtype": "BF16", "shape": [1], "data_offsets": [2]}},
    ],
)
def test_a_header_that_lies_is_refused(line: Line, hub: StandInHub, tensors: Any) -> None:
    text = json.dumps(tensors).encode()
    hub.files["model.safetensors"] = len(text).to_bytes(8, "little") + text
    said = line("workload", "init", "org/model", "--hub", hub.url)
    assert (said.code, "cannot be read as safetensors" in said.err) == (1, True)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"model.safetensors": b""}, "no config.json"),
        ({"adapter_config.json": b"{}"}, "is an adapter"),
        ({"config.json": b"{}", "model-q4.gguf": b""}, "as GGUF alone"),
        ({"config.json": b"{}"}, "no weights that vLLM loads"),
        ({"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "gone"}}'}, "not there"),
    ],
)
def test_what_cannot_be_served_is_said(line: Line, hub: StandInHub, files: dict[str, bytes], says: str) -> None:
    hub.files, hub.sizes = files, {}
    said = line("workload", "init", "org/model", "--hub", hub.url)
    assert (said.code, says in said.err) == (1, True)


def test_an_embedding_larger_than_the_model_is_left_out(line: Line, hub: StandInHub) -> None:
    hub.put_json("config.json", CONFIG | {"vocab_size": 9_000_000})
    assert model_of(line, hub).embedding is None


@pytest.mark.parametrize("name", ["org/3.14", "org/null", "org/" + "x" * 90, "gpt2", "123", "org/-"])
def test_names_that_yaml_takes_for_something_else_stay_names(line: Line, name: str) -> None:
    with serving(StandInHub(model=name)) as hub:
        hub.put_json("config.json", CONFIG)
        hub.files["model.safetensors"] = safetensors(EMBEDDED)
        said = line("workload", "init", name, "--hub", hub.url, "-o", str(line.folder / "w.yaml"))
        if name == "org/-":
            assert said.code == 2
            return
        (model,) = load_workload(line.folder / "w.yaml").models
        assert model.id == name
        assert yaml.safe_load((line.folder / "w.yaml").read_text("utf-8"))["models"].keys() == {model.name}


def test_a_weight_file_without_a_byte_is_asked_for_no_range(line: Line, hub: StandInHub) -> None:
    hub.files["model.safetensors"] = b""
    del hub.sizes["model.safetensors"]
    said = line("workload", "init", "org/model", "--hub", hub.url)
    assert (said.code, UNREADABLE in said.err) == (1, True), said.err
    assert {span for _, span in hub.spans} == {None}


@pytest.mark.parametrize("words", [("Bad Name",), ("org/model", "--revision", "..")])
def test_a_name_or_revision_that_can_be_none_is_wrong_usage(
    line: Line, hub: StandInHub, words: tuple[str, ...]
) -> None:
    said = line("workload", "init", *words, "--hub", hub.url)
    assert (said.code, hub.asked) == (2, []), said.err
