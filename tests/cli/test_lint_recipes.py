"""Tests of winhost lint serve, docker-daemon and cdi."""

import os
import stat
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from winhost.lab.hostfile import expand, find
from winhost.model.documents import write_document

COMPOSE = """services:
  llm:
    image: vllm/vllm-openai:v0.33.0   # pinned
    restart: always
    runtime: nvidia
    stop_grace_period: 1m
    volumes: [./hub:/root/.cache]
    environment:
      HF_TOKEN: hf_AbCdEfGh1234
    command: --model Qwen/Q --swap-space 4 --shutdown-timeout 30
"""
GOOD = "vllm serve m --host 127.0.0.1 --max-model-len 4096"


def test_a_good_recipe_is_said_to_be_good(line: Line) -> None:
    said = line("lint", "serve", GOOD, "--vllm", "0.17.0")
    assert (said.code, said.out) == (0, "command: nothing found\n")


def test_findings_stand_at_their_places_and_secrets_nowhere(line: Line) -> None:
    Path("compose.yaml").write_text(COMPOSE)
    said = line("lint", "serve", "compose.yaml", "--explain")
    assert said.code == 1
    assert "compose.yaml:10:29: wrong: vLLM 0.33.0 no longer knows --swap-space, and ends with" in said.out
    assert "(--fix does this)" in said.out
    assert "unslothai" not in said.out  # it is not what the finding rests on
    assert "their own parsers" in said.out
    assert "hf_AbCdEfGh1234" not in said.out
    assert Path("compose.yaml").read_text() == COMPOSE


def test_each_of_several_files_is_linted(line: Line) -> None:
    Path("compose.yaml").write_text(COMPOSE)
    Path("good.sh").write_text(GOOD)
    Path("notes.txt").write_text("buy milk")
    said = line("lint", "serve", "good.sh", "compose.yaml", "--vllm", "0.33.0", "--json")
    assert (said.code, [each["file"] for each in said.results]) == (1, ["good.sh", "compose.yaml"])
    said = line("lint", "serve", "notes.txt", "compose.yaml")
    assert (said.code, "notes.txt starts no engine" in said.err) == (2, True)
    assert "[serve.option-renamed]" in said.out
    said = line("lint", "serve", "good.sh", "compose.yaml", "--fix", "-o", "one.yaml")
    assert (said.code, Path("one.yaml").exists()) == (2, False)


def test_a_compose_file_may_get_its_gpu_from_another_one_in_its_folder(line: Line) -> None:
    Path("compose.yaml").write_text(COMPOSE.replace("    runtime: nvidia\n", ""))
    assert "[serve.no-gpu]" in line("lint", "serve", "compose.yaml").out
    other = "services:\n  web:\n    deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}\n"
    Path("compose.gpu.yaml").write_text(other)
    assert "[serve.no-gpu]" in line("lint", "serve", "compose.yaml").out, "another service has it"
    Path("compose.big.yaml").write_text(f"services:\n{'#' * 100_000}\n")
    Path("compose.gpu.yaml").write_text(other.replace("web", "llm"))
    said = line("lint", "serve", "compose.yaml").out
    assert "gives the container no GPU; compose.gpu.yaml beside it does. [serve.gpu-elsewhere]" in said
    assert "[serve.no-gpu]" not in said


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_a_mended_file_is_a_new_one_that_the_same_people_read(line: Line) -> None:
    Path("compose.yaml").write_text(COMPOSE)
    Path("compose.yaml").chmod(0o640)
    said = line("lint", "serve", "compose.yaml", "--fix")
    assert said.code == 1  # the token is still there
    assert said.out.endswith(
        "Written: compose.mended.yaml\n\nDefects: 2 (1 mended). Advice: 1. Exit code 1: there are defects.\n"
    )
    mended = Path("compose.mended.yaml")
    assert mended.read_text() == COMPOSE.replace(" --swap-space 4", "")
    assert stat.S_IMODE(mended.stat().st_mode) == 0o640
    assert Path("compose.yaml").read_text() == COMPOSE
    again = line("lint", "serve", "compose.yaml", "--fix")
    assert again.code == 2
    assert "error: compose.mended.yaml is there already\n" in again.err  # nothing in it tells who wrote it
    assert line("lint", "serve", "compose.yaml", "--fix", "--force").code == 1
    assert "\nWritten: other.yaml\n" in line("lint", "serve", "compose.yaml", "--fix", "-o", "other.yaml").out


