"""A Linux host on the command line: commands that work as on a Windows host, and commands that are refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from winhost.lab.hostfile import find
from winhost.lab.physics.ssh_keys import public_line
from winhost.lab.running_lab import Lab

HOST = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
TOOLKIT = "nvidia-container-toolkit"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab with llm-01 and a Windows host; its fleet.yaml is in the current folder."""
    with Lab([HOST, find("win11-no-gpu")], tmp_path, scale=0.001) as running:
        yield running


def read(line: Line) -> Any:
    return line("detect", "llm-01", "--json").result["facts"]["resources"]


def test_it_is_read_with_what_it_has(line: Line, lab: Lab) -> None:
    said = line("detect", "llm-01", "-o", "facts")
    assert said.code == 0, said.err
    for part in ("(simulated)", "on metal, 256 GiB memory", "580.95.05 (open)", "NVIDIA H100 PCIe", "nvme1n1", "sshd"):
        assert part in said.out, part
    assert "Could not be read" not in said.out
    facts = json.loads((line.folder / "facts/llm-01.json").read_text())
    assert facts["origin"] == "synthetic"
    assert "OperatingSystem" not in facts["resources"]


@pytest.mark.costly
def test_it_is_planned_applied_verified_and_given_back(line: Line, lab: Lab) -> None:
    found = read(line)
    assert line("plan", "llm-01", "-o", "plan.json").code == 0
    assert line("apply", "plan.json", "--check").code == 0
    assert line("apply", "plan.json", "--yes").code == 0
    (linux,) = lab.linux_hosts.values()
    assert linux.linux.apt.packages[TOOLKIT].held
    assert line("verify", "plan.json").code == 0
    assert "nothing to do" in line("apply", "plan.json", "--yes").out
    linux.linux.apt.packages[TOOLKIT].held = False
    assert line("verify", "plan.json").code == 4
    linux.linux.apt.packages[TOOLKIT].held = True
    (run,) = line("runs", "--json").results
    assert line("rollback", run["run"], "--yes").code == 0
    assert TOOLKIT not in linux.linux.apt.packages
    assert read(line) == found


def test_a_plan_of_another_state_is_refused(line: Line, lab: Lab) -> None:
    line("plan", "llm-01", "-o", "plan.json")
    (linux,) = lab.linux_hosts.values()
    lines = "# Written by winhost.\nTypes: deb\nURIs: https://x\nSuites: /\n"
    linux.linux.disk.write("/etc/apt/sources.list.d/winhost-nvidia-container-toolkit.sources", lines)
    assert line("apply", "plan.json", "--yes").code == 4


def test_another_machine_of_the_same_name_is_refused(line: Line, lab: Lab) -> None:
    line("plan", "llm-01", "-o", "plan.json")
    plan = json.loads((line.folder / "plan.json").read_text())
    (line.folder / "plan.json").write_text(json.dumps({**plan, "machine_id": "0" * 32}))
    said = line("apply", "plan.json", "--yes")
    assert said.code != 0
    assert "plan" in said.err


def test_a_run_that_was_cut_goes_on(line: Line, lab: Lab) -> None:
    line("plan", "llm-01", "-o", "plan.json")
    lab.ssh_endpoints["llm-01"].answers_to_lose = 1
    said = line("apply", "plan.json", "--yes")
    assert said.code == 0, said.err


def test_another_host_key_is_refused_before_anything_is_asked(line: Line, lab: Lab) -> None:
    fleet = lab.fleet_file.read_text()
    (linux,) = lab.linux_hosts.values()
    lab.fleet_file.write_text(fleet.replace(linux.host_key, public_line(b"another".ljust(32, b"-"))))
    said = line("detect", "llm-01")
    assert said.code == 5
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in said.err


def test_both_kinds_are_read_and_assessed_together(line: Line, lab: Lab) -> None:
    said = line("detect", "*", "-o", "facts")
    assert said.code == 0, said.err
    rows = line("assess", "facts").out
    assert "linux" in rows
    assert "llm-01" in rows


REFUSED = {
    "a path of Windows": ("plan", "llm-01", "--path", "wsl2"),
    "an evaluation of such a path": ("assess", "llm-01", "--path", "dda"),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_what_it_has_not_is_refused_in_a_sentence(line: Line, lab: Lab, words: tuple[str, ...]) -> None:
    said = line(*words)
    assert said.code == 2
    assert "llm-01 is a Linux of its own" in said.err


def test_a_bundle_of_it_has_what_runs_there_and_nothing_to_sign(line: Line, lab: Lab) -> None:
    line("plan", "llm-01", "-o", "plan.json")
    said = line("bundle", "plan.json", "-o", "bundle", "--sign-with", "true")
    assert said.code == 2
    assert "no PowerShell scripts to sign" in said.err
    assert line("bundle", "plan.json", "-o", "bundle").code == 0
    assert {path.name for path in (line.folder / "bundle").iterdir()} == {"README.md", "SHA256SUMS", "linux"}


def test_a_report_has_both_kinds_of_hosts(line: Line, lab: Lab) -> None:
    said = line("report", "*", "-o", "report.html")
    assert said.code == 0, said.err
    assert "2 hosts" in said.out
    page = (line.folder / "report.html").read_text()
    for part in ("llm-01", "desk-09", "What a plan would do", "NVIDIA Container Toolkit", "0000:65:00.0"):
        assert part in page, part
    assert line("report", "llm-01", "-o", "pages/", "--brief").code == 0
    assert {path.name for path in (line.folder / "pages").iterdir()} == {"host-llm-01.html", "index.html"}


def test_a_windows_host_has_no_path_linux(line: Line, lab: Lab) -> None:
    said = line("plan", "desk-09", "--path", "linux")
    assert said.code == 2
    assert "desk-09 is a Windows host" in said.err


def test_its_facts_make_a_replica(line: Line, lab: Lab, tmp_path: Path) -> None:
    line("detect", "llm-01", "-o", "facts")
    found = read(line)
    with Lab([line.folder / "facts/llm-01.json"], tmp_path / "other", scale=0.001):
        shown = line("detect", "llm-01", "--fleet", tmp_path / "other", "--json").result["facts"]["resources"]
    # Each lab lets itself in.
    own = next(record for record in shown["SshKey"] if record not in found["SshKey"])
    shown["SshKey"].remove(own)
    assert own["state"]["comment"] == "lab"
    assert shown == found


def test_an_old_toolkit_is_refused(line: Line, lab: Lab) -> None:
    said = line("plan", "llm-01", "--path", "linux", "--set", "toolkit=1.17.8-1")
    assert said.code == 2
    assert "1.18.0 or later" in said.err
