"""winhost up, chat, status and down typed on a real Debian: no SSH, no fleet file, no network.

Real are Debian 12 with its systemd, users, files and Python, winhost itself, the gateway as the service that it
installs, and the units of the engine. Stood in for are the GPU (files of a PCI bus and an nvidia-smi that says what an
H200 said) and vLLM (a program that answers as vLLM does and computes nothing, from weights of zeros). There is no
container, and the kernel is that of this machine: modinfo is lacking, so that the path is named with
--allow-unverified.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import standin_engine
from tests.gpu.machine import GpuLinux, differences
from tests.gpu.standin_files import standin_model
from tests.house.tree import ROOT
from tests.linux.debian import NoDebian, make_base
from tests.processes import PATIENCE_S

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(2400),  # they take turns, and one is fetched
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the Python of Debian 12 loads what is installed here"),
]

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 258,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
PROGRAM = "/opt/stand-in/vllm"
MODEL = "/srv/model"
UNPROVEN = ("--path", "linux", "--allow-unverified")
SERVES = ("--engine-program", PROGRAM, "--engine-version", "0.24.0")
STATE = "root/.local"  # of winhost itself, which keeps its journals and keys there


class Box(GpuLinux):
    """This winhost and its libraries lie in it."""

    def start(self, *, systemd: bool = True) -> None:
        libraries = next(Path(each) for each in sys.path if each.endswith("site-packages"))
        self.devices = (f"{ROOT}:/opt/winhost", f"{libraries}:/opt/libraries")
        super().start(systemd=systemd)

    def _answers(self) -> bool:
        """Nobody comes in: winhost runs there."""
        booted = self.inside("systemctl", "is-active", "--quiet", "multi-user.target")
        return subprocess.run(booted, capture_output=True, timeout=PATIENCE_S).returncode == 0

    def winhost(self, *words: str) -> "subprocess.CompletedProcess[str]":
        settings = ("HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH=/opt/winhost:/opt/libraries")
        command = ["env", "-i", *settings, "PYTHONDONTWRITEBYTECODE=1", "python3", "-m", "winhost", *words]
        return subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=1200, cwd="/")

    def has(self, unit: str) -> bool:
        return unit in self.run("systemctl", "list-unit-files", "--no-pager", "--no-legend")

    def without_state(self) -> dict[str, str]:
        return {path: text for path, text in self.look().items() if path != STATE and not path.startswith(f"{STATE}/")}


@pytest.fixture
def box(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Box]:
    base = pytestconfig.cache.mkdir("debian") / "base"
    try:
        make_base(base)
        made = Box(base, tmp_path, tmp_path, stand_in=1)
    except NoDebian as why:
        pytest.skip(f"no Debian with systemd can be made here: {why}")
    standin_model(model := made.root / MODEL.lstrip("/"))
    (model / "config.json").write_text(json.dumps(CONFIG))
    program = made.root / PROGRAM.lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_text("#!/usr/bin/python3\n" + Path(str(standin_engine.__file__)).read_text() + "\nmain()\n")
    program.chmod(0o755)
    yield made
    made.close()


def test_it_serves_and_is_given_back(box: Box) -> None:
    before = box.without_state()
    refused = box.winhost("up", MODEL, *SERVES)
    assert (refused.returncode, f"winhost up {MODEL}" in refused.stderr) == (3, True), refused.stderr
    assert " ".join(UNPROVEN) in refused.stderr
    asked = box.winhost("up", MODEL, *UNPROVEN, *SERVES)
    assert (asked.returncode, box.without_state()) == (2, before), asked.stderr
    done = box.winhost("up", MODEL, *UNPROVEN, *SERVES, "--yes")
    assert done.returncode == 0, done.stderr
    assert 'from this computer: "yes"' in done.stderr
    assert "Base URL: http://127.0.0.1:8443/v1" in done.stdout
    assert box.has("winhost-gateway.service")
    assert box.winhost("chat", "Say hello").stdout.startswith("word word ")
    assert "model: serving for" in box.winhost("status").stdout
    assert "no tunnel is needed" in box.winhost("open", "localhost").stdout
    again = box.winhost("up", MODEL, *UNPROVEN, *SERVES)
    assert (again.returncode, "served already" in again.stdout) == (0, True), again.stderr
    gone = box.winhost("down", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert not box.has("winhost-")
    left = differences(before, box.without_state())
    assert left == {"added": [], "gone": [], "changed": []}
    assert "Nothing is served yet" in box.winhost("status").stdout
