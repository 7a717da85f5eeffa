"""Tests of a model in a folder: it is drafted, planned and fetched without a hub."""

import hashlib
import json
import os
from pathlib import Path, PureWindowsPath

import pytest
import yaml

from tests.cli.conftest import Line
from tests.cli.test_workload_init import CONFIG, EMBEDDED
from tests.hub.stand_in_hub import StandInHub, safetensors, serving
from tests.serving.one_plan import CONSENTS, KEY, MODEL, workload
from tests.serving.stacks import IMAGE
from winhost.cli.up.choice import choose_model
from winhost.hub.repositories import ModelFolder, folder_files, path_in_wsl
from winhost.lab.hostfile import expand, find
from winhost.lab.running_lab import Lab
from winhost.model.documents import write_document
from winhost.model.errors import WinhostError
from winhost.model.workload import Attention, is_folder
from winhost.model.workloadfile import load_workload

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"


@pytest.fixture
def folder(line: Line) -> Path:
    """A folder with a small model, and with the cache that a hub's client leaves there."""
    made = line.folder / "models" / "Small-8B"
    (made / ".cache").mkdir(parents=True)
    (made / ".cache" / "lock").write_text("x")
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "model.safetensors").write_bytes(safetensors(EMBEDDED, data=True))
    (made / "extra").mkdir()
    (made / "extra" / "tokens.txt").write_text("tokens")
    return made


def test_a_folder_is_drafted_as_a_hub_is(line: Line, folder: Path) -> None:
    said = line("workload", "init", "./models/Small-8B", "-o", "w.yaml")
    assert said.code == 0, said.err
    (model,) = load_workload(line.folder / "w.yaml").models
    assert (model.name, model.id, model.revision) == ("Small-8B", str(folder), None)
    assert (model.attention, model.parameters, model.context) == (Attention(4, 2, 8), 64_000 + 4096, 4096)
    text = (line.folder / "w.yaml").read_text("utf-8")
    assert "a plan pins the hash of each of its files" in text
    assert "revision" not in yaml.safe_load(text)["models"]["Small-8B"]
    assert line("workload", "init", str(folder), "--json").result["revision"] == ""


def test_the_draft_can_be_assessed(line: Line, folder: Path) -> None:
    assert line("workload", "init", str(folder), "-o", "w.yaml").code == 0
    assert line("assess", line.facts("win11-pro-1gpu"), "--workload", "w.yaml").code == 0


def test_what_was_planned_is_not_assumed(line: Line, folder: Path) -> None:
    words = ("workload", "init", str(folder), "--context", 2048, "--sequences", 2, "--gpus", 2, "-o", "w.yaml")
    said = line(*words)
    assert (said.code, "Assumed" in said.out) == (0, False)
    (model,) = load_workload(line.folder / "w.yaml").models
    assert (model.context, model.sequences, model.parallel.tensor) == (2048, 2, 2)
    assert line("workload", "init", str(folder), "--gpus", 2).code == 2


