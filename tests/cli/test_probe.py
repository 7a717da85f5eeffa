"""Tests of winhost probe: it tests a host's Linux over SSH, and adds the measurements to the facts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from tests.schemas import faults
from winhost.lab.hostfile import find
from winhost.lab.linux import linux_answers
from winhost.lab.running_lab import Lab
from winhost.resources.factsfile import read_facts

EXAMPLES = Path(__file__).parents[2] / "examples/linux"
# What a WSL with one GPU says, as NVIDIA's pages have it; of its GPU and its copies only what they must have.
GPU = {"index": 0, "name": "NVIDIA GPU", "location": "0000:01:00.0", "total": 25769803776, "free": 24696061952}
GPU |= {"compute_capability": "8.9", "unified_addressing": True, "concurrent_managed": False, "fd_handles": False}
COPY = {"gpu": 0, "bytes": 1 << 28, "pageable_up": 6.0, "pageable_down": 6.0, "pinned_up": 12.0, "pinned_down": 12.0}
FOUND: dict[str, Any] = {
    "driver": {"cuda": "13.0", "gpus": [{**GPU, "nvlinks": None}]},
    "copies": {"copies": [COPY]},
    "ipc-legacy": {"ipc_legacy": True},
    "managed": {"managed": {"works": True, "concurrent": None, "offered": False}},
    "pin-limit": {"pinned": {"bytes": 939524096, "ended": "CUDA_ERROR_OUT_OF_MEMORY"}},
}
FAILS = {"ipc-fd": "cuMemCreate", "checkpoint": "cuCheckpointProcessLock"}


def measured(linux: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Replace the probe of a simulated Linux, which measures nothing, by a stand-in."""
    answer: dict[str, Any] = {"ok": True, "kernel": linux.kernel(), "outcomes": []}
    for part in request["parts"]:
        answer |= FOUND.get(part, {})
        error = {"call": FAILS[part], "number": 801, "name": "CUDA_ERROR_NOT_SUPPORTED"} if part in FAILS else None
        why = f"{FAILS[part]}: CUDA_ERROR_NOT_SUPPORTED (801)" if error else "there are fewer than two GPUs"
        done = {"outcome": "done", "why": None} if part in FOUND else {"outcome": "skipped", "why": why}
        ended = {"outcome": "failed", "why": why} if error else done
        answer["outcomes"].append({"part": part, "seconds": 0.1, "error": error, **ended})
    return answer


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Prepare desk-01 to serve from WSL 2, with our key in its distro."""
    monkeypatch.setattr(linux_answers, "probe_answer", measured)
    with Lab([find("win11-wsl-served")], tmp_path, scale=0.001) as lab:
        for distros in lab.hosts["desk-01"].machine.distros.sessions.values():
            for distro in distros.running:
                distro.keys.append(lab.public_key)
        yield lab


@pytest.mark.usefixtures("served")
def test_it_shows_each_part_and_how_it_ended(line: Line) -> None:
    said = line("probe", "desk-01")
    assert (said.code, said.err) == (0, "")
    for part in (
        "desk-01/Ubuntu-24.04",
        "pinned",
        "cuMemCreate: CUDA_ERROR_NOT_SUPPORTED (801)",
        "there are fewer than two GPUs",
        "Not saved: name a folder with -o.",
    ):
        assert part in said.out, part


@pytest.mark.usefixtures("served")
def test_it_is_kept_as_facts_and_verdicts_rest_on_it(line: Line) -> None:
    before = line("assess", "desk-01", "--path", "wsl2", "--full", "--json").result["options"][0]["capabilities"]
    said = line("probe", "desk-01", "--also", "checkpoint,pin-limit", "-o", "facts", "--json")
    assert said.code == 0, said.out
    schema = line("schema", "probe").json
    assert list(faults(said.json, schema, schema)) == []
    measured = said.result["measured"]
    assert {each["part"] for each in measured["found"]["outcomes"] if each["outcome"] == "done"} == {*FOUND}
    assert (measured["path"], measured["target"], len(measured["script"])) == ("wsl2", "Ubuntu-24.04", 64)
    kept = json.loads(Path("facts/desk-01.json").read_text(encoding="utf-8"))
    assert (kept["schema"], kept["measured"]) == ("winhost.facts/3", [measured])
    after = line("assess", "facts/desk-01.json", "--path", "wsl2", "--full", "--json").result["options"][0]
    found = {each["capability"]: each for each in after["capabilities"]}
    for name, code in (
        ("uvm", "uvm.measured-none"),
        ("cuda-ipc", "cuda-ipc.measured-part"),
        ("cuda-checkpoint", "cuda-checkpoint.measured-none"),
    ):
        assert (found[name]["because"], found[name]["grounds"]) == ([code], ["probe-measured"])
    assert "896 MiB or more, as measured" in found["pinned-memory"]["measure"]
    assert {each["capability"]: each["because"] for each in before}["uvm"] == ["uvm.behind-windows"]


def test_a_linux_of_its_own_is_probed_itself(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lab([EXAMPLES / "ubuntu-2xh100.json"], tmp_path / "own", scale=0.001) as lab:
        monkeypatch.setenv("WINHOST_FLEET", str(lab.fleet_file))
        said = line("probe", "llm-01", "-o", "facts", "--json")
    assert said.code == 0, said.err
    measured = said.result["measured"]
    assert (measured["path"], measured["target"]) == ("linux", "llm-01")
    assert {each["outcome"] for each in measured["found"]["outcomes"]} == {"skipped"}
    assert json.loads(Path("facts/llm-01.json").read_text(encoding="utf-8"))["measured"] == [measured]


@pytest.fixture
def guest(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Prepare gpu-03 with a VM that winhost made and set up."""
    with Lab([find("server2025-role-installed")], tmp_path / "guest", scale=0.001) as lab:
        monkeypatch.setenv("WINHOST_FLEET", str(lab.fleet_file))
        monkeypatch.setenv("WINHOST_CACHE", str(tmp_path / "cache"))
        Path("noble.vhdx").write_bytes(b"a disk")
        sizes = ("--cpus", "8", "--memory", "32GiB", "--disk", "100GiB", "--vhdx", "./noble.vhdx")
        key = ("--ssh-key", str(lab.folder / "ssh-key.pub"))
        said = line("plan", "gpu-03", "--new-vm", "llm-02", *sizes, *key, "-o", "plan.json")
        assert said.code == 0, said.err
        said = line("apply", "plan.json", "--accept", "vm-stop,restart,force-dismount,network", "--yes")
        assert said.code == 0, said.err
        yield lab


