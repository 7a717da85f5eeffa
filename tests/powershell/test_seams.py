"""What the lab puts in the place of the agent's own functions runs here as it is, as far as a test machine can.

Each function that a seam replaces is in one of two tables: what it does for real, on files and processes of ours, or
why no test machine can do it. The second is told in docs/lab.md.
"""

import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.powershell.twins import Scripts, scripts
from tests.rows import each_row
from winhost.lab.powershell.calls.cmdlet_process import seams
from winhost.lab.wire.served_host import PipelineError
from winhost.resources.windows.windows_scripts import agent_text

PAGE = (Path(__file__).parents[2] / "docs" / "lab.md").read_text("utf-8")
REPLACED = set(re.findall(r"^function ([\w-]+) \{", seams(), re.MULTILINE))
LABS_OWN = {"Get-WinhostSession"}  # asks the real one, and puts the machine's user into what it tells

# A folder of the test is HERE: `file` holds "ab", `full` a file, `empty` nothing, and `link` leads to `full`.
RUNS = {
    "New-WinhostMutex": ("$m = New-WinhostMutex; $m.WaitOne(1000); $m.ReleaseMutex(); $m.Dispose()", ["True"]),
    "Enter-WinhostMutex": ("$m = Enter-WinhostMutex; $m.GetType().Name; $m.ReleaseMutex(); $m.Dispose()", ["Mutex"]),
    "Read-WinhostBytes": (
        "Read-WinhostBytes 'HERE/file'; $null -eq (Read-WinhostBytes 'HERE/none')",
        ["97 98", "True"],
    ),
    "Test-WinhostLink": (
        "foreach ($each in 'file', 'full', 'link', 'none') { Test-WinhostLink \"HERE/$each\" }",
        ["False", "False", "True", "False"],
    ),
    "Test-WinhostFolder": (
        "foreach ($each in 'file', 'full', 'none') { Test-WinhostFolder \"HERE/$each\" }",
        ["False", "True", "False"],
    ),
    "Open-WinhostAnswerFile": (
        "$a = Open-WinhostAnswerFile 'HERE/a'; $a.CanWrite; $a.Dispose(); [System.IO.File]::Exists('HERE/a')",
        ["True", "False"],
    ),
    "Write-WinhostFile": (
        "foreach ($each in 'file', 'new') { Write-WinhostFile \"HERE/$each\" @(99); Read-WinhostBytes \"HERE/$each\" }"
        "; @([System.IO.Directory]::GetFiles('HERE')).Count",
        ["99", "99", "2"],
    ),
    "Remove-WinhostFile": (
        "foreach ($each in 'file', 'none') { Remove-WinhostFile \"HERE/$each\" }; Read-WinhostLength 'HERE/file'",
        ["0"],
    ),
    "Remove-WinhostFolder": (
        "foreach ($each in 'full', 'none') { Remove-WinhostFolder \"HERE/$each\"; Test-WinhostFolder \"HERE/$each\" }",
        ["False", "False"],
    ),
    "Remove-WinhostEmptyFolder": (
        "foreach ($each in 'full', 'empty', 'link', 'none') { Remove-WinhostEmptyFolder \"HERE/$each\" }; "
        "Test-WinhostFolder 'HERE/full'",
        ["False", "True", "True", "True", "True"],
    ),
    "Test-WinhostEmptyPath": (
        "foreach ($each in 'file', 'full', 'empty', 'none') { Test-WinhostEmptyPath \"HERE/$each\" }",
        ["False", "False", "True", "True"],
    ),
    "Test-WinhostFile": (
        "foreach ($each in 'file', 'full', 'none') { Test-WinhostFile \"HERE/$each\" }",
        ["True", "False", "False"],
    ),
    "Read-WinhostFileTime": ("Read-WinhostFileTime 'HERE/file'", ["1700000000"]),
    "Measure-WinhostFiles": ("Measure-WinhostFiles 'HERE' 'inside'", ["1"]),
    "Read-WinhostHash": (
        "Read-WinhostHash 'HERE/file'",
        ["fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603"],
    ),
    "Copy-WinhostSource": (
        "Copy-WinhostSource 'HERE/file' 'HERE/copy'",
        ["fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603"],
    ),
    "Receive-WinhostSlice": (
        "try { Receive-WinhostSlice 'https://127.0.0.1:1/x' 'HERE/file' '2 a' 9 } catch { 'refused' }; "
        "Read-WinhostLength 'HERE/file'",
        ["refused", "2"],
    ),
    "Move-WinhostFile": ("Move-WinhostFile 'HERE/file' 'HERE/moved'; Read-WinhostBytes 'HERE/moved'", ["97 98"]),
    "Read-WinhostLength": ("Read-WinhostLength 'HERE/file'; Read-WinhostLength 'HERE/none'", ["2", "0"]),
    "Add-WinhostPiece": ("Add-WinhostPiece 'HERE/file' $false @(99); Read-WinhostBytes 'HERE/file'", ["97 98 99"]),
    "Read-WinhostProgramDataFolder": ("(Read-WinhostProgramDataFolder).Length -gt 0", ["True"]),
    "Read-WinhostSystemFolder": ("(Read-WinhostSystemFolder).GetType().Name", ["String"]),
    "Read-WinhostTemporaryFolder": ("(Read-WinhostTemporaryFolder).EndsWith('\\Temp')", ["True"]),
    "Read-WinhostClock": (
        "$one = Read-WinhostClock; $two = Read-WinhostClock; $two -ge $one; $one -gt 0",
        ["True", "True"],
    ),
    "Start-WinhostProgram": (
        "function Read-WinhostSystemFolder { 'HERE' }; $e = Start-WinhostProgram 'netsh.exe' @('a b', 'c\"d') 30; "
        "$e.code; $e.output.Trim(); $e.errors.Trim(); $null -eq (Start-WinhostProgram 'none.exe' @() 30)",
        ["3", "['a b', 'c\"d']", "oops", "True"],
    ),
}
# What it reaches for is of Windows alone, and of nothing that a test machine has.
NEVER = {
    "Open-WinhostLocalMachine": "the registry",
    "Open-WinhostScheduler": "`Schedule.Service`",
    "Add-WinhostFolder": "folder permissions",
    "Write-WinhostFolderRights": "folder permissions",
    "Write-WinhostFileRights": "file permissions",
    "Find-WinhostBlockingAttributes": "attributes of NTFS and ReFS",
    "Read-WinhostOwner": "the owner of a folder",
    "Read-WinhostOwnSid": "who is logged on",
    "Test-WinhostAdministrator": "who is logged on",
    "Read-WinhostGroup": "group members (ADSI)",
    "Read-WinhostFirmwareVariable": "firmware variables and their privilege; on Wine its C# meets errors alone",
    "Write-WinhostFirmwareVariable": "firmware variables and their privilege; on Wine its C# meets errors alone",
    "Read-WinhostVolumeFiles": "a volume without a drive letter; its C# runs on Wine",
    "Copy-WinhostVolumeFile": "a volume without a drive letter; its C# runs on Wine",
    "Remove-WinhostVolumeFile": "a volume without a drive letter; its C# runs on Wine",
    "Read-WinhostVolumeNames": "a volume without a drive letter; its C# runs on Wine",
    "Read-WinhostVolumeHash": "a volume without a drive letter; its C# runs on Wine",
    "Add-WinhostVolumeFolder": "a volume without a drive letter; its C# runs on Wine",
    "Reset-WinhostVolume": "a volume without a drive letter; on Wine its C# meets errors alone",
    "Test-WinhostReadOnlyVolume": "a volume without a drive letter; its C# runs on Wine",
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        yield running


@pytest.fixture
def here(tmp_path: Path) -> Path:
    if os.name == "nt":
        pytest.skip("makes a link and a program without rights for them")
    (tmp_path / "file").write_bytes(b"ab")
    os.utime(tmp_path / "file", (1_700_000_000, 1_700_000_000))
    for folder in ("full", "empty"):
        (tmp_path / folder).mkdir()
    (tmp_path / "full" / "inside").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    return tmp_path


def test_every_function_that_a_seam_replaces_is_in_one_of_the_tables() -> None:
    assert RUNS.keys() & NEVER.keys() == set()
    assert (RUNS.keys() | NEVER.keys()) - {"Enter-WinhostMutex"} == REPLACED - LABS_OWN


def test_what_is_compiled_on_the_host_compiles(engine: Scripts) -> None:
    told = engine.run("Import-WinhostNative; Import-WinhostNative; @([WinhostNative].GetMethods().Name) -join ' '")
    assert {"Read", "Files", "Hash"} <= set(told[0].split())


@pytest.mark.parametrize("name", RUNS)
def test_it_does_for_real_what_the_lab_does_for_it(engine: Scripts, here: Path, name: str) -> None:
    script, said = RUNS[name]
    if name == "Start-WinhostProgram":
        program = here / "netsh.exe"
        program.write_text(
            f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\nsys.exit(print('oops', file=sys.stderr) or 3)\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    engine.run(agent_text())  # over the seams, and over what a case before it put there
    assert engine.run(script.replace("HERE", str(here))) == said


def test_a_program_that_does_not_end_is_ended(engine: Scripts, here: Path) -> None:
    program = here / "netsh.exe"
    program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    engine.run(agent_text())
    engine.run(f"function Read-WinhostSystemFolder {{ '{here}' }}")
    with pytest.raises(PipelineError) as caught:
        engine.run("Invoke-WinhostNative 'netsh.exe' @() 1")
    assert caught.value.error_id == "Winhost.ProgramTimedOut"


def test_a_program_that_is_not_there_or_ends_badly_is_an_error_of_its_caller(engine: Scripts, here: Path) -> None:
    engine.run(agent_text())
    engine.run(f"function Read-WinhostSystemFolder {{ '{here}' }}")
    run = "Invoke-WinhostProgram 'netsh.exe' @() 'Winhost.NetshFailed'"
    with pytest.raises(PipelineError, match=r"This Windows has no netsh\.exe") as caught:
        engine.run(run)
    assert caught.value.error_id == "Winhost.NetshFailed"
    program = here / "netsh.exe"
    program.write_text("#!/bin/sh\necho 'not  so'\nexit 3\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(PipelineError, match=r"netsh\.exe: 3 not so") as caught:
        engine.run(run)
    assert caught.value.error_id == "Winhost.NetshFailed"


@each_row("name", NEVER)
def test_what_never_ran_for_real_is_told(name: str) -> None:
    assert f"| `{name}` | {NEVER[name]} |" in PAGE
