"""Tests of winhost weights, with a stand-in for the engine's Python, which packs nothing."""

import json
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.rows import each_row
from tests.weights.packed import packed, plain
from winhost.serving.packed_weights import NVCOMP, WHEEL, write_wheel

PYTHON = '#!/bin/sh\necho "$@" > said\nls "${PYTHONPATH%%:*}" >> said\n'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    packed(folder / "model.safetensors")
    return folder


def stand_in(says: str, code: int = 0) -> Path:
    path = Path("engine-python")
    path.write_text(f"{PYTHON}cat <<'END'\n{says}\nEND\nexit {code}\n")
    path.chmod(0o755)
    return path.absolute()


def test_packed_files_are_listed_by_their_headers(line: Line, model: Path) -> None:
    (found,) = line("weights", "list", model, "--json").results
    whole = len((model / "model.safetensors").read_bytes())
    assert found["file"] == "model.safetensors"
    assert (found["original"], found["packed"]) == (240 * 1000 + 28 + 4 + found["original"] - 240032, whole)
    assert "model.safetensors: " in line("weights", "list", model).out


def test_what_is_not_packed_is_refused(line: Line, model: Path) -> None:
    (model / "model.safetensors").write_bytes(plain({}))
    said = line("weights", "list", model)
    assert said.code == 1
    assert "model.safetensors is not packed" in said.err


def test_what_is_wrong_names_its_file(line: Line, model: Path) -> None:
    (model / "other.safetensors").write_bytes(b"cut")
    assert "other.safetensors: this is no safetensors file" in line("weights", "list", model).err
    deep = b"[" * 100_000
    (model / "other.safetensors").write_bytes(len(deep).to_bytes(8, "little") + deep)
    assert "other.safetensors: the header is no JSON" in line("weights", "list", model).err


@each_row("words", [("list",), ("verify",), ("pack", "-o", "small"), ("unpack", "-o", "big")])
def test_a_folder_that_is_not_there_is_told_before_a_python(words: tuple[str, ...], line: Line) -> None:
    said = line("weights", words[0], "modle", *words[1:], *(() if words[0] == "list" else ("--python", "none")))
    assert (said.code, "modle is no folder" in said.err) == (2, True), said.err


@each_row(
    ("says", "advice"),
    [
        ("model.safetensors is not packed", "winhost weights pack 'my model' -o FOLDER"),
        ("model.safetensors is packed already", "winhost weights verify 'my model'"),
        ("tensor 'a' is damaged", "winhost weights pack MODEL -o FOLDER"),
        ("small has 3 MiB free, and this can take 9 MiB", "a folder on another disk: -o FOLDER"),
    ],
)
def test_each_error_says_what_to_do(says: str, advice: str, line: Line, model: Path) -> None:
    model.rename("my model")
    said = line("weights", "verify", "my model", "--python", stand_in(json.dumps({"error": says}), 1))
    Path("my model").rename(model)
    assert (said.code, advice in said.err) == (1, True), said.err


def test_a_misspelt_folder_is_corrected(line: Line, model: Path) -> None:
    assert f"did you mean '{model.name}'?" in line("weights", "list", model.with_name(f"{model.name}x")).err


def test_what_an_engines_library_prints_is_passed_over(line: Line, model: Path) -> None:
    python = stand_in("{'a': 1}\n{}\n" + '{"file": "model.safetensors", "before": 690000, "after": 1000000}')
    assert line("weights", "verify", model, "--python", python).code == 0


def test_a_folder_with_a_space_is_quoted_in_what_comes_next(line: Line, model: Path) -> None:
    Path("so small").mkdir()
    python = stand_in('{"file": "model.safetensors", "before": 1000000, "after": 690000}')
    said = line("weights", "pack", model, "-o", "so small", "--python", python).out
    assert f"  pip install 'so small/{WHEEL}' {NVCOMP}\n" in said
    assert "  vllm serve 'so small' --load-format packed\n" in said


