"""A Linux without a driver gets one with a restart, even if winhost is killed meanwhile."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from tests.cli.process import kill_winhost
from winhost.lab.running_lab import Lab

HOST = Path(__file__).parents[2] / "examples/linux/ubuntu-2xl4-no-driver.json"
YES = ("--yes", "--accept", "restart,containers")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab([HOST], tmp_path, scale=0.001) as running:
        yield running


def read(line: Line, lab: Lab) -> Any:
    lab.linux_hosts["llm-02"].machine.wait_until_ready()
    facts = line("detect", "llm-02", "--json").result["facts"]["resources"]
    return {name: answer for name, answer in facts.items() if name != "LinuxBoot"}


@pytest.mark.costly
def test_it_gets_a_driver_an_engine_and_the_toolkit_over_a_restart(line: Line, lab: Lab) -> None:
    found = read(line, lab)
    assert "linux.driver-comes" in line("assess", "llm-02", "--explain").out
    said = line("plan", "llm-02", "-o", "plan.json")
    assert "ends with a restart" in said.out
    assert line("apply", "plan.json", "--yes").code == 2
    said = line("apply", "plan.json", *YES)
    assert said.code == 0, said.err
    assert "restarting" in said.err
    made = read(line, lab)
    assert {gpu["state"]["driver"] for gpu in made["LinuxGpu"]} == {"nvidia"}
    assert all(gpu["state"]["uuid"] for gpu in made["LinuxGpu"])
    assert made["LinuxGpuDriver"][0]["state"]["kind"] == "open"
    assert made["CdiSpec"][0]["state"]["fresh"] is True
    assert line("verify", "plan.json").code == 0
    assert "Nothing to do" in line("plan", "llm-02").out
    (run,) = line("runs", "--json").results
    assert line("rollback", run["run"], *YES).code == 0
    assert read(line, lab) == found


@pytest.mark.costly
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")
def test_killed_in_its_restart_it_goes_on_and_back(line: Line, lab: Lab) -> None:
    found = read(line, lab)
    line("plan", "llm-02", "-o", "plan.json")
    run = kill_winhost(["apply", "plan.json", *YES], lab.folder, lambda text: '"restarting"' in text)
    assert line("apply", "plan.json", *YES).code == 1, "a run is unfinished"
    said = line("resume", run, *YES)
    assert said.code == 0, said.err
    assert line("verify", "plan.json").code == 0
    assert line("rollback", run, *YES).code == 0
    assert read(line, lab) == found
