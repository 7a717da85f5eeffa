"""Functions that scripts of bundles are made of, each asked alone: what a whole run rarely comes by."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.powershell.twins import Scripts, scripts

RESTARTED = """
function Read-WinhostSingle {
    [pscustomobject]@{ boot_id = 'second' }
}
function Wait-WinhostReady {
}
function Read-WinhostHost {
    @{ HyperVRole = [pscustomobject]@{ ok = $true; instances = @() } }
}
function Write-WinhostEntry {
    param($Run, [string]$Kind, $Fields)
    ConvertTo-WinhostText $Fields
}
$touched = @{ resource = 'HyperVRole'; key = [pscustomobject]@{ system = 'host' } }
Test-WinhostRestartDue @{ record = @{ restart = $true; boot = 'first'; touched = @($touched) } }
"""
STEP = """
function Show-WinhostLine {
    param([string]$Text)
    $Text
}
function Write-WinhostEntry {
}
function ConvertTo-WinhostDependentEntries {
}
function Find-WinhostState {
    [pscustomobject]@{ state = 'running' }
}
function New-WinhostMark {
    ''
}
function Invoke-WinhostRequest {
    [pscustomobject]@{ ok = $false; unavailable = 'HyperVRole' }
}
$goal = @{ resource = 'VmPower'; key = [pscustomobject]@{ vm = 'x' }; title = 'VM x' }
$step = New-WinhostStep $goal 'desired' @{ before = @{ state = 'running' }; desired = @{ state = 'off' } } @()
try {
    Invoke-WinhostStep @{ record = (New-WinhostRecord); accepted = @(); within = 60 } $step @{}
}
catch {
    "$($_.FullyQualifiedErrorId)"
}
"""
SECRET = "(Read-WinhostStepSecret @{ resource = 'KeyEscrow'; desired = @{ last_group = 'file:PATH' } })"


SWITCH = """
function Show-WinhostLine {
    param([string]$Text)
    $Text.Trim()
}
function Test-WinhostSwitchIsPending {
    $false
}
function Invoke-WinhostRequest {
    ConvertFrom-Json -InputObject 'ANSWER'
}
$step = @{ desired = @{ adapter = 'a' }; before = @{ adapter = $null }; key = [pscustomobject]@{ name = 'lan' } }
Show-WinhostSwitchStep @{} $step @{}
"""
DENIED = {"message": "no", "code": "Denied"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        running.of_bundles()
        yield running


def test_what_is_gone_after_a_restart_has_no_state_in_the_journal(engine: Scripts) -> None:
    """Windows PowerShell would write {} for the nothing that was found: a state without properties."""
    line, due = engine.run(f"& {{ {RESTARTED} }}")
    assert (json.loads(line), due) == ({"left": []}, "False")


def test_an_answer_without_warnings_warns_of_nothing(engine: Scripts) -> None:
    assert engine.run(f"& {{ {STEP} }}") == ["Winhost.StepFailed"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"ok": False, "error": DENIED}, "Which addresses go over to another interface cannot be read: no [Denied]"),
        ({"ok": True, "addresses": {"unknown": DENIED}}, "LAN: its addresses cannot be read: no [Denied]"),
        ({"ok": True, "addresses": []}, None),
        (
            {"ok": True, "addresses": [{"address": "10.0.0.7", "prefix": 24}]},
            "LAN (10.0.0.7/24): what it has goes over to another interface.",
        ),
    ],
)
def test_a_switch_is_made_also_where_addresses_cannot_be_read(engine: Scripts, answer: Any, said: str | None) -> None:
    if answer["ok"]:
        state = {"name": "LAN", "addresses": answer.pop("addresses")}
        answer["instances"] = [{"key": {"adapter": "a"}, "state": state}]
    script = SWITCH.replace("ANSWER", json.dumps(answer))
    told = engine.run(f"& {{ {script} }}")
    assert told == [*([said] if said else []), "This host may be out of reach for a minute."]


def test_a_secret_lies_in_the_home_folder_or_where_powershell_stands(engine: Scripts, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("of here\r\n")
    assert engine.run(f"Set-Location -LiteralPath '{tmp_path}'; {SECRET.replace('PATH', 'key')}") == ["of here"]
    engine.run(f"(Get-PSProvider -PSProvider FileSystem).Home = '{tmp_path}'")
    assert engine.run(SECRET.replace("PATH", "~/key")) == ["of here"]


def test_a_secret_that_cannot_be_read_is_refused_by_its_reference(engine: Scripts, tmp_path: Path) -> None:
    """On a drive that is gone; in a file that is no UTF-8, as Set-Content of Windows PowerShell writes it."""
    (tmp_path / "ansi").write_text("gehört niemandem", "cp1252")
    for path in ("Q:/key", f"{tmp_path}/ansi"):
        said = f'try {{ {SECRET.replace("PATH", path)} }} catch {{ "$($_.FullyQualifiedErrorId)" }}'
        assert engine.run(said) == ["Winhost.SecretUnreadable"], path
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        (tmp_path / "key").write_text("gehört uns\r\n", encoding)
        assert engine.run(SECRET.replace("PATH", f"{tmp_path}/key")) == ["gehört uns"], encoding