@pytest.mark.costly
def test_a_plan_pins_each_file_by_its_hash_and_serves_them(
    line: Line, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Linux sees the folder at the same path as this machine."""
    monkeypatch.setenv("ALICE", KEY)
    small = {name: value for name, value in MODEL.items() if name != "revision"} | {"id": str(folder)}
    serves = ("--workload", workload(line.folder, chat=small), "--api-key", "alice=env:ALICE")
    with Lab([find(LINUX)], tmp_path, scale=0.001) as lab:
        (host,) = lab.linux_hosts
        said = line("plan", host, *serves, "--engine-image", IMAGE.pinned, "-o", "plan.json")
        assert said.code == 0, said.err
        assert f"the Linux that serves needs the files of chat at {folder}" in said.out
        stages = json.loads((line.folder / "plan.json").read_text("utf-8"))["stages"]
        wanted = [each for stage in stages for each in stage["desired"] if each["resource"] == "ModelFiles"]
        (files,) = [each["desired"] for each in wanted]
        assert (files["source"], files["revision"], files["token"]) == (str(folder), None, None)
        names = ["config.json", "extra/tokens.txt", "model.safetensors"]
        found = [(hashlib.sha256((folder / name).read_bytes()).hexdigest(), folder / name, name) for name in names]
        assert files["files"] == sorted(f"sha256:{digest} {path.stat().st_size} {name}" for digest, path, name in found)
        said = line("apply", "plan.json", "--accept", ",".join(CONSENTS), "--yes")
        assert said.code == 0, said.err
        assert "A completion of chat" in said.err
        assert line("verify", "plan.json").code == 0


def test_compose_says_that_a_folder_cannot_reach_it(line: Line, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE", KEY)
    small = {name: value for name, value in MODEL.items() if name != "revision"} | {"id": str(folder)}
    facts = line.folder / "linux.json"
    facts.write_text(write_document(expand(find(LINUX))[0]), encoding="utf-8")
    file = workload(line.folder, chat=small)
    key = ("--api-key", "alice=env:ALICE")
    said = line(
        "render", "compose", file, "--facts", facts, *key, "--engine-image", IMAGE.pinned, "-o", line.folder / "o"
    )
    assert (said.code, "is a folder of this machine" in said.err) == (2, True), said.err


FAULTS = {
    "no folder": (lambda folder: folder.rename(folder.parent / "other"), "there is no such folder"),
    "a file": (
        lambda folder: folder.rename(folder.parent / "other") and folder.write_text("GGUF"),
        "is a file, and no",
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no weights that vLLM loads"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "no object in JSON"),
    "deep": (lambda folder: (folder / "config.json").write_text("[" * 100_000), "no object in JSON"),
    "huge": (lambda folder: (folder / "config.json").write_text(" " * (3 << 20)), "more than 2 MiB"),
    "cut": (lambda folder: os.truncate(folder / "model.safetensors", 9), "cannot be read as safetensors"),
    "a link": (lambda folder: (folder / "more.safetensors").symlink_to("model.safetensors"), "is a link"),
    "a link to a folder": (lambda folder: (folder / "more").symlink_to(folder / "extra"), "is a link"),
    "a name": (lambda folder: (folder / "a\nb").write_text(""), "no name of a file"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_with_a_folder_is_one_sentence(line: Line, folder: Path, fault: object) -> None:
    spoil, says = fault  # type: ignore[misc]
    spoil(folder)
    said = line("workload", "init", str(folder))
    assert (said.code, says in said.err) == (1 if folder.is_dir() else 2, True), said.err
    assert len(said.err.strip().splitlines()) in (2, 3)


def test_up_refuses_a_folder_without_a_model_before_it_reads_a_host(line: Line) -> None:
    (line.folder / "empty").mkdir()
    said = line("up", "./empty")
    assert said.code == 1
    assert f"{line.folder / 'empty'}: has no config.json" in said.err
    assert "Name the folder that has config.json and the safetensors of the model, or a model as ORG/NAME" in said.err


def test_words_that_are_paths_and_words_that_are_models() -> None:
    paths = ("./x", "../x", "/srv/x", "~/x", "~", ".", "..", "C:\\x", "d:/x", ".\\x", "\\\\server\\x")
    assert all(map(is_folder, paths))
    assert not any(map(is_folder, ("org/model", "gpt2", "c/model", ".org", "~org/model", "x:y")))


def test_a_file_whose_name_is_given_for_a_model_is_pointed_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, _ = expand(find("win11-pro-1gpu"))
    monkeypatch.chdir(folder)
    (folder / "model.gguf").write_bytes(b"GGUF")
    with serving(StandInHub()) as hub:
        for model, says in (("model.gguf", "write ./model.gguf"), ("./model.gguf", "is a file, and no folder")):
            with pytest.raises(WinhostError) as refused:
                choose_model(facts, "wsl2/mirrored", model, hub.url, folder / "workload.yaml", can_ask=False)
            assert says in f"{refused.value} {refused.value.hint}", model


def test_a_drive_is_seen_below_mnt_from_wsl() -> None:
    assert path_in_wsl(str(PureWindowsPath("C:/Users/me/Qwen3"))) == "/mnt/c/Users/me/Qwen3"
    assert path_in_wsl("/srv/models/Qwen3") == "/srv/models/Qwen3"


def test_a_share_of_a_network_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelFolder, "from_path", lambda path: ModelFolder(path))
    with pytest.raises(WinhostError, match="a share of a network"):
        folder_files("\\\\server\\models\\x")


def test_a_file_that_cannot_be_read_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(WinhostError, match="cannot be read: Permission denied"):
        folder_files(str(folder))
