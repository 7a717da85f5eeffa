"""The main job with the real scripts: pypsrp, endpoint, PowerShell, stand-ins, and back to how it was."""

from pathlib import Path

import pytest

from winhost.cli import run
from winhost.lab.hostfile import find
from winhost.lab.running_lab import PWSH, Lab

CONSENTS = ("--accept", "vm-stop,restart,force-dismount", "--yes")


def test_gpus_are_given_to_a_vm_across_a_restart_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "state"))
    plan = str(tmp_path / "plan.json")
    with Lab([find("server2025-3gpu")], tmp_path, scale=0.005, engine=PWSH) as lab:
        monkeypatch.setenv("WINHOST_FLEET", str(lab.fleet_file))
        machine = lab.hosts["gpu-01"].machine
        found = machine.comparable_state()
        assert run(["plan", "gpu-01", "--vm", "llm-01", "-o", plan]) == 0
        assert run(["apply", plan, *CONSENTS]) == 0
        assert machine.boot == 2
        assert len(machine.devices_in_guest("8d1f3c52-6a2e-4b7d-9c41-0e5f7a6b2d10")) == 3
        assert run(["verify", plan]) == 0
        (journal,) = (tmp_path / "state" / "runs").glob("*.jsonl")
        assert run(["rollback", journal.stem, *CONSENTS]) == 0
        machine.wait_until_ready()
        assert machine.comparable_state() == found
        assert sum(endpoint.unencrypted_bodies for endpoint in lab.endpoints.values()) == 0
    assert "rolled back" in capsys.readouterr().out
