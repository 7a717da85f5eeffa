"""WSL 2 with the real scripts, to a Linux and back; the password that they make is seen by nobody."""

from pathlib import Path

import pytest

from tests.secrets_kept import shown_in, watched
from winhost.cli import run
from winhost.lab.hostfile import find
from winhost.lab.running_lab import PWSH, Lab

CONSENTS = ("--accept", "restart,network,vm-stop,data", "--yes")


def test_a_windows_becomes_a_linux_and_the_password_of_its_account_is_seen_by_nobody(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "state"))
    plan = str(tmp_path / "plan.json")
    with Lab([find("win11-hyperv-off-vbs-on")], tmp_path, scale=0.002, engine=PWSH) as lab:
        monkeypatch.setenv("WINHOST_FLEET", str(lab.fleet_file))
        machine = lab.hosts["desk-05"].machine
        secrets, found = watched(machine, monkeypatch), machine.comparable_state()
        words = ("--path", "wsl2", "--set", f"access.key={lab.public_key}")
        assert run(["plan", "desk-05", *words, "-o", plan]) == 0
        assert run(["apply", plan, *CONSENTS, "--jsonl"]) == 0
        assert machine.accounts.tasks["jobs-winhost"].secret == secrets[-1]
        kept = [repr(machine.files), *(f"{task.program} {task.arguments}" for task in machine.accounts.tasks.values())]
        (journal,) = (tmp_path / "state" / "runs").glob("*.jsonl")
        assert run(["rollback", journal.stem, *CONSENTS]) == 0
        machine.wait_until_ready()
        assert machine.comparable_state() == found
    assert len(secrets) == 2
    out, err = capsys.readouterr()
    written = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file()]
    assert shown_in("\n".join([out, err, caplog.text, *kept, *written]), secrets) == []
