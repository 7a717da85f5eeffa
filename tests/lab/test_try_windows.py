"""What the workflow does on a real Windows, done on simulated ones: the script works before it meets one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_never_sleep import host_file
from tests.house.tree import ROOT
from tests.processes import PATIENCE_S
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab

pytestmark = pytest.mark.real

SCRIPT = ROOT / ".github" / "windows" / "try_windows.py"
CHANGED = ("LocalAccount", "AccountRight", "StagedFile", "PortForward", "PowerPlan")


def tried(lab: Lab, kind: str) -> "subprocess.CompletedProcess[str]":
    fleet = lab.folder / f"{kind}.yaml"
    fleet.write_text(
        lab.fleet_file.read_text("utf-8").replace("transport:", f"transport:\n      kind: {kind}"), "utf-8"
    )
    return subprocess.run([sys.executable, SCRIPT, fleet], capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", ["psrp", "winrs"])
def test_every_resource_is_read_and_every_change_put_back(kind: str, tmp_path: Path) -> None:
    with Lab([host_file(tmp_path, "server2025-role-installed")], tmp_path, scale=0.001) as lab:
        (host,) = lab.hosts.values()
        machine = host.machine
        found = machine.comparable_state()
        done = tried(lab, kind)
        machine.wait_until_ready()
        assert machine.comparable_state() == found
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "FAILED" not in done.stdout
    for resource in CHANGED:
        assert f"{resource}: set " in done.stdout
        assert f"{resource}: put back " in done.stdout


def test_what_is_refused_fails(tmp_path: Path) -> None:
    with Lab([find("not-administrator")], tmp_path, scale=0.001) as lab:
        done = tried(lab, "psrp")
    assert done.returncode == 1
    assert "FAILED LocalAccount: set " in done.stdout
