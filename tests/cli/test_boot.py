"""winhost boot: the firmware's next start is set and read back, the machine restarts, and the system that came up is
known.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.errors import raises
from winhost.compat.assess import judge
from winhost.connect.patience import Patience
from winhost.engine.boot import INSTALLER, LINUX, WINDOWS, find_entry, wait_for_other_system
from winhost.lab.hostfile import find
from winhost.lab.physics.firmware import FirmwarePart
from winhost.lab.running_lab import Lab
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.resources.windows.boot_entries import BootEntry

CONSENT = ("--accept", "restart", "--console")


def entry(number: str, description: str, path: str | None) -> BootEntry:
    return BootEntry(number, description, True, None, path)


WINDOWS_ENTRY = entry("0000", "Windows-Start-Manager", "\\EFI\\Microsoft\\Boot\\bootmgfw.efi")
UBUNTU_ENTRY = entry("0003", "ubuntu", "\\EFI\\UBUNTU\\shimx64.efi")
INSTALLER_ENTRY = entry("0010", "winhost-installer", "\\EFI\\boot\\bootx64.efi")
UBUNTU_PATH = "\\EFI\\ubuntu\\shimx64.efi"
EVERY = (WINDOWS_ENTRY, UBUNTU_ENTRY, INSTALLER_ENTRY, entry("0004", "UEFI PXE", None))


NEEDS_A_COMPILER = ("current", "next", "order", "entries")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab([find("win11-free-space"), find("win11-pro-1gpu")], tmp_path, scale=0.001) as running:
        yield running


@pytest.mark.parametrize(
    ("system", "found"), [(WINDOWS, WINDOWS_ENTRY), (LINUX, UBUNTU_ENTRY), (INSTALLER, INSTALLER_ENTRY)]
)
def test_a_system_is_known_by_what_starts_it(system: str, found: BootEntry) -> None:
    assert find_entry("here", system, EVERY) == found


def test_two_of_one_system_are_not_guessed_between() -> None:
    with raises("NotSwitched"):
        find_entry("here", LINUX, (*EVERY, entry("0007", "ubuntu", "\\EFI\\ubuntu\\grubx64.efi")))


def test_a_whole_reading_leaves_out_what_takes_a_compiler_and_nobody_misses_it(line: Line, lab: Lab) -> None:
    said = line("detect", "desk-05", "-o", "facts")
    assert (said.code, "FirmwareBoot" in said.out) == (0, False), said.out
    facts = json.loads(Path("facts/desk-05.json").read_text("utf-8"))["resources"]
    (boot,), (running,), (secure,) = (facts[name] for name in ("FirmwareBoot", "RunningSystem", "SecureBoot"))
    assert boot["state"]["kind"] == "uefi"
    assert {boot["state"][name]["unknown"]["code"] for name in NEEDS_A_COMPILER} == {"Winhost.NotRead"}
    assert running["state"] == {"system": "windows", "linux": UBUNTU_PATH, "installer": None}
    assert (secure["state"]["state"], "unknown" in json.dumps(secure)) == ("on", False)
    known = HostFacts(read_facts(Path("facts/desk-05.json")))
    assert [each for each in judge(known, "dual-boot").every_reason if each.code == "dual-boot.unknown"] == []


def test_linux_is_started_once_and_windows_stays_first(line: Line, lab: Lab) -> None:
    said = line("boot", "desk-05", "linux", *CONSENT, "--json")
    assert said.code == 0, said.err
    assert said.result["entry"]["entry"] == "0003"
    assert (said.result["windows_first"], said.result["restarted"]) == (True, True)
    machine = lab.hosts["desk-05"].machine
    machine.wait_until_ready()
    assert machine.part(FirmwarePart).boot["order"] == ["0000", "0003"]
    assert machine.part(FirmwarePart).boot["next"] is None, "the start has used it up"


@pytest.mark.costly
def test_windows_that_comes_up_again_is_told(line: Line, lab: Lab) -> None:
    """The lab's machine has no Linux, so its firmware starts Windows, like a firmware that ignores BootNext."""
    fleet = Path("fleet.yaml")
    before, name, after = fleet.read_text("utf-8").partition('"desk-01":')
    # Where nobody listens: a Linux that does not come up.
    fleet.write_text(before + '"desk-05-linux":' + re.sub("port: [0-9]+", "port: 9", after, count=1), "utf-8")
    assert name
    said = line("boot", "desk-05", "linux", *CONSENT, "--other", "desk-05-linux", "--restart-deadline", "60s")
    assert said.code == 1
    assert "windows came up again" in said.out
    assert "boot menu" in said.out


def test_the_other_system_that_answers_is_up_and_its_order_is_read_again(line: Line, lab: Lab) -> None:
    """desk-01 stands in for the other system: the test needs only that it answers, and its boot order."""
    firmware = lab.hosts["desk-01"].machine.part(FirmwarePart)
    firmware.boot["entries"] = [{**firmware.boot["entries"][0], "path": "\\EFI\\ubuntu\\shimx64.efi"}]
    said = line("boot", "desk-05", "linux", *CONSENT, "--other", "desk-01")
    assert said.code == 0, said.err
    assert "linux is up" in said.out
    assert "Windows is not first in the boot order" in said.out


def test_nothing_restarts_without_consent_and_a_word_on_the_console(line: Line, lab: Lab) -> None:
    for words in ((), ("--console",), ("--accept", "restart")):
        assert line("boot", "desk-05", "linux", *words).code == 2
    assert lab.hosts["desk-05"].machine.boot == 1


def test_a_host_without_such_an_entry_is_left_as_it_is(line: Line, lab: Lab) -> None:
    said = line("boot", "desk-01", "linux", *CONSENT)
    assert said.code == 1
    assert "0 boot entries start linux" in said.err
    assert lab.hosts["desk-01"].machine.boot == 1


def test_who_came_up_is_seen() -> None:
    quick = Patience(deadline=0.2, first=0.01, longest=0.02)
    assert wait_for_other_system(lambda: None, lambda: True, quick) is True
    assert wait_for_other_system(lambda: "another", lambda: False, quick) is False
    assert wait_for_other_system(lambda: None, lambda: False, quick) is None
