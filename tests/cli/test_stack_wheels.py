"""Tests of winhost plan --engine-lock: an environment of wheels, up to an endpoint and back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.conftest import Line
from tests.hub.stand_in_hub import StandInHub
from tests.hub.stand_in_index import StandInIndex, made_wheel, serving_index
from tests.serving.one_plan import workload
from winhost.cli.plan import stack_parts
from winhost.cli.plan.stack_options import StackOptions
from winhost.cli.plan.stack_parts import StackParts
from winhost.hub.wheel_index import locked_packages
from winhost.lab.linux.serving import ServedEngines
from winhost.serving.packed_weights import NVCOMP_LOCK

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
NAME = "vllm-0.33.0-cp38-abi3-manylinux_2_31_x86_64.whl"
UNIT = "/usr/local/lib/systemd/system/winhost-gateway.service"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[StandInIndex]:
    with serving_index(StandInIndex({NAME: made_wheel({"x.py": NAME})})) as made:
        (tmp_path / "vllm.txt").write_text(made.lock(("vllm", "0.33.0")))
        yield made


def plan(line: Line, hub: StandInHub, index: StandInIndex, *words: object) -> Any:
    serves = ("--workload", workload(line.folder), "--api-key", "alice=env:ALICE", "--hub", hub.url)
    return line("plan", "llm-01", *serves, "--index", index.index, *words, "-o", "plan.json")


@pytest.mark.costly
def test_vllm_comes_as_wheels_starts_from_there_and_goes(
    line: Line, linux: Any, hub: StandInHub, index: StandInIndex, tmp_path: Path
) -> None:
    said = plan(line, hub, index, "--engine-lock", tmp_path / "vllm.txt")
    assert said.code == 0, said.err
    assert "1 wheels of" in said.out
    assert line("fetch", "plan.json", "-o", "offline").code == 0
    assert {each.name for each in Path("offline/python").rglob("*.whl")} == {NAME}
    linux.online = False
    said = line("apply", "offline/plan.json", "--accept", "packages,containers", "--yes")
    assert said.code == 0, said.err + said.out
    (made,) = (path for path in linux.texts() if path.endswith("/winhost.json"))
    assert json.loads(linux.texts()[made])["python"] == "3.12"
    gateway, engine = linux.texts()[UNIT], next(iter(linux.part(ServedEngines).units.values()))["text"]
    assert engine.partition('ExecStart="')[2].partition("/bin/vllm")[0] == made.removesuffix("/winhost.json")
    assert "\nExecStart=/usr/bin/python3 -s" in gateway
    # Nothing there runs in a container, and the gateway wants no package.
    planned = json.loads(Path("plan.json").read_text("utf-8"))
    assert not {"AptSource", "AptPackages", "DebianPackage", "CdiSpec"} & {
        each["resource"] for stage in planned["stages"] for each in stage["steps"]
    }
    assert line("verify", "offline/plan.json").code == 0
    (run,) = line("runs", "--json").results
    assert line("rollback", run["run"], "--yes", "--accept", "packages,containers,data").code == 0
    assert linux.disk.list_names("/opt/winhost") == []


NVCOMP = "nvidia_nvcomp_cu13-6.0.0.12-py3-none-manylinux_2_28_x86_64.whl"


@pytest.mark.costly
def test_packed_weights_come_with_their_loader_also_offline_and_go(
    line: Line, linux: Any, hub: StandInHub, index: StandInIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.files[NVCOMP] = made_wheel({"nvidia/nvcomp/__init__.py": ""})
    monkeypatch.setattr(stack_parts, "NVCOMP_LOCK", index.lock(("nvidia-nvcomp-cu13", "6.0.0.12")))
    file = workload(line.folder)
    file.write_text(file.read_text("utf-8").replace("    id:", "    load_format: packed\n    id:", 1), "utf-8")
    serves = ("--workload", file, "--api-key", "alice=env:ALICE", "--hub", hub.url, "--index", index.index)
    said = line("plan", "llm-01", *serves, "--engine-lock", tmp_path / "vllm.txt", "-o", "plan.json")
    assert said.code == 0, said.err
    assert "for packed weights of" in " ".join(said.out.split())
    assert line("fetch", "plan.json", "-o", "offline").code == 0
    assert {each.name for each in Path("offline/python").rglob("*.whl")} == {NAME, NVCOMP}
    linux.online = False
    said = line("apply", "offline/plan.json", "--accept", "packages,containers", "--yes")
    assert said.code == 0, said.err + said.out
    (packed,) = (name for name in linux.disk.list_names("/srv/winhost/models") if name.endswith("--packed"))
    assert linux.disk.list_names(f"/srv/winhost/models/{packed}")
    (run,) = line("runs", "--json").results
    assert line("rollback", run["run"], "--yes", "--accept", "packages,containers,data").code == 0
    assert linux.disk.list_names("/opt/winhost") == []
    assert not [name for name in linux.disk.list_names("/srv/winhost/models") if "packed" in name]


def test_the_lock_of_nvcomp_names_each_wheel_by_its_hash() -> None:
    packages = locked_packages(NVCOMP_LOCK, "nvCOMP", "3.12", "x86_64")
    assert [each.name for each in packages] == ["nvidia-nvcomp-cu13", "nvidia-libnvcomp-cu13"]
    assert all(len(each.hashes) == 1 and str(each.version) == "6.0.0.12" for each in packages)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--engine-program", "/opt/vllm/bin/vllm"), "and --engine-lock brings one"),
        (("--engine-image", "vllm/vllm-openai:v0.33.0"), "and --engine-lock brings one"),
    ],
)
def test_vllm_comes_one_way(
    line: Line, linux: Any, hub: StandInHub, index: StandInIndex, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    said = plan(line, hub, index, "--engine-lock", tmp_path / "vllm.txt", *words)
    assert (said.code, why in " ".join(said.err.split())) == (2, True)


def test_a_lock_that_is_none_is_told(
    line: Line, linux: Any, hub: StandInHub, index: StandInIndex, tmp_path: Path
) -> None:
    (tmp_path / "vllm.txt").write_text("vllm\n")
    said = plan(line, hub, index, "--engine-lock", tmp_path / "vllm.txt")
    assert (said.code, "does not name one version" in said.err) == (2, True)
    said = plan(line, hub, index, "--engine-lock", "nowhere.txt")
    assert (said.code, "nowhere.txt" in said.err) == (2, True)


def test_a_program_and_an_image_contradict_each_other(tmp_path: Path) -> None:
    asked = StackOptions(
        workload=workload(tmp_path), engine_program="/opt/vllm/bin/vllm", engine_image="vllm/vllm-openai:v0.33.0"
    )
    with pytest.raises(click.UsageError, match="choose"):
        StackParts(asked).own_program  # noqa: B018 - it is asked for what it refuses


def test_the_version_of_vllm_is_that_of_its_lock(tmp_path: Path) -> None:
    file = workload(tmp_path)
    file.write_text(file.read_text("utf-8").replace("versions:\n  vllm: 0.33.0\n", ""), "utf-8")
    assert "0.33" not in file.read_text("utf-8")
    (tmp_path / "vllm.txt").write_text("torch==2.9.0\nvllm==0.31.1 \\\n    --hash=sha256:00\n")
    parts = StackParts(StackOptions(workload=file, engine_lock=tmp_path / "vllm.txt"))
    assert str(parts.workload.versions["vllm"]) == "0.31.1"
