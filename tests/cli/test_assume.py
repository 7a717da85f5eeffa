"""Tests of --assume: facts that the user states on the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from winhost.lab.running_lab import Lab

H200 = Path(__file__).parents[1] / "data/imports/recorded/nvidia-smi-2xH200-linux.xml"
UNREAD = {"unknown": {"category": "AccessDenied", "message": "Access is denied."}}
WINDOWS = ("caption", "product_type", "sku", "edition_id", "installation_type", "product_options", "build")


def without_windows(path: Path) -> Path:
    """Return the facts of a host without the facts that identify its Windows."""
    return edited(path, lambda state: state.update(dict.fromkeys(WINDOWS, UNREAD)))


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document["resources"]["OperatingSystem"][0]["state"])
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.fixture
def h200(line: Line) -> Path:
    line("facts", "import", H200, "--host", "h200", "-o", "h200.json")
    return Path("h200.json")


def test_what_is_stated_decides_and_says_so(line: Line, h200: Path) -> None:
    said = line("assess", "--facts", h200, "--assume", "os=win11-pro,ram=512GiB", "--json")
    assert said.result["supposed"]["assumed"] == ["os=win11-pro", "ram=512GiB"]
    (dda,) = (path for path in said.result["options"] if path["path"] == "dda")
    assert (dda["verdict"], dda["stated"]) == ("unsupported", ["os=win11-pro"])
    shown = line("assess", "--facts", h200, "--assume", "os=win11-pro", "--assume", "ram=512GiB").out
    assert "Recommended: wsl2/" in shown
    assert "Stated, not read: os=win11-pro, ram=512GiB." in shown
    assert "[dda.client-sku] (stated: os=win11-pro)" in " ".join(shown.split())


def test_a_report_marks_it_too(line: Line, h200: Path) -> None:
    assert line("report", h200, "--assume", "os=win11-pro", "-o", "r.html").code == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert "Stated, not read: os=win11-pro." in page
    assert "(stated: os=win11-pro)" in page


@pytest.mark.parametrize("command", [("assess", "--facts"), ("report", "-o", "r.html"), ("plan", "--facts")])
def test_what_cannot_be_stated_is_wrong_usage(line: Line, h200: Path, command: tuple[str, ...]) -> None:
    said = line(*command, h200, "--assume", "os=windows")
    assert said.code == 2
    assert "'windows' is none of: win10-home" in said.err


def test_what_the_host_says_is_not_overridden(line: Line) -> None:
    said = line("assess", "--facts", line.facts("win11-pro-1gpu"), "--assume", "ram=1GiB")
    assert said.code == 2
    assert "ram=1GiB is stated, but desk-01 itself says Memory.total" in said.err


def test_a_plan_from_facts_says_what_it_was_told(line: Line) -> None:
    facts = edited(line.facts("server2025-role-installed"), lambda state: state.update(build=UNREAD))
    assert line("plan", "--facts", facts, "--vm", "llm-01").code == 3
    said = line("plan", "--facts", facts, "--vm", "llm-01", "--assume", "build=26100", "-o", "plan.json")
    assert said.code == 0
    assert "stated, and not read: build=26100. apply reads the host itself" in said.out
    assert json.loads(Path("plan.json").read_text())["stated"] == ["build=26100"]


def test_a_host_is_asked_and_not_told(line: Line, lab: Lab) -> None:
    said = line("plan", "gpu-03", "--vm", "llm-01", "--assume", "build=26100")
    assert said.code == 2
    assert "is for --facts or facts files" in said.err


def test_apply_reads_the_host_and_takes_nothing_that_was_stated(line: Line, lab: Lab) -> None:
    facts = without_windows(line.facts("win11-pro-1gpu"))
    made = line(
        *("plan", "--facts", facts, "--path", "dda", "--vm", "ubuntu", "--allow-unverified"),
        *("--assume", "os=server2025-datacenter", "-o", "plan.json"),
    )
    assert made.code == 0, made.err
    found = lab.hosts["desk-01"].machine.comparable_state()
    said = line("apply", "plan.json", "--yes", "--accept", "restart,vm-stop,headless,force-dismount")
    assert said.code == 3
    assert "dda.client-sku" in said.err
    assert lab.hosts["desk-01"].machine.comparable_state() == found
