"""Tests of winhost serve profile."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Line, Said
from tests.processes import PATIENCE_S
from winhost.serving.vllm_options import seen_versions

EXAMPLES = Path(__file__).parents[2] / "examples/workloads"
TWO_GPUS = "win11-pro-2xl20-wddm"
BASH = shutil.which("bash")


def served(line: Line, example: str, *words: str, host: str = TWO_GPUS) -> Said:
    return line("serve", "profile", "--facts", line.facts(host), "--workload", EXAMPLES / f"{example}.yaml", *words)


def edited(line: Line, example: str, old: str, new: str) -> Path:
    text = (EXAMPLES / f"{example}.yaml").read_text(encoding="utf-8")
    assert old in text
    path = line.folder / "workload.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_each_model_has_its_block(line: Line) -> None:
    said = served(line, "three-share-a-gpu")
    assert said.code == 0
    for name in ("general", "code", "small"):
        assert f"# {name}: profile wsl2\n" in said.out
        assert f"--uds=/run/winhost-engines/{name}/engine.sock " in said.out
    assert "(simulated)" in said.out
    assert "--explain" in said.out


@pytest.mark.skipif(BASH is None, reason="there is no bash on this machine")
@pytest.mark.parametrize("words", [(), ("--explain",), ("--profile", "wsl2-no-sleep")], ids=str)
def test_all_of_it_can_be_run(line: Line, words: tuple[str, ...]) -> None:
    said = served(line, "three-share-a-gpu", *words)
    script = f'docker() {{ echo "$3"; }}\n{said.out}'
    done = subprocess.run(
        [str(BASH), "-c", script], capture_output=True, text=True, env={"PATH": ""}, timeout=PATIENCE_S
    )
    assert (done.stdout.split(), done.stderr) == (["--name=general", "--name=code", "--name=small"], "")


def test_explain_tells_reason_versions_arithmetic_and_evidence(line: Line) -> None:
    said = served(line, "70b-awq-on-2x48gb", "--explain")
    assert "# " in said.out
    for words in (
        "NCCL_P2P_DISABLE=1: GPUs cannot copy to each other directly in WSL; NCCL need not try. "
        "[profile.wsl2.NCCL_P2P_DISABLE]",
        f"observed: tensor >1 (2); vllm >=0.29 ({seen_versions()[-1]})",
        "= 9.15 GiB; up to a multiple of 8.00 GiB: 16.00 GiB",
        "Evidence wsl-no-peers: microsoft/WSL #6587 (issue, confidence medium, seen ",
    ):
        assert words in said.out
    assert "sets NCCL_P2P_DISABLE, for: model_gpus >1." in line("explain", "profile.wsl2.NCCL_P2P_DISABLE").out


def test_what_sleep_is_left_for_and_what_is_lost_is_told(line: Line) -> None:
    old = edited(line, "three-share-a-gpu", '"0.33.0"', '"0.16.0"')
    said = line("serve", "profile", "--facts", line.facts(TWO_GPUS), "--workload", old, "--read-speed", "1000")
    assert said.code == 0
    assert "# small: profile wsl2-no-sleep" in said.out
    assert "Sleep mode is unsafe: Before 0.17, a request to a sleeping engine kills it." in said.out
    assert "Reading 5.75 GiB of weights takes 6.2 s at 1000 MB/s" in said.out
    assert "swap_within: 20 s cannot be met: a start takes at least 29 s" in said.out
    assert "--enable-sleep-mode" not in said.out
    said = line("serve", "profile", "--facts", line.facts(TWO_GPUS), "--workload", old, "--explain")
    assert (
        "kills it. [profile.no-sleep.request-while-asleep]\n#       observed: sleeps; vllm <0.17 (0.16.0)" in said.out
    )


def test_a_stated_level_that_a_profile_does_not_keep_is_named(line: Line) -> None:
    old = edited(line, "three-share-a-gpu", '"0.33.0"', '"0.16.0"')
    said = line("serve", "profile", "--facts", line.facts(TWO_GPUS), "--workload", old)
    assert "sleep_level" not in said.out
    stated = edited(line, "three-share-a-gpu", '"0.33.0"', '"0.16.0"')
    stated.write_text(stated.read_text().replace("state: sleeping", "state: sleeping\n    sleep_level: 1"))
    said = line("serve", "profile", "--facts", line.facts(TWO_GPUS), "--workload", stated)
    assert "The workload states sleep_level: 1, and this profile ignores it." in said.out


def test_the_document_has_everything_and_the_command(line: Line) -> None:
    said = served(line, "70b-awq-on-2x48gb", "--json")
    assert said.code == 0
    (chat,) = said.result["models"]
    assert said.result["vllm"] == str(seen_versions()[-1]), "as a plan takes it"
    assert f"vllm/vllm-openai:v{said.result['vllm']} " in chat["command"]
    assert chat["command"].startswith("docker run --detach --name=chat --network=none")
    for told in (*chat["lines"], *chat["left_out"]):
        reason = told["reason"]
        assert reason["code"].startswith("profile."), told
        assert all((reason["sentence"], reason["evidence"])), told
        assert (reason["subject"], reason["severity"], reason["lacks"]) == ("chat", "note", None), told
    assert chat["shared_memory"] == 16 << 30


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("win11-pro-2xl20-tcc", "--path dual-boot"),
        ("win11-no-gpu", "wsl2.no-gpu"),
    ],
)
def test_what_no_profile_can_serve_is_refused(line: Line, host: str, words: str) -> None:
    said = served(line, "one-7b-on-24gb", host=host)
    assert said.code == 3
    assert said.out == ""
    assert words in said.err
    assert served(line, "one-7b-on-24gb", "--json", host=host).result["error"]["kind"] == "NoProfile"


def test_a_profile_that_is_not_there_is_wrong_usage(line: Line) -> None:
    assert served(line, "one-7b-on-24gb", "--profile", "linux").code == 2


def test_files_of_what_can_be_no_model_or_no_commit_are_wrong_usage(line: Line) -> None:
    commit = ("--revision", "a" * 40)
    for words in (("org/model", "--revision", "x"), ("Bad Name", *commit), ("org/model", *commit, "--hub", "a b")):
        said = line("serve", "files", *words, "--folder", "/srv/model")
        assert said.code == 2, (words, said.err)


@pytest.mark.skipif(BASH is None, reason="there is no bash on this machine")
def test_a_hostile_model_stays_in_a_comment(line: Line) -> None:
    hostile = "x; rm -rf ~ $(id) 'y"
    path = edited(line, "one-7b-on-24gb", "Qwen/Qwen2.5-7B-Instruct", json.dumps(hostile))
    said = line("serve", "profile", "--facts", line.facts(TWO_GPUS), "--workload", path, "--explain")
    script = f"VLLM_IMAGE=any\ndocker() {{ printf '%s\\n' \"$@\"; }}\n{said.out}"
    done = subprocess.run(
        [str(BASH), "-c", script], capture_output=True, text=True, check=True, env={"PATH": ""}, timeout=PATIENCE_S
    )
    assert hostile in said.out
    assert done.stdout.startswith("run\n--detach\n")
    assert "rm" not in done.stdout
    assert done.stderr == ""


def test_what_a_terminal_would_obey_is_not_even_taken(line: Line) -> None:
    path = edited(line, "one-7b-on-24gb", "Qwen/Qwen2.5-7B-Instruct", json.dumps("x\u001b[2J"))
    said = line("serve", "profile", "--facts", line.facts(TWO_GPUS), "--workload", path)
    assert said.code == 2
    assert "\x1b" not in said.out + said.err


def test_a_hostile_name_in_a_comment_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.serving.situations import ONE_GPU, model, shipped, workload
    from winhost.cli.serve.serve import show_serving
    from winhost.serving.choice import serving

    show_serving(serving(shipped(ONE_GPU), workload(model("a\n\u001b[2Jb"))), everything=True)
    out = capsys.readouterr().out
    assert "# a\\n\\x1b[2Jb: profile wsl2" in out
    assert "\x1b" not in out


def test_a_server_whose_gpus_are_assigned_gets_the_profile_of_its_guest(line: Line) -> None:
    said = served(line, "one-7b-on-24gb", host="server2025-3gpu")
    assert (said.code, "# chat: profile dda\n" in said.out) == (0, True)
    asked = served(line, "one-7b-on-24gb", "--path", "bare-metal", host="server2025-3gpu")
    assert (asked.code, "# chat: profile bare-metal\n" in asked.out) == (0, True)


@pytest.mark.parametrize("words", [("--path", "dda", "--profile", "wsl2"), ("--path", "linux")], ids=str)
def test_a_path_and_a_profile_that_do_not_go_together_are_wrong_usage(line: Line, words: tuple[str, ...]) -> None:
    assert served(line, "one-7b-on-24gb", *words).code == 2


def test_a_model_that_leaves_its_gpu_is_no_container(line: Line, tmp_path: Path) -> None:
    workload = tmp_path / "workload.yaml"
    text = (EXAMPLES / "one-7b-on-24gb.yaml").read_text("utf-8")
    workload.write_text(text.replace("  chat: ", "  chat:\n    state: sleeping\n    suspend: disk #"), "utf-8")
    words = ("serve", "profile", EXAMPLES.parent / "linux/ubuntu-2xh100.json", "--workload", workload)
    said = line(*words)
    assert said.code == 0, said.err
    assert "docker run" not in said.out
    assert "vllm serve /srv/winhost/models/chat" in said.out
    assert line(*words, "--json").result["models"][0]["command"].startswith("umask 0007; env ")
