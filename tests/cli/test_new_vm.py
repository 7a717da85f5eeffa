"""`winhost plan --new-vm`: its options are settings of the DDA path, and what is wrong with them is told at once."""

import json
from hashlib import sha256

import pytest

from tests.cli.conftest import Line

WHOLE = ("--new-vm", "llm-02", "--cpus", "8", "--memory", "32GiB", "--disk", "100GiB")
BESIDE = ("--vhdx", "./ubuntu.vhdx")
ON_THE_HOST = ("--vhdx", r"D:\images\ubuntu.vhdx")


def test_the_options_are_in_the_plan_with_the_hash_of_the_file_beside_it(line: Line) -> None:
    (line.folder / "ubuntu.vhdx").write_bytes(b"a disk")
    facts = line.facts("server2025-role-installed")
    assert line("plan", facts, *WHOLE, *BESIDE, "--switch", "LAN", "--vlan", "20", "-o", "plan.json").code == 0
    request = json.loads((line.folder / "plan.json").read_text("utf-8"))["request"]
    assert request["playbook"]["settings"]["new_vm"] == {
        "name": "llm-02",
        "cpus": 8,
        "memory": "32GiB",
        "disk": "100GiB",
        "switch": "LAN",
        "vlan": 20,
        "vhdx": {"source": "./ubuntu.vhdx", "sha256": sha256(b"a disk").hexdigest()},
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*WHOLE, *BESIDE), "ubuntu.vhdx cannot be read: No such file or directory"),
        ((*WHOLE, *ON_THE_HOST), "new_vm.vhdx.sha256"),
        (("--new-vm", "llm-02"), "new_vm.cpus"),
        (("--cpus", "8"), "new_vm.name"),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--new-vm", "LLM 02"), "new_vm.name"),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--memory", "3"), "new_vm.memory"),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--vm", "llm-01"), "--new-vm makes one"),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--path", "wsl2"), "new_vm"),
    ],
)
def test_what_is_wrong_with_them_is_told_before_any_host_is_asked(
    line: Line, words: tuple[str, ...], says: str
) -> None:
    said = line("plan", line.facts("server2025-role-installed"), *words)
    assert said.code == 2
    assert says in " ".join(said.err.split())
