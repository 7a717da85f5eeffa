"""The lab refuses to start without a PowerShell, and leaves nothing behind when it ends."""

import inspect
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.errors import raises
from tests.processes import started
from winhost.cli import run
from winhost.lab.physics.parts import STANDINS
from winhost.lab.powershell import calls  # noqa: F401 - registers the stand-ins
from winhost.lab.powershell.powershell_engine import find_engine


@pytest.mark.parametrize("command", [["demo"], ["lab", "up", "server2025-3gpu"]])
def test_an_engine_that_is_missing_is_wrong_usage(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WINHOST_PWSH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run([*command, "--engine", "pwsh"]) == 2
    said = capsys.readouterr().err
    assert "no PowerShell on this computer" in said
    assert "WINHOST_PWSH" in said


def test_an_engine_that_was_named_and_is_not_there_is_not_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINHOST_PWSH", "no-such-shell")
    with raises("NoEngine") as caught:
        find_engine()
    assert "no-such-shell" in caught.value.what


@pytest.mark.costly
@pytest.mark.skipif(os.name == "nt", reason="there one process cannot press Ctrl-C for another")
@pytest.mark.parametrize("stopped_by", [signal.SIGINT, signal.SIGTERM])
def test_a_lab_that_was_stopped_leaves_nothing(tmp_path: Path, stopped_by: signal.Signals) -> None:
    command = [sys.executable, "-m", "winhost", "lab", "up", "server2025-3gpu", "--tls"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with started(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as lab:
        assert lab.stderr
        while b"Ctrl-C" not in lab.stderr.readline():
            assert any(tmp_path.iterdir())
        lab.send_signal(stopped_by)
        assert lab.stderr.read().decode() == "The simulator has stopped.\n"
    assert lab.returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.costly
def test_the_command_that_a_lab_prints_is_typed_as_it_stands(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "winhost", "lab", "up", "win11-no-gpu", "-o", "my lab"]
    with started(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as lab:
        assert lab.stderr
        while "winhost detect" not in (printed := lab.stderr.readline().decode()):
            assert printed
        lab.terminate()
        lab.stderr.read()
    words = shlex.split(printed)
    assert words == ["winhost", "detect", "*", "--fleet", str(tmp_path / "my lab" / "fleet.yaml")]


@pytest.mark.costly
def test_who_only_looks_whether_a_port_is_open_leaves_no_traceback(tmp_path: Path) -> None:
    own_linux = Path(__file__).parents[3] / "examples/linux/ubuntu-2xh100.json"
    command = [sys.executable, "-m", "winhost", "lab", "up", str(own_linux), "-o", str(tmp_path / "lab")]
    with started(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as lab:
        assert lab.stderr
        while b"Ctrl-C" not in lab.stderr.readline():
            pass
        assert run(["host", "test", "--fleet", str(tmp_path / "lab/fleet.yaml")]) == 0
        lab.terminate()
        assert lab.stderr.read().decode() == "The simulator has stopped.\n"


def test_a_stand_in_passes_parameters_that_its_method_has() -> None:
    for name, stand_in in STANDINS.items():
        assert stand_in.parameters.keys() <= inspect.signature(stand_in.method).parameters.keys(), name
