"""Plans and playbooks with impossible values are refused before a host changes anything."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import read_cases
from tests.cli.conftest import Line
from winhost.lab.running_lab import Lab
from winhost.model.shipped import shipped

CONSENTS = ("--accept", "vm-stop,force-dismount", "--yes")
L40S = ("--gpu", "NVIDIA L40S")


def playbook(folder: Path, resource: str, desired: dict[str, Any]) -> Path:
    """Write the shipped playbook with other values."""
    book = read_cases(shipped("playbooks") / "dda.yaml")
    entry = next(entry for entry in book["resources"] if entry["resource"] == resource)
    entry["desired"] |= desired
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(book), encoding="utf-8")
    return path


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a word for a size": ("VmMmio", {"high": "huge"}, "VmMmio.high should be a size in bytes, in steps of 2 MiB"),
    "a fraction of a byte": ("VmMmio", {"high": 1.5}, "VmMmio.high should be a size"),
    "less than nothing": ("VmMmio", {"low": -1}, "VmMmio.low should be a size"),
    "yes for a size": ("VmMmio", {"low": True}, "VmMmio.low should be a size"),
    "a reference that is not closed": ("VmMmio", {"high": "${mmio.high"}, "VmMmio.high should be a size"),
    "an assignment that is none": (
        "AssignableDevice",
        {"assignment": "moon"},
        "AssignableDevice.assignment should be host-enabled",
    ),
    "a word that is none": ("VmActions", {"stop": "explode"}, "VmActions.stop should be one of: turn-off, save"),
    "nothing for yes or no": ("VmMemory", {"dynamic": None}, "VmMemory.dynamic should be true or false"),
    "a decision that is no value": ("VmMmio", {"high": "${mmio.why}"}, "VmMmio.high should be a size"),
}


@pytest.mark.parametrize(("resource", "desired", "says"), WRONG.values(), ids=WRONG)
def test_a_value_that_cannot_be_is_refused_by_name(
    line: Line, resource: str, desired: dict[str, Any], says: str, tmp_path: Path
) -> None:
    facts = line.facts("server2025-role-installed")
    book = playbook(tmp_path, resource, desired)
    said = line("plan", "--facts", facts, "--vm", "llm-01", "--playbook", book)
    assert (said.code, says in said.err) == (2, True), said.err


def test_a_window_that_is_too_small_is_refused_wherever_it_is_written(line: Line, tmp_path: Path) -> None:
    facts, book = line.facts("server2025-role-installed"), playbook(tmp_path, "VmMmio", {"high": 1 << 30})
    said = line("plan", "--facts", facts, "--vm", "llm-01", "--playbook", book)
    assert said.code == 3
    assert "too small" in said.err


def test_one_thing_wanted_twice_in_two_ways_is_refused(line: Line, tmp_path: Path) -> None:
    book = read_cases(shipped("playbooks") / "dda.yaml")
    entry = next(entry for entry in book["resources"] if entry["resource"] == "VmMemory")
    book["resources"].append({**copy.deepcopy(entry), "desired": {"dynamic": True}})
    path = tmp_path / "twice.yaml"
    path.write_text(yaml.safe_dump(book), encoding="utf-8")
    said = line("plan", "--facts", line.facts("server2025-role-installed"), "--vm", "llm-01", "--playbook", path)
    assert (said.code, "dynamic is wanted twice" in said.err) == (2, True)


def edit(
    *, desired: dict[str, Any] | None = None, stages: Callable[[Any], None] = lambda _: None
) -> Callable[[Any], None]:
    def change(plan: Any) -> None:
        for entry in plan["stages"][0]["desired"]:
            if desired and desired.keys() <= entry["desired"].keys():
                entry["desired"] |= desired
        stages(plan)

    return change


def without_steps(plan: Any) -> None:
    plan["stages"][0]["steps"] = []


def without_before(plan: Any) -> None:
    plan["stages"][0]["steps"] = [step for step in plan["stages"][0]["steps"] if step["resource"] != "VmMmio"]


def other_path(plan: Any) -> None:
    plan["request"]["path"] = "wsl2"


EDITED: dict[str, tuple[Callable[[Any], None], int, str]] = {
    "a size that is none": (edit(desired={"high": "huge"}), 2, "VmMmio.high should be a size"),
    "a window that is too small": (edit(desired={"high": 1 << 30}), 3, "too small"),
    "an assignment that is none": (edit(desired={"assignment": "moon"}), 2, "AssignableDevice.assignment should be"),
    "its steps taken out": (edit(stages=without_steps), 4, "is not as planned"),
    "one step taken out": (edit(stages=without_before), 4, "MMIO windows of llm-01: high"),
    "another path": (edit(stages=other_path), 2, "its playbook is for dda, and not for wsl2"),
}


@pytest.mark.costly
@pytest.mark.parametrize(("change", "code", "says"), EDITED.values(), ids=EDITED)
def test_an_edited_plan_does_nothing_that_its_reader_does_not_see(
    line: Line, lab: Lab, change: Callable[[Any], None], code: int, says: str
) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", *L40S, "-o", "plan.json").code == 0
    plan = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    change(plan)
    Path("edited.json").write_text(json.dumps(plan), encoding="utf-8")
    found = lab.hosts["gpu-03"].machine.comparable_state()
    said = line("apply", "edited.json", *CONSENTS)
    assert (said.code, says in said.err) == (code, True), said.err
    assert lab.hosts["gpu-03"].machine.comparable_state() == found


@pytest.mark.costly
def test_what_is_unproven_is_refused_at_the_second_stage_too(line: Line, lab_late: Lab) -> None:
    """The VM is read only once the role is there."""
    words = ("plan", "gpu-01", "--vm", "llm-01", "-o", "plan.json")
    assert line(*words).code == 0
    said = line("apply", "plan.json", "--accept", "vm-stop,restart,force-dismount", "--yes")
    assert said.code == 3
    assert "dda.boots-windows-only" in said.err
    assert line("runs").code == 0


@pytest.mark.costly
def test_what_is_unproven_goes_on_where_the_user_said_so(line: Line, lab_late: Lab) -> None:
    assert line("plan", "gpu-01", "--vm", "llm-01", "--allow-unverified", "-o", "plan.json").code == 0
    assert line("apply", "plan.json", "--accept", "vm-stop,restart,force-dismount", "--yes").code == 0
    assert line("verify", "plan.json").code == 0


@pytest.fixture
def lab_late(tmp_path: Path, line: Line) -> Any:
    """A host without the role, whose VM boots Windows only, which is known only later."""
    delta = {
        "schema": "winhost.host/2",
        "origin": "synthetic",
        "about": "a VM that boots Windows only, seen late",
        "base": "server2025-3gpu",
        "change": {
            "Vm": [
                {
                    "match": {"name": "llm-01"},
                    "set": {"secure_boot": True, "secure_boot_template": "MicrosoftWindows"},
                }
            ]
        },
    }
    for file in (shipped("examples") / "hosts").glob("server2025-3gpu.yaml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "late.yaml"
    path.write_text(yaml.safe_dump(delta), encoding="utf-8")
    with Lab([path], tmp_path, scale=0.001) as running:
        yield running


def test_a_plan_that_goes_on_to_linux_needs_a_key_before_anything_is_changed(
    line: Line, lab: Lab, tmp_path: Path
) -> None:
    book = read_cases(shipped("playbooks") / "dda.yaml")
    file = {"resource": "LinuxFile", "key": {"path": "/etc/wsl.conf"}, "desired": {"text": ""}}
    book["resources"].append({**file, "title": "A file", "why": "So."})
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(book), encoding="utf-8")
    said = line("plan", "gpu-03", "--vm", "llm-01", *L40S, "--playbook", "mine.yaml", "-o", "plan.json", "--details")
    assert (said.code, "A file: So." in said.out) == (0, True), said.err
    fleet = read_cases(lab.fleet_file)
    del fleet["hosts"]["gpu-03"]["ssh"]
    lab.fleet_file.write_text(yaml.safe_dump(fleet), encoding="utf-8")
    said = line("apply", "plan.json", *CONSENTS)
    assert (said.code, "hosts.gpu-03.ssh.key" in said.err) == (2, True), said.err
    assert line("runs", "--json").results == []
