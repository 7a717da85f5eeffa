"""A host that sleeps takes its endpoint along: the rule that says so, and the setting that keeps it awake."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.cli.conftest import Line
from winhost.lab.hostfile import find
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.running_lab import Lab

BALANCED, FAST = "381b4222-f694-41f0-9685-ff5bb260df2e", "8c5e7fda-e8bf-4a96-9a85-a6e23a8c635c"
HOST = """\
schema: winhost.host/2
origin: synthetic
about: A host whose power plan lets it sleep
base: {base}
change:
  PowerPlan:
    - add:
        key: {{scheme: {balanced}}}
        state: {{name: Balanced, active: true, standby: 1800, hibernate: 10800, modern_standby: {modern}}}
    - add:
        key: {{scheme: {fast}}}
        state: {{name: High performance, active: false, standby: 0, hibernate: 0, modern_standby: {modern}}}
"""
NAMES = {"server2025-role-installed": "gpu-03", "win11-pro-1gpu": "desk-01"}
PATHS = {"server2025-role-installed": ("--path", "dda", "--vm", "llm-01"), "win11-pro-1gpu": ("--path", "wsl2")}
ACCEPT = ("--accept", "restart,network,vm-stop,force-dismount", "--yes")


def host_file(folder: Path, base: str, modern: bool = False) -> Path:
    path = folder / f"{base}-that-sleeps.yaml"
    path.write_text(HOST.format(base=base, balanced=BALANCED, fast=FAST, modern=str(modern).lower()))
    return path


@pytest.fixture(params=NAMES)
def sleepy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Lab]]:
    """A lab with one host that sleeps, by the file that it is based on."""
    with Lab([host_file(tmp_path, request.param)], tmp_path, scale=0.001) as running:
        yield request.param, running


def machine_of(lab: Lab) -> Machine:
    (host,) = lab.hosts.values()
    return host.machine


def plans(lab: Lab) -> dict[str, tuple[Any, Any, Any]]:
    return {
        record.key["scheme"]: (record.state["active"], record.state["standby"], record.state["hibernate"])
        for record in machine_of(lab).instances("PowerPlan")
    }


AS_FOUND = {BALANCED: (True, 1800, 10800), FAST: (False, 0, 0)}


@pytest.mark.costly
def test_a_host_that_sleeps_is_told_to_and_left_as_it_is(sleepy: tuple[str, Lab], line: Line) -> None:
    base, lab = sleepy
    name = NAMES[base]
    path = PATHS[base][1]
    said = line("assess", name, "--path", path, "-o", "wide")
    assert f"[{path}.host-sleeps]" in said.out
    assert "sleeps after 30 minutes and hibernates after 180 minutes (power plan Balanced)" in " ".join(
        said.out.split()
    )
    assert line("plan", name, *PATHS[base], "-o", "plans").code == 0
    steps = json.loads(Path("plans").read_text())["stages"][0]["steps"]
    assert "PowerPlan" not in {step["resource"] for step in steps}
    assert plans(lab) == AS_FOUND


@pytest.mark.costly
def test_it_is_kept_awake_and_sleeps_again_as_it_did(sleepy: tuple[str, Lab], line: Line) -> None:
    base, lab = sleepy
    name = NAMES[base]
    said = line("plan", name, *PATHS[base], "--set", "never_sleep=true", "-o", "plans")
    assert said.code == 0, said.err
    assert "Sleep of the host on AC power (Balanced)" in said.out
    assert "host-sleeps" not in said.out
    assert line("apply", "plans", *ACCEPT).code == 0
    assert plans(lab) == {BALANCED: (True, 0, 0), FAST: (False, 0, 0)}
    machine = machine_of(lab)
    machine.programs["powercfg.exe"](["/setactive", FAST])  # somebody takes another plan since
    (journal,) = (line.folder / "state" / "runs").glob("*.jsonl")
    assert line("rollback", journal.stem, *ACCEPT).code == 0
    assert plans(lab) == {BALANCED: (False, 1800, 10800), FAST: (True, 0, 0)}


@pytest.mark.costly
def test_what_somebody_set_since_stays(sleepy: tuple[str, Lab], line: Line) -> None:
    base, lab = sleepy
    name = NAMES[base]
    assert line("plan", name, *PATHS[base], "--set", "never_sleep=true", "-o", "plans").code == 0
    assert line("apply", "plans", *ACCEPT).code == 0
    machine = machine_of(lab)
    machine.changes["PowerPlan"](SetCall("PowerPlan", {"scheme": BALANCED}, {"standby": 60}, frozenset(), 60, Event()))
    assert line("verify", "plans").code == 4
    (journal,) = (line.folder / "state" / "runs").glob("*.jsonl")
    line("rollback", journal.stem, *ACCEPT)
    assert plans(lab)[BALANCED] == (True, 60, 10800)


@pytest.mark.costly
@pytest.mark.parametrize("base", NAMES)
def test_modern_standby_is_told_and_a_plan_says_that_it_is_unverified(base: str, tmp_path: Path, line: Line) -> None:
    name = NAMES[base]
    path = PATHS[base][1]
    with Lab([host_file(tmp_path, base, modern=True)], tmp_path, scale=0.001):
        assert f"[{path}.modern-standby]" in line("assess", name, "--path", path, "-o", "wide").out
        planned = line("plan", name, *PATHS[base], "--set", "never_sleep=true")
    assert planned.code == 0, planned.err
    assert f"[{path}.modern-standby]" in planned.out
    assert re.search("unverified: .*This computer has Modern Standby", planned.out)


@pytest.mark.parametrize("base", NAMES)
def test_a_simulated_host_has_a_power_plan_as_each_windows_has(base: str, tmp_path: Path, line: Line) -> None:
    with Lab([find(base)], tmp_path, scale=0.001) as lab:
        assert plans(lab) == {BALANCED: (True, 0, 0)}
        said = line("plan", NAMES[base], *PATHS[base], "--set", "never_sleep=true")
    assert said.code == 0, said.err


@pytest.mark.parametrize("base", NAMES)
def test_a_host_whose_power_plans_nobody_read_cannot_be_kept_awake(base: str, line: Line) -> None:
    facts = line.facts(base)
    document = json.loads(facts.read_text())
    document["resources"]["PowerPlan"] = {"unknown": {"category": "NotImported", "message": "not in what was imported"}}
    facts.write_text(json.dumps(document))
    said = line("plan", "--facts", facts, *PATHS[base], "--set", "never_sleep=true")
    assert said.code != 0
    assert "power plans" in said.err


def test_the_setting_is_true_or_false(line: Line) -> None:
    said = line("plan", "--facts", line.facts("win11-pro-1gpu"), "--path", "wsl2", "--set", "never_sleep=maybe")
    assert said.code == 2
    assert "never_sleep" in said.err
