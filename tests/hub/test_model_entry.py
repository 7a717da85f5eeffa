"""A repository or a folder as an entry of a catalogue, fitted to a host as those are."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hub.stand_in_hub import COMMIT, StandInHub, safetensors, serving
from tests.processes import PATIENCE_S
from winhost.hub.draft import entry_of
from winhost.hub.repositories import HubRepository, ModelFolder
from winhost.lab.hostfile import expand, find
from winhost.model.errors import WinhostError
from winhost.model.workload import Attention, Quantization
from winhost.model.workloadfile import load_workload
from winhost.serving.fitting import find_candidates

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 40_000, "torch_dtype": "bfloat16",
    "intermediate_size": 256,
}  # fmt: skip
TENSORS = {"model.embed_tokens.weight": ("BF16", [1000, 64]), "layer.weight": ("BF16", [6400, 64])}


def test_a_model_of_a_hub_is_fitted_with_its_commit_and_its_own_sizes(tmp_path: Path) -> None:
    with serving(StandInHub()) as hub:
        hub.put_json("config.json", CONFIG)
        hub.files["model.safetensors"] = safetensors(TENSORS)
        hub.sizes["model.safetensors"] = 5_000_000
        hub.files["original/model.safetensors"] = b"the same once more"
        entry = entry_of(HubRepository("org/model", "main", hub.url))
    assert (entry.revision, entry.parameters, entry.weights) == (COMMIT, 64_000 + 409_600, None)
    assert (entry.shape.attention, entry.intermediate, entry.longest, entry.gated) == (
        Attention(4, 2, 8),
        256,
        40_000,
        False,
    )
    assert entry.download == 5_000_000 + len(json.dumps(CONFIG))
    (fitted,) = find_candidates(expand(find("win11-pro-1gpu"))[0], entries=[entry])
    assert (fitted.context, fitted.sequences, fitted.gpus) == (32_768, 4, 1)
    (tmp_path / "w.yaml").write_text(fitted.workload_text(), encoding="utf-8")
    (model,) = load_workload(tmp_path / "w.yaml").models
    assert (model.id, model.revision, model.context) == ("org/model", COMMIT, 32_768)


def test_a_folder_is_fitted_without_a_hub(tmp_path: Path) -> None:
    folder = tmp_path / "Small"
    folder.mkdir()
    awq = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    (folder / "config.json").write_text(json.dumps(CONFIG | awq))
    (folder / "model.safetensors").write_bytes(safetensors(TENSORS, data=True))
    entry = entry_of(ModelFolder.from_path(str(folder)))
    assert (entry.id, entry.name, entry.revision) == (str(folder), "Small", None)
    assert (entry.quantization, entry.weights) == (Quantization.AWQ, 2 * (64_000 + 409_600))
    (fitted,) = find_candidates(expand(find("win11-pro-1gpu"))[0], entries=[entry])
    assert "revision" not in fitted.workload_document()["models"]["Small"]


def test_a_model_without_a_shape_is_sent_to_a_draft() -> None:
    with serving(StandInHub()) as hub:
        hub.put_json("config.json", CONFIG | {"kv_lora_rank": 512})
        hub.files["model.safetensors"] = safetensors(TENSORS)
        hub.sizes["model.safetensors"] = 5_000_000
        with pytest.raises(WinhostError) as refused:
            entry_of(HubRepository("org/model", "main", hub.url))
    assert "winhost workload init org/model" in str(refused.value.hint)


LAZY = """
import sys
import winhost.cli.models.commands, winhost.hub.repositories
first = sorted(name for name in sys.modules if name in ("winhost.hub.catalogue", "winhost.serving.fitting", "yaml"))
import winhost.hub.catalogue
from winhost.hub.catalogue import shipped_document
second = "yaml" in sys.modules
print(first, second, shipped_document.__wrapped__ is not None)
"""


def test_the_catalogue_is_loaded_by_whom_needs_it() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.split(" ", 1)[0] == "[]"
    assert " False " in done.stdout