def test_a_file_is_mended_only_where_that_is_asked_for(line: Line) -> None:
    Path("compose.yaml").write_text(COMPOSE)
    said = line("lint", "serve", "compose.yaml", "-o", "other.yaml")
    assert (said.code, Path("other.yaml").exists()) == (2, False)
    assert "add --fix" in said.err


@pytest.mark.parametrize(
    ("text", "why"), [(GOOD, "there is nothing to mend"), ("vllm serve m --dtype x --host 127.0.0.1", "none of this")]
)
def test_a_fix_that_mends_nothing_says_so(line: Line, text: str, why: str) -> None:
    said = line("lint", "serve", text, "--vllm", "0.17.0", "--fix")
    assert f"Nothing is written: {why}" in said.out


def test_in_place_changes_the_words_concerned_and_no_other_byte(line: Line) -> None:
    data = COMPOSE.replace("\n", "\r\n").encode()
    Path("compose.yaml").write_bytes(data)
    line("lint", "serve", "compose.yaml", "--in-place")
    assert Path("compose.yaml").read_bytes() == data.replace(b" --swap-space 4", b"")
    assert line("lint", "serve", GOOD, "--in-place").code == 2
    assert line("lint", "serve", "compose.yaml", "--in-place", "-o", "x.yaml").code == 2


def test_what_is_mended_by_itself_is_no_failure_any_more(line: Line) -> None:
    words = ("lint", "serve", f"{GOOD} --swap-space 4", "--vllm", "0.33.0")
    assert line(*words).code == 1
    assert line(*words, "--fix").code == 0


def test_a_command_may_stand_behind_dashes(line: Line) -> None:
    said = line("lint", "serve", "--vllm", "0.33.0", "--json", "--fix", "--", *GOOD.split(), "--swap-space", "4")
    assert said.result["text"] == f"{GOOD} --shutdown-timeout=20"
    (renamed,) = (each for each in said.result["findings"] if each["severity"] == "unsupported")
    assert renamed["code"] == "serve.option-renamed"
    assert (renamed["line"], renamed["fixed"], renamed["lacks"]) == (1, True, None)
    assert renamed["evidence"] == ["vllm-parsers"]
    assert {key for each in said.result["findings"] for key in each["evidence"]} == {
        each["id"] for each in said.result["evidence"]
    }


def test_a_text_that_comes_in_is_shown_mended_without_its_secrets(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"docker run --gpus all -e VLLM_API_KEY=open-sesame -v m:/m vllm/vllm-openai:v0.33.0 --model /m/x -tp 2"
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text)))
    said = line("lint", "serve", "-", "--fix")
    assert "open-sesame" not in said.out + said.err
    assert "docker run --shm-size=8g --stop-timeout=60 --gpus all -e VLLM_API_KEY=*** -v m:/m" in said.out


def test_facts_say_where_it_runs_and_on_what(line: Line, tmp_path: Path) -> None:
    for name in ("win11-pro-2xl20-wddm", "server2025-2xh100"):
        (tmp_path / f"{name}.json").write_text(write_document(expand(find(name))[0]), encoding="utf-8")
    recipe = "vllm serve m --host 127.0.0.1 -tp 4"
    desk = line("lint", "serve", recipe, "--facts", "win11-pro-2xl20-wddm.json", "--json").result
    assert desk["path"] == "wsl2"
    assert {"serve.more-gpus-than-there", "serve.all-reduce-on-wsl"} <= {each["code"] for each in desk["findings"]}
    server = line("lint", "serve", recipe, "--facts", "server2025-2xh100.json", "--json").result
    assert server["path"] == "dda"
    assert "serve.all-reduce-on-wsl" not in {each["code"] for each in server["findings"]}
    assert line("lint", "serve", recipe, "--facts", "server2025-2xh100.json", "--path", "linux").code == 2