@pytest.mark.costly
def test_a_guest_is_probed_where_it_is_found(guest: Lab, line: Line) -> None:
    said = line("probe", "gpu-03", "-o", "facts", "--json")
    assert said.code == 0, said.err
    assert (said.result["measured"]["path"], said.result["measured"]["target"]) == ("dda", "llm-02")
    found = line("assess", "facts/gpu-03.json", "--path", "dda", "--json")
    assert found.code == 0, found.err
    machine = guest.hosts["gpu-03"].machine
    machine.turn_vm_off(next(guid for guid, vm in machine.vms.items() if vm.name == "llm-02"))
    off = line("probe", "gpu-03", "--json")
    assert (off.code, off.result["error"]["kind"]) == (1, "NotAvailable"), off.out


@pytest.mark.costly
def test_a_guest_that_nobody_sees_yet_is_told_of(guest: Lab, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(guest.hosts["gpu-03"].machine), "neighbours", lambda machine: [])
    text = guest.fleet_file.read_text("utf-8")
    guest.fleet_file.write_text(text.replace('      address: "127.0.0.1"\n', ""), "utf-8")
    said = line("probe", "gpu-03", "--json")
    assert (said.code, said.result["error"]["kind"]) == (5, "NotThere"), said.out


@pytest.mark.usefixtures("served")
def test_facts_without_measurements_stay_readable_and_detect_writes_none(line: Line) -> None:
    assert line("detect", "desk-01", "-o", "facts").code == 0
    path = Path("facts/desk-01.json")
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told.pop("measured") == []
    path.write_text(json.dumps(told), encoding="utf-8")
    assert read_facts(path).measured == ()


@pytest.mark.usefixtures("lab")
def test_without_ssh_access_there_is_nothing_to_try(line: Line) -> None:
    said = line("probe", "gpu-03", "--json")
    assert said.code != 0
    error = said.result["error"]
    assert error["kind"] == "NotAvailable"
    assert error["what"] == "gpu-03: probe: not possible until SSH access to the distro is available"


def test_parts_and_image_are_checked_before_anything_is_done(line: Line) -> None:
    assert "'everything' is none of: pin-limit" in line("probe", "gpu-03", "--also", "everything").err
    assert "go together" in line("probe", "gpu-03", "--also", "container").err
    assert line("probe", "gpu-03", "--image", "vllm/vllm-openai").code == 2