def test_packing_runs_in_the_named_python_with_the_wheel(line: Line, model: Path) -> None:
    Path("small").mkdir()
    python = stand_in('{"file": "model.safetensors", "before": 5368709120, "after": 690000000}')
    said = line("weights", "pack", model, "-o", "small", "--python", python)
    assert (said.code, said.err) == (0, "")
    assert "model.safetensors: 5 GiB, packed 690,000,000 bytes (13 %)" in said.out
    assert NVCOMP in said.out
    assert "--load-format packed" in said.out
    called, wheel = Path("said").read_text().splitlines()
    assert called == f"-m winhost_weights pack {model} small"
    assert Path(wheel).name == WHEEL
    assert [path.name for path in Path("small").iterdir()] == [WHEEL]


def test_originals_are_deleted_by_a_second_step_alone_and_how_to_get_them_back_is_said(line: Line, model: Path) -> None:
    Path("small").mkdir()
    python = stand_in('{"file": "model.safetensors", "before": 1000000, "after": 690000}')
    said = line("weights", "pack", model, "-o", "small", "--replace", "--python", python)
    assert (said.code, said.err) == (0, "")
    assert "model.safetensors: its packed file decodes to it, so the original is deleted" in said.out
    assert f"  winhost weights unpack small -o {model}\n" in said.out
    assert Path("said").read_text().splitlines()[0] == f"-m winhost_weights replace {model} small"


def test_an_original_that_changed_is_told_with_what_was_packed_of_it(line: Line, model: Path) -> None:
    Path("small").mkdir()
    python = stand_in(
        json.dumps({"error": "model.safetensors is another file than the one that was packed, and stays"}), 1
    )
    said = line("weights", "pack", model, "-o", "small", "--replace", "--python", python)
    assert (said.code, "another file than the one that was packed" in said.err) == (1, True)


@each_row("command", ["unpack", "verify"])
def test_the_way_back_has_the_sizes_the_other_way_round(command: str, line: Line, model: Path) -> None:
    python = stand_in('{"file": "model.safetensors", "before": 690000, "after": 1000000}')
    words = ("-o", "big") if command == "unpack" else ()
    (found,) = line("weights", command, model, *words, "--python", python, "--json").results
    assert found == {"file": "model.safetensors", "original": 1000000, "packed": 690000}


@each_row(
    ("says", "code", "kind"),
    [
        ('{"error": "tensor \'a\' is damaged"}', 1, "NotPacked"),
        ('{"lacks": "its torch sees no NVIDIA GPU"}', 1, "NoPacker"),
        ("", 9, "NoPacker"),
    ],
)
def test_what_fails_there_fails_here(says: str, code: int, kind: str, line: Line, model: Path) -> None:
    said = line("weights", "verify", model, "--python", stand_in(says, code), "--json")
    assert said.code != 0
    assert said.results[-1]["error"]["kind"] == kind


def test_a_python_without_torch_is_refused(line: Line, model: Path) -> None:
    said = line("weights", "pack", model, "-o", "small", "--python", sys.executable)
    assert said.code == 2
    assert "it has no module torch" in said.err
    assert "--python PATH" in said.err
    assert not Path("small").exists()
    said = line("weights", "pack", model, "-o", "small", "--python", "no-such-python")
    assert "no-such-python cannot be started" in said.err


def test_the_wheel_registers_the_loader_and_is_the_same_each_time(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    first = wheel.read_bytes()
    assert write_wheel(tmp_path).read_bytes() == first
    (package,) = distributions(path=[str(wheel)])
    (entry,) = package.entry_points
    assert (entry.group, entry.value) == ("vllm.general_plugins", "winhost_weights.vllm_loader:register")
    assert package.requires == [NVCOMP]
    assert {str(file) for file in package.files or ()} >= {
        "winhost_weights/container.py",
        "winhost_weights/__main__.py",
    }
