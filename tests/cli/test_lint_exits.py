"""Tests of the exit codes of all linters: 1 for defects, and with --strict for advice as well."""

from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from winhost.model.reason import Severity

DOCKER = """docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface \\
    --env "HF_TOKEN=$HF_TOKEN" -p 8000:8000 --ipc=host vllm/vllm-openai:latest --model Qwen/Qwen3-0.6B
"""
CDI = """cdiVersion: "0.5.0"
kind: {kind}
devices:
- {{name: all, containerEdits: {{deviceNodes: [{{path: /dev/nvidia0}}]}}}}
containerEdits: {{mounts: [{{hostPath: /usr/lib/libcuda.so.1, containerPath: /usr/lib/libcuda.so.1}}]}}
"""
INSTALL = """version: 1
identity: {{username: ada, hostname: gpu, password: $y$j9T$salt$hash}}
ssh: {{install-server: true, authorized-keys: [ssh-ed25519 AAAA ada]}}
interactive-sections: [storage]
{more}
"""
FOUND = {"nothing": (0, 0), "advice": (0, 1), "defect": (1, 1)}
# What is found, the linter, and the file.
FILES = [
    ("nothing", "wslconfig", "[wsl2]\nmemory=8GB\n"),
    ("advice", "wslconfig", "[wsl2]\nvmIdleTimeout=-1\n"),
    ("defect", "wslconfig", "[wsl2]\nvmIdleTimeout=-1\nmemroy=8GB\n"),
    ("nothing", "wslconf", "[boot]\nsystemd=true\n"),
    ("advice", "wslconf", b"[boot]\nsystemd=true\n# \xff\n"),
    ("defect", "wslconf", "[boot]\n; x\n"),
    ("advice", "autoinstall", INSTALL.format(more="")),
    ("advice", "autoinstall", INSTALL.format(more="storage: {layout: {name: lvm}}")),
    ("defect", "autoinstall", INSTALL.format(more="keyboard: {layou: us}")),
    ("nothing", "serve", "vllm serve m --host 127.0.0.1 --max-model-len 4096 --shutdown-timeout 20"),
    ("advice", "serve", "vllm serve Qwen/Qwen2.5-1.5B-Instruct"),
    ("advice", "serve", "vllm serve m --host 0.0.0.0 --trust-remote-code"),
    ("advice", "serve", DOCKER),
    ("defect", "serve", "vllm serve m --api-key token-abc123"),
    ("defect", "serve", "vllm serve m --tensor-paralel-size 2"),
    ("advice", "docker-daemon", '{"features": {"cdi": false}}'),
    ("defect", "docker-daemon", '{"hosts": ["tcp://0.0.0.0:2375"]}'),
    ("nothing", "cdi", CDI.format(kind="nvidia.com/gpu")),
    ("advice", "cdi", CDI.format(kind="example.com/gpu")),
    ("defect", "cdi", CDI.format(kind="gpu")),
]


def test_defects_decide_and_advice_counts_with_strict_alone(line: Line) -> None:
    wrong = []
    for found, linter, text in FILES:
        Path("given").write_bytes(text if isinstance(text, bytes) else text.encode())
        said, strict = line("lint", linter, "given"), line("lint", linter, "given", "--strict")
        told, strictly = (line("lint", linter, "given", "--json", *more) for more in ((), ("--strict",)))
        categories = [Severity(each["severity"]).category for each in told.result["findings"]]
        heaviest = "defect" if "defect" in categories else "advice" if categories else "nothing"
        last = said.out.splitlines()[-1]
        ending = (
            "given: nothing found"
            if not categories
            else f"Defects: {categories.count('defect')}. Advice: {categories.count('advice')}. Exit code {said.code}: "
        )
        as_wanted = (
            heaviest == found
            and (said.code, strict.code) == (told.code, strictly.code) == FOUND[found]
            and last.startswith(ending)
            and ("\nAdvice\n" in f"\n{said.out}") == ("advice" in categories)
        )
        if not as_wanted:
            wrong.append((linter, text, found, categories, said.code, strict.code, last))
    assert wrong == []


def test_defects_are_shown_first(line: Line) -> None:
    Path("start.sh").write_text("vllm serve m --trust-remote-code --tensor-paralel-size 2\n")
    said = line("lint", "serve", "start.sh")
    defects, advice = said.out.split("\n\nAdvice\n")
    assert [row.split(": ")[1] for row in defects.splitlines() if row.startswith("start.sh:")] == ["wrong"]
    assert {row.split(": ")[1] for row in advice.splitlines() if row.startswith("start.sh:")} == {"note"}


def test_what_is_mended_does_not_count(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    good = "vllm serve m --host 127.0.0.1 --shutdown-timeout 20 --max-model-len 4096"
    long = "vllm serve m --host 127.0.0.1 --shutdown-timeout 20"
    for text, more, code, last in (
        (long, "", 1, "Defects: 1. Advice: 1. Exit code 1: there are defects."),
        (long, "--fix", 0, "Defects: 1 (1 mended). Advice: 1. Exit code 0: advice does not count without --strict."),
        (long, "--fix --strict", 1, "Defects: 1 (1 mended). Advice: 1. Exit code 1: --strict counts advice."),
        (good, "--fix --strict", 0, "Defects: 1 (1 mended). Advice: 0. Exit code 0: all is mended."),
    ):
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(f"{text} --swap-space 4".encode())))
        said = line("lint", "serve", "-", "--vllm", "0.33.0", *more.split())
        assert (said.code, said.out.splitlines()[-1]) == (code, last)
