"""`address: localhost` is the Windows that winhost runs on, or in whose WSL it runs; the simulator stands in for it."""

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.connect.local_powershell import local_powershell
from tests.errors import faults, raises
from tests.processes import PATIENCE_S, wait_for
from winhost.connect.this_computer import LocalWire
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab
from winhost.model.errors import Exit
from winhost.model.fleet import Host, WireKind, load_fleet
from winhost.resources.windows.parts import WindowsScripts

REQUEST = '{"calls": []}'
FLEET = "schema: winhost.fleet/1\nhosts:\n  desk:\n    address: localhost\n"


def fleet(text: str = FLEET) -> Host:
    Path("fleet.yaml").write_text(text)
    (host,) = load_fleet(Path("fleet.yaml")).hosts
    assert isinstance(host, Host)
    return host


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH for stand-in programs."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(folder: Path, text: str) -> None:
    (folder / "powershell.exe").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "powershell.exe").chmod(0o755)


@pytest.mark.costly
def test_a_machine_is_read_changed_and_given_back_without_a_network(path: Path, tmp_path: Path, line: Line) -> None:
    with Lab([find("server2025-3gpu")], tmp_path / "lab", scale=0.001) as lab:
        (host,) = lab.hosts.values()
        Path("fleet.yaml").write_text(FLEET)
        with local_powershell(path, host) as calls:
            found = line("detect", "desk", "--json").result["facts"]["resources"]
            assert line("plan", "desk", "--path", "dda", "--vm", "llm-01", "-o", "plan.json").code == 0
            said = line("apply", "plan.json", "--yes", "--accept", "vm-stop,force-dismount,headless,restart")
            assert said.code == 0, said.err
            assert line("verify", "plan.json").code == 0
            (run,) = line("runs", "--json").results
            said = line("rollback", run["run"], "--yes", "--accept", "vm-stop,force-dismount,headless,restart")
            assert said.code == 0, said.err
            assert line("detect", "desk", "--json").result["facts"]["resources"].keys() == found.keys()
        assert {tuple(words[:-1]) for words in calls} == {
            ("-NoLogo", "-NoProfile", "-NonInteractive", "-OutputFormat", "Text", "-EncodedCommand")
        }


def test_it_is_local_where_no_option_of_a_network_is_given(path: Path) -> None:
    assert fleet().transport.kind is WireKind.LOCAL
    assert fleet(FLEET + "    transport: {call_timeout: 20m}\n").transport.kind is WireKind.LOCAL
    assert fleet(FLEET + "    transport: {user: me, password: env:X}\n").transport.kind is WireKind.PSRP
    assert fleet(FLEET.replace("localhost", "127.0.0.1")).transport.kind is WireKind.PSRP


def test_what_contradicts_it_is_said(path: Path) -> None:
    for text, says in (
        (FLEET.replace("localhost", "gpu-01") + "    transport: {kind: local}\n", "should be localhost"),
        (FLEET + "    transport: {kind: local, user: me}\n", "logs on nowhere"),
    ):
        with raises("FileFaults") as caught:
            fleet(text)
        assert says in faults(caught.value)[0]


def test_where_there_is_no_windows_that_is_said(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("PATH", str(path))
    with raises("Unreachable", match=r"there is no powershell\.exe") as caught:
        LocalWire(fleet(), WindowsScripts())
    assert caught.value.exit_code is Exit.UNREACHABLE
    assert "in whose WSL it runs" in (caught.value.meaning or "")


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("cat >&2; exit 1", "RemoteError", "# winhost part: agent/core"),
        ("cat >/dev/null; exit 3", "SessionDropped", "exit code 3"),
        ("cat >/dev/null; echo '!!'", "RemoteError", "no base64"),
        ("exit 0", "RemoteError", "Invoke-Winhost"),
    ],
)
def test_what_it_says_and_how_it_ends_is_told(path: Path, text: str, code: str, says: str) -> None:
    program(path, text)
    with raises(code, match=says):
        LocalWire(fleet(), WindowsScripts()).invoke(REQUEST, PATIENCE_S)


def test_a_call_that_takes_too_long_is_left_to_its_work(path: Path) -> None:
    program(path, "cat >/dev/null; sleep 0.3; touch done; echo e30=")
    with raises("TimedOut"):
        LocalWire(fleet(), WindowsScripts()).invoke(REQUEST, 0.05)
    wait_for(Path("done").exists)


def test_a_program_that_cannot_be_started_is_told(path: Path) -> None:
    wire_of = path / "powershell.exe"
    wire_of.write_text("#!/nowhere/at/all\n")
    wire_of.chmod(0o755)
    with raises("SessionDropped", match="cannot be started"):
        LocalWire(fleet(), WindowsScripts()).invoke(REQUEST, PATIENCE_S)