@pytest.mark.parametrize("words", [("nofile",), ("docker run nginx",), ("vllm serve m", "--vllm", "newest")])
def test_what_is_no_recipe_is_one_sentence(line: Line, words: tuple[str, ...]) -> None:
    said = line("lint", "serve", *words)
    assert said.code == 2
    assert said.out == ""
    assert len(said.err) < 400


def test_nothing_in_a_recipe_moves_a_cursor(line: Line) -> None:
    said = line("lint", "serve", "vllm serve \x1b[2J --\x1b[31mred \u202e --host 127.0.0.1", "--fix")
    assert said.code == 1
    assert not {"\x1b", "\u202e"} & set(said.out + said.err)


def test_a_file_that_is_too_large_is_one_sentence(line: Line) -> None:
    Path("long.sh").write_text("vllm serve m \\\n" * 40_000)
    said = line("lint", "serve", "long.sh")
    assert said.code == 2
    assert "is larger than 512 KiB" in said.err


def test_settings_of_docker_are_mended(line: Line) -> None:
    Path("daemon.json").write_text('{\n\t"graph": "/data",\n\t"log-driver": "local"\n}\n')
    said = line("lint", "docker-daemon", "daemon.json", "--in-place")
    assert said.code == 0
    assert Path("daemon.json").read_text() == '{\n\t"data-root": "/data",\n\t"log-driver": "local"\n}\n'


def test_a_specification_of_cdi_is_held_against_the_machine(line: Line) -> None:
    Path("nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n")
    said = line("lint", "cdi", "nvidia.yaml", "--path", "wsl2")
    assert said.code == 1
    assert "[cdi.no-cdi-devices]" in said.out


def test_wslconfig_is_held_against_the_host(line: Line, tmp_path: Path) -> None:
    (tmp_path / "desk.json").write_text(write_document(expand(find("win11-pro-1gpu"))[0]), encoding="utf-8")
    Path(".wslconfig").write_text("[wsl2]\nprocessors=64\nswapFile=E:/swap.vhdx\n")
    said = line("lint", "wslconfig", ".wslconfig", "--facts", "desk.json")
    assert said.code == 1
    assert "wslconfig.more-than-there" in said.out
    assert "wslconfig.no-drive" in said.out


@pytest.mark.parametrize(
    ("linter", "text"),
    [
        ("wslconfig", "[wsl2]\nmemori=4GB\n"),
        ("wslconf", "[boot]\nsystemdd=true\n"),
        ("autoinstall", "version: 1\nversoin: 1\n"),
        ("docker-daemon", "[]"),
        ("cdi", "kind: x\n"),
        ("serve", f"{GOOD} --dtype x"),
    ],
)
def test_every_lint_reads_standard_input(line: Line, monkeypatch: pytest.MonkeyPatch, linter: str, text: str) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text.encode())))
    said = line("lint", linter, "-")
    assert said.code == 1
    assert said.out.startswith("-:")


@pytest.mark.parametrize("linter", ["wslconfig", "wslconf", "autoinstall", "docker-daemon", "cdi", "serve"])
@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 8, bytes(range(1, 32)) * 40 + b"ab\n"])
def test_a_binary_file_is_one_error(line: Line, linter: str, data: bytes) -> None:
    Path("file").write_bytes(data)
    said = line("lint", linter, "file")
    assert (said.code, said.out) == (2, "")
    assert said.err == "error: file: this is a binary file, not text\n"


@pytest.mark.parametrize("linter", ["wslconfig", "autoinstall"])
def test_a_file_in_utf_16_without_a_mark_is_one_finding(line: Line, linter: str) -> None:
    Path("file").write_bytes("[wsl2]\nmemory=4GB\nswap=0\n".encode("utf-16-le"))
    (found,) = line("lint", linter, "file", "--json").result["findings"]
    assert "Error" not in found["sentence"]


def test_an_empty_word_is_not_taken_for_this_folder(line: Line) -> None:
    said = line("lint", "serve", "")
    assert (said.code, "this starts no engine that lint knows" in said.err) == (2, True)
