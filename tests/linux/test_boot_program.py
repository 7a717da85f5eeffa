"""The program of `winhost boot` on a Linux next to Windows, with files as the firmware's variables."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S
from winhost.agent import linux_boot
from winhost.lab.physics.firmware import encode_load_option, encode_order
from winhost.resources.linux.linux_scripts import boot_text

ESP = "5f1b7c02-0001-4a6b-8c9d-0e1f2a3b4c5d"
WINDOWS = {"entry": "0000", "description": "Windows-Start-Manager", "active": True, "partition": ESP}
WINDOWS |= {"path": "\\EFI\\Microsoft\\Boot\\bootmgfw.efi"}
UBUNTU = {"entry": "0003", "description": "ubuntu", "active": True, "partition": ESP}
UBUNTU |= {"path": "\\EFI\\ubuntu\\shimx64.efi"}
ATTRIBUTES = b"\7\0\0\0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return with_entries(tmp_path, WINDOWS, UBUNTU)


def with_entries(root: Path, *entries: Mapping[str, Any]) -> Path:
    folder = root / "sys/firmware/efi/efivars"
    folder.mkdir(parents=True)
    order = encode_order(entry["entry"] for entry in entries)
    variables = {"BootOrder": order, "BootCurrent": encode_order(["0003"])}
    variables |= {f"Boot{entry['entry']}": encode_load_option(entry) for entry in entries}
    for name, value in variables.items():
        (folder / f"{name}-{linux_boot.GLOBAL}").write_bytes(ATTRIBUTES + value)
    (root / "proc/sys/kernel/random").mkdir(parents=True)
    (root / "proc/sys/kernel/random/boot_id").write_text("a-boot\n")
    return root


@pytest.fixture(autouse=True)
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that records its arguments."""
    log = tmp_path / "asked"
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return log


def test_it_tells_what_the_firmware_starts(root: Path) -> None:
    told = linux_boot.answer_request({}, root)
    assert (told["current"], told["next"], told["order"], told["timer"]) == ("0003", None, ["0000", "0003"], None)
    assert told["entries"] == [WINDOWS, UBUNTU]


def test_windows_is_started_once_by_its_loader_whatever_its_name(root: Path) -> None:
    told = linux_boot.answer_request({"to": "windows"}, root)
    assert (told["next"], told["order"]) == ("0000", ["0000", "0003"])
    content = (root / f"sys/firmware/efi/efivars/BootNext-{linux_boot.GLOBAL}").read_bytes()
    assert content == ATTRIBUTES + b"\0\0"


def test_this_linux_is_started_once_more_by_the_entry_that_started_it(root: Path) -> None:
    told = linux_boot.answer_request({"to": "linux"}, root)
    assert (told["next"], told["order"]) == ("0003", ["0000", "0003"])


@pytest.mark.parametrize("current", [encode_order(["0009"]), b""])
def test_a_linux_that_no_entry_started_is_not_started_again(root: Path, current: bytes) -> None:
    (root / f"sys/firmware/efi/efivars/BootCurrent-{linux_boot.GLOBAL}").write_bytes(ATTRIBUTES + current)
    with pytest.raises(linux_boot.CannotSwitch, match="not in the boot order"):
        linux_boot.answer_request({"to": "linux"}, root)
    assert linux_boot.answer_request({}, root)["next"] is None


@pytest.mark.parametrize("entries", [(UBUNTU,), (WINDOWS, {**WINDOWS, "entry": "0007"}, UBUNTU)])
def test_without_one_windows_nothing_is_set(tmp_path: Path, entries: tuple[Mapping[str, Any], ...]) -> None:
    root = with_entries(tmp_path / "other", *entries)
    with pytest.raises(linux_boot.CannotSwitch, match="boot entries start Windows"):
        linux_boot.answer_request({"to": "windows"}, root)
    with pytest.raises(linux_boot.CannotSwitch):
        linux_boot.answer_request({"timer": 30}, root)
    assert not (root / linux_boot.UNITS).exists()
    assert linux_boot.answer_request({}, root)["next"] is None


def test_firmware_that_forgets_is_found_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: len(data))
    with pytest.raises(linux_boot.CannotSwitch, match="BootNext was set to 0000, and is None"):
        linux_boot.answer_request({"to": "windows"}, root)


def test_the_timer_comes_with_a_program_of_its_own_and_goes(root: Path, systemctl: Path) -> None:
    assert linux_boot.answer_request({"timer": 30}, root, boot_text())["timer"] == 30
    assert systemctl.read_text().splitlines() == ["daemon-reload", "enable --now winhost-return.timer"]
    assert (
        "ConditionPathExists=!/run/winhost/heartbeat"
        in (root / linux_boot.UNITS / "winhost-return.service").read_text()
    )
    # The program that the timer runs, on this machine's own root, where there is no Windows to start.
    script = (root / linux_boot.RETURN).read_text()
    assert script.endswith("return_to_windows()\n")
    compile(script, "return_to_windows.py", "exec")
    assert linux_boot.answer_request({"timer": None}, root)["timer"] is None
    assert not list((root / linux_boot.UNITS).iterdir())


def test_who_comes_in_time_keeps_linux(root: Path) -> None:
    linux_boot.answer_request({"heartbeat": True}, root)
    assert (root / linux_boot.HEARTBEAT).exists()


def test_what_the_timer_runs_starts_windows(root: Path, systemctl: Path) -> None:
    linux_boot.return_to_windows(root)
    assert linux_boot.answer_request({}, root)["next"] == "0000"
    assert systemctl.read_text() == "reboot\n"


def test_variables_that_nobody_could_mean_are_read_without_a_fault(root: Path) -> None:
    folder = root / "sys/firmware/efi/efivars"
    for content in (b"", b"\1", b"\1\0\0\0\xff\xff", ATTRIBUTES + encode_load_option(UBUNTU)[:40], os.urandom(300)):
        (folder / f"Boot0003-{linux_boot.GLOBAL}").write_bytes(ATTRIBUTES + content)
        assert [each["entry"] for each in linux_boot.answer_request({}, root)["entries"]] == ["0000", "0003"]


def test_as_it_is_sent_it_answers_a_line_with_a_line() -> None:
    start = "import json,sys;PROGRAM=json.loads(sys.stdin.buffer.readline());exec(compile(PROGRAM,'winhost','exec'))"
    given = json.dumps(boot_text()) + "\n" + json.dumps({"to": None}) + "\n"
    ended = subprocess.run(
        [sys.executable, "-I", "-c", start], input=given.encode(), capture_output=True, timeout=PATIENCE_S
    )
    (answer,) = json.loads(ended.stdout)["answers"]
    assert answer["ok"] or answer["error"]["message"]  # on a machine without UEFI it says so
