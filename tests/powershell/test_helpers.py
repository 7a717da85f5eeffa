"""The agent's helpers for bytes and command lines, in a real PowerShell without stand-ins."""

import json
import os
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.powershell.twins import Scripts, hosts, of, scripts
from tests.rows import each_row
from winhost.core.answers import Record
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.wire.served_host import PipelineError
from winhost.resources.windows.windows_scripts import agent_text

CONTENT = bytes(range(256)) * 5000
ARGUMENTS = st.lists(st.text(alphabet='ab\\" \t-/.:{}', max_size=12), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        running.run(agent_text())  # over the stand-ins for its helpers
        running.run("function Write-WinhostRegistry { param($Path, $Name, $Value) }")  # which only Windows has
        yield running


def receive(engine: Scripts, source: Path | str, desired: str, target: Path) -> None:
    engine.run(f"Receive-WinhostFile @{{ source = '{source}'; sha256 = '{desired}'; name = 'a.msi' }} '{target}'")


@settings(max_examples=150)
@given(ARGUMENTS)
def test_a_program_gets_each_argument_as_it_was_given(engine: Scripts, arguments: list[str]) -> None:
    listed = ", ".join(f"'{argument}'" for argument in arguments)
    # What Python makes for the same parser, Microsoft's "Parsing C command-line arguments".
    assert engine.run(f"Join-WinhostArguments @({listed})") == [subprocess.list2cmdline(arguments)]


def test_what_has_the_right_sum_gets_its_name(engine: Scripts, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(CONTENT)
    target.write_bytes(b"what stood there before")
    receive(engine, source, sha256(CONTENT).hexdigest(), target)
    assert target.read_bytes() == CONTENT
    assert engine.run(f"Read-WinhostHash '{target}'") == [sha256(CONTENT).hexdigest()]
    assert sorted(tmp_path.iterdir()) == [source, target]


def test_what_has_another_sum_leaves_nothing_behind(engine: Scripts, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(CONTENT[1:])
    with pytest.raises(PipelineError) as caught:
        receive(engine, source, sha256(CONTENT).hexdigest(), target)
    assert caught.value.error_id == "Winhost.WrongHash"
    assert sha256(CONTENT[1:]).hexdigest() in str(caught.value)
    assert sha256(CONTENT).hexdigest() in str(caught.value)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("source", ["/not/there", "https://127.0.0.1:9/wsl.msi"])
def test_what_cannot_be_fetched_leaves_what_was_there(engine: Scripts, tmp_path: Path, source: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(CONTENT)
    with pytest.raises(PipelineError) as caught:
        receive(engine, source, sha256(CONTENT).hexdigest(), target)
    assert caught.value.error_id == "Winhost.NotFetched"
    assert list(tmp_path.iterdir()) == [target]


def test_pieces_make_the_file_and_one_at_its_beginning_begins_anew(engine: Scripts, tmp_path: Path) -> None:
    part = tmp_path / "part"
    assert engine.run(f"Read-WinhostLength '{part}'") == ["0"]
    for restart, begin, end in ((True, 0, 700_000), (False, 700_000, len(CONTENT))):
        text = b64encode(CONTENT[begin:end]).decode()
        engine.run(f"Add-WinhostPiece '{part}' ${restart} (ConvertFrom-WinhostBase64 '{text}')")
        assert part.read_bytes() == CONTENT[:end]
    assert engine.run(f"Read-WinhostLength '{part}'") == [str(len(CONTENT))]
    engine.run(f"Add-WinhostPiece '{part}' $true (ConvertFrom-WinhostBase64 'YQ==')")
    assert part.read_bytes() == b"a"
    engine.run(f"Add-WinhostPiece '{part}' $false (ConvertFrom-WinhostBase64 '')")
    assert part.read_bytes() == b"a"


@pytest.mark.parametrize("text", ["'not base64!'", "'YQ='", "$null", "5", "@('YQ==')"])
def test_what_is_no_base64_is_nothing(engine: Scripts, text: str) -> None:
    assert engine.run(f"$null -eq (ConvertFrom-WinhostBase64 {text})") == ["True"]


def test_scripts_take_a_file_that_lies_beside_them(engine: Scripts, tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "wsl.msi").write_bytes(CONTENT)
    engine.run(f"$script:WinhostPlanFolder = '{tmp_path / 'beside'}'")
    try:
        receive(engine, "./wsl.msi", sha256(CONTENT).hexdigest(), tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == CONTENT
        with pytest.raises(PipelineError) as caught:
            receive(engine, "./other.msi", sha256(CONTENT).hexdigest(), tmp_path / "target")
        assert caught.value.error_id == "Winhost.NotFetched"
    finally:
        engine.run("$script:WinhostPlanFolder = $null")


def test_scripts_say_how_far_a_file_is(engine: Scripts, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(4 << 20))
    engine.run("""
        $script:WinhostShowsProgress = $true
        $script:Clock = 100
        function Read-WinhostClock { $script:Clock += 3; $script:Clock }
    """)
    try:
        said = engine.run(f"Copy-WinhostSource '{source}' '{target}' 6>&1 | ForEach-Object {{ \"$_\" }}")
        digest = sha256(source.read_bytes()).hexdigest()
        assert said == ["  2 of 4 MB, 0.3 MB/s, 6 s left", "  4 of 4 MB, 0.3 MB/s, 0 s left", digest]
        assert target.read_bytes() == source.read_bytes()
        assert engine.run("ConvertTo-WinhostProgress 2000000000 16400000000 100") == [
            "2,000 of 16,400 MB, 20.0 MB/s, 12 min left"
        ]
        assert engine.run("ConvertTo-WinhostProgress 2000000000 -1 100") == ["2,000 MB, 20.0 MB/s"]
    finally:
        engine.run("$script:WinhostShowsProgress = $false; Remove-Item function:Read-WinhostClock")


def test_over_the_wire_it_is_taken_of_what_was_sent(engine: Scripts, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(PipelineError) as caught:
        receive(engine, "./wsl.msi", sha256(CONTENT).hexdigest(), target)
    assert caught.value.error_id == "Winhost.NotSent"
    (tmp_path / "target.part").write_bytes(CONTENT)
    receive(engine, "./wsl.msi", sha256(CONTENT).hexdigest(), target)
    assert target.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [target]


# ---- folders below one in which everybody may make some


@pytest.fixture
def made(engine: Scripts) -> Iterator[Scripts]:
    """With stand-ins for what only Windows has: whose a folder is, and its permissions."""
    engine.run("""
        function Read-WinhostOwnSid { 'S-1-5-21-1-2-3-500' }
        function Read-WinhostOwner { param($Path) $script:LabOwner }
        function Write-WinhostFolderRights { param($Path, $Rights) $script:LabRights = $Rights }
        function Add-WinhostFolder {
            param($Path, $Rights)
            $script:LabFirst = $Rights
            [void][System.IO.Directory]::CreateDirectory($Path)
        }
        $script:LabRights = $script:LabFirst = ''
    """)
    yield engine
    engine.run(agent_text())


USES = {
    "ours": "",
    "everybody": "(A;OICI;FRFX;;;AU)",
    "read": "(A;OI;FRFX;;;S-1-5-21-1)",
    "answered": "(A;;FRFX;;;S-1-5-21-1)(A;OIIO;0x120196;;;S-1-5-21-1)",
    "kept": "(A;OICI;0x1301bf;;;S-1-5-21-1)",
}


@pytest.mark.parametrize("owner", ["S-1-5-18", "S-1-5-32-544", "S-1-5-21-1-2-3-500"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_of_ours_is_for_administrators_and_whom_we_name(
    made: Scripts, tmp_path: Path, owner: str, use: str, there: bool
) -> None:
    folder = tmp_path / "winhost"
    if there:
        folder.mkdir()
    made.run(f"$script:LabOwner = '{owner}'; Initialize-WinhostFolder '{folder}' '{use}' 'S-1-5-21-1'")
    assert folder.is_dir()
    rights = f"O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA){USES[use]}"
    # One that an account keeps gets its rights when it is made, and never again: it may be a link by then.
    later = rights if there and use != "kept" else ""
    assert made.run("$script:LabFirst; $script:LabRights") == ["" if there else rights, later]


def test_a_folder_that_becomes_a_link_meanwhile_is_not_used(made: Scripts, tmp_path: Path) -> None:
    made.run("$script:LabOwner = 'S-1-5-18'; $script:LabLooks = 0")
    made.run("function Test-WinhostLink { param($Path) $script:LabLooks += 1; $script:LabLooks -gt 1 }")
    with pytest.raises(PipelineError) as caught:
        made.run(f"Initialize-WinhostFolder '{tmp_path}' 'ours'")
    assert caught.value.error_id == "Winhost.NotAFolder"


def test_a_folder_that_somebody_else_made_first_is_not_used(made: Scripts, tmp_path: Path) -> None:
    with pytest.raises(PipelineError) as caught:
        made.run(f"$script:LabOwner = 'S-1-5-21-1-2-3-1004'; Initialize-WinhostFolder '{tmp_path}' 'ours'")
    assert caught.value.error_id == "Winhost.NotOurs"
    assert "S-1-5-21-1-2-3-1004" in str(caught.value)
    assert made.run("$script:LabRights") == [""]


def test_a_folder_that_leads_elsewhere_is_not_used(made: Scripts, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PipelineError) as caught:
        made.run(f"$script:LabOwner = 'S-1-5-18'; Initialize-WinhostFolder '{tmp_path / 'link'}' 'ours'")
    assert caught.value.error_id == "Winhost.NotAFolder"
    assert made.run("$script:LabRights") == [""]


@pytest.mark.parametrize(
    ("folder", "owner", "believed"),
    [
        ("there", "S-1-5-18", True),
        ("there", "S-1-5-21-1-2-3-1004", False),
        ("link", "S-1-5-18", False),
        ("nothing", "S-1-5-18", False),
    ],
)
def test_what_stands_in_a_folder_of_ours_alone_is_believed(
    made: Scripts, tmp_path: Path, folder: str, owner: str, believed: bool
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    said = made.run(f"$script:LabOwner = '{owner}'; Test-WinhostOwnFolder '{tmp_path / folder}'")
    assert said == [str(believed)]


def test_a_folder_that_may_not_be_asked_after_is_an_error_and_not_empty(made: Scripts, tmp_path: Path) -> None:
    made.run("function Read-WinhostOwner { throw [System.UnauthorizedAccessException]::new() }")
    with pytest.raises(PipelineError):
        made.run(f"Test-WinhostOwnFolder '{tmp_path}'")


@pytest.mark.skipif(os.name == "nt", reason="there no path leads in a circle")
def test_what_may_not_be_seen_is_an_error_and_not_absent(engine: Scripts, tmp_path: Path) -> None:
    """Also for root, whom no permission stops: the system follows a link to itself only so far."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    asks = ["Bytes", "FileTime", "Hash", "Length"]
    calls = [f"Read-Winhost{ask}" for ask in asks] + [
        f"Test-Winhost{ask}" for ask in ("Empty", "File", "Folder", "Link")
    ]
    calls += ["Remove-WinhostFile", "Remove-WinhostFolder", "Remove-WinhostEmptyFolder"]
    told = []
    for call in calls:
        with suppress(PipelineError):
            told.append((call, engine.run(f"{call} '{tmp_path / 'loop' / 'there'}'")))
    assert told == []
    with pytest.raises(PipelineError):
        engine.run(f"Measure-WinhostFiles '{tmp_path / 'loop' / 'there'}' 'ext4.vhdx'")


@pytest.mark.parametrize("second", [0, 1_700_000_000, 1_700_000_000.9, 4_102_444_800])
def test_a_file_tells_when_it_was_written(engine: Scripts, tmp_path: Path, second: float) -> None:
    (tmp_path / ".wslconfig").write_bytes(b"[wsl2]")
    os.utime(tmp_path / ".wslconfig", (second, second))
    assert engine.run(f"Read-WinhostFileTime '{tmp_path / '.wslconfig'}'") == [str(int(second))]
    assert engine.run(f"$null -eq (Read-WinhostFileTime '{tmp_path / 'nothing'}')") == ["True"]


def test_a_file_that_is_not_there_has_no_sum(engine: Scripts, tmp_path: Path) -> None:
    assert engine.run(f"Read-WinhostHash '{tmp_path / 'nothing'}'") == [""]


def test_what_cannot_be_written_leaves_nothing_beside_it(engine: Scripts, tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()  # in the place of the file
    with pytest.raises(PipelineError):
        engine.run(f"Write-WinhostFile '{tmp_path / 'key'}' @(99)")
    assert list(tmp_path.iterdir()) == [tmp_path / "key"]


def test_where_windows_took_the_old_file_away_the_new_one_is_not_removed_too(made: Scripts, tmp_path: Path) -> None:
    """ReplaceFile may fail after that: its documentation names ERROR_UNABLE_TO_MOVE_REPLACEMENT."""
    record = tmp_path / "record"
    record.write_text("old")
    made.run(
        "function Move-WinhostReplacement { [System.IO.File]::Delete($args[1]); throw [System.IO.IOException]::new() }"
    )
    with pytest.raises(PipelineError):
        made.run(f"Write-WinhostFile '{record}' @(99)")
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".new")
    assert left.read_bytes() == b"c"


# ---- what a change says


def test_what_a_cmdlet_writes_by_the_way_does_not_make_a_change_fail(engine: Scripts) -> None:
    request = json.dumps({"calls": [{"resource": "Talker", "verb": "set", "key": {}, "desired": {"it": 2}}]})
    (answer,) = engine.run(f"""
        $script:LabIt = 1
        function Get-WinhostTalker {{ param($Key) @{{ key = @{{}}; state = @{{ it = $script:LabIt }} }} }}
        function Set-WinhostTalker {{
            param($Key, $Desired, $How)
            'an object of some cmdlet'
            $script:LabIt = $Desired.it
            @{{ restart = @(@{{ system = 'host' }}) }}
        }}
        Invoke-Winhost -Json '{request}'
        Remove-Item -Path function:Get-WinhostTalker, function:Set-WinhostTalker
    """)
    (told,) = json.loads(answer)["answers"]
    assert (told["ok"], told.get("after"), told.get("restart")) == (True, {"it": 2}, [{"system": "host"}])


# ---- on hosts of every language


def test_names_are_compared_the_same_in_every_language(engine: Scripts) -> None:
    """In Turkish I is no i, and -match goes by that: whoever writes SHIMX64.EFI means shimx64.efi all the same."""
    request = json.dumps({"calls": [{"resource": "Spelling", "verb": "get"}]})
    answer, facts, after = engine.run(rf"""
        function Get-WinhostSpelling {{
            $same = 'SHIMX64.EFI' -match 'shimx64\.efi' -and 'MS_IMPLAT' -like 'ms_implat*'
            @{{ key = @{{}}; state = @{{ same = $same }} }}
        }}
        $thread = [System.Threading.Thread]::CurrentThread
        $before = $thread.CurrentCulture
        try {{
            $thread.CurrentCulture = 'tr-TR'
            Invoke-Winhost -Json '{request}'
            # As Facts.ps1 asks.
            (Invoke-WinhostBatch @([pscustomobject]@{{ resource = 'Spelling'; verb = 'get' }})).instances[0].state.same
            $thread.CurrentCulture.Name
        }}
        finally {{
            $thread.CurrentCulture = $before
            Remove-Item -Path function:Get-WinhostSpelling
        }}
    """)
    assert json.loads(answer)["answers"][0]["instances"][0]["state"] == {"same": True}
    assert (facts, after) == ("True", "tr-TR")


# ---- in a folder that others write in


@pytest.mark.parametrize(("link", "code"), [("file", "Winhost.NotAFile"), ("folder", "Winhost.NotAFolder")])
def test_a_file_is_not_read_by_way_of_a_link(engine: Scripts, tmp_path: Path, link: str, code: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / ".wslconfig").write_bytes(b"\x00secret")
    profile = tmp_path / "profile"
    if link == "folder":
        profile.symlink_to(tmp_path / "secret")
    else:
        profile.mkdir()
        (profile / ".wslconfig").symlink_to(tmp_path / "secret" / ".wslconfig")
    with pytest.raises(PipelineError) as caught:
        engine.run(f"Read-WinhostFile '{profile / '.wslconfig'}'")
    assert caught.value.error_id == code
    assert engine.run(f"Read-WinhostFile '{tmp_path / 'secret' / '.wslconfig'}'") == ["0 115 101 99 114 101 116"]
    assert engine.run(f"$null -eq (Read-WinhostFile '{tmp_path / 'nothing'}')") == ["True"]


@pytest.mark.skipif(os.name == "nt", reason="there nobody can take the place of an open file")
def test_an_answer_is_read_from_the_file_that_was_made_whatever_becomes_of_its_name(
    engine: Scripts, tmp_path: Path
) -> None:
    path, secret = tmp_path / "answer-1.json", tmp_path / "secret"
    secret.write_bytes(b'{"code": 1}\n')
    engine.run(f"$script:LabAnswer = Open-WinhostAnswerFile '{path}'")
    assert path.read_bytes() == b""
    with path.open("ab") as answer:
        answer.write(b'{"code"')
    assert engine.run("$null -eq (Read-WinhostAnswerFile $script:LabAnswer)") == ["True"]
    with path.open("ab") as answer:
        answer.write(b": 7}\n")
    path.rename(tmp_path / "away")
    path.symlink_to(secret)
    assert engine.run("Read-WinhostAnswerFile $script:LabAnswer") == ['{"code": 7}\n']
    engine.run("$script:LabAnswer.Dispose()")
    assert secret.read_bytes() == b'{"code": 1}\n'
    assert not path.is_symlink()


def test_what_an_account_keeps_goes_only_when_it_is_empty_and_a_link_goes_alone(
    engine: Scripts, tmp_path: Path
) -> None:
    full, empty, link = tmp_path / "full", tmp_path / "empty", tmp_path / "link"
    full.mkdir()
    empty.mkdir()
    (full / "ext4.vhdx").write_bytes(b"disk")
    link.symlink_to(full)
    for folder, gone in ((full, False), (link, True), (empty, True), (tmp_path / "nothing", True)):
        assert engine.run(f"Remove-WinhostEmptyFolder '{folder}'") == [str(gone)]
    assert sorted(tmp_path.rglob("*")) == [full, full / "ext4.vhdx"]


def test_files_are_counted_but_not_by_way_of_links(engine: Scripts, tmp_path: Path) -> None:
    for folder in ("profile/a/b", "profile/c", "other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "ext4.vhdx").write_bytes(b"disk")
    (tmp_path / "profile" / "d").symlink_to(tmp_path / "other")
    assert engine.run(f"Measure-WinhostFiles '{tmp_path / 'profile'}' 'ext4.vhdx'") == ["2"]
    assert engine.run(f"Measure-WinhostFiles '{tmp_path / 'nothing'}' 'ext4.vhdx'") == ["0"]
    with pytest.raises(PipelineError) as caught:
        engine.run(f"Measure-WinhostFiles '{tmp_path / 'profile' / 'd'}' 'ext4.vhdx'")
    assert caught.value.error_id == "Winhost.NotAFolder"


def test_what_is_being_replaced_is_looked_for_again(engine: Scripts, tmp_path: Path) -> None:
    path = tmp_path / "switches.json"
    engine.run(f"function Wait-WinhostReplacement {{ [System.IO.File]::WriteAllText('{path}', 'ab') }}")
    assert engine.run(f"Read-WinhostFile '{path}'") == ["97 98"]
    engine.run(agent_text())


# ---- networks, as the firewall shows them

NETWORKS = {
    "Any": ["0.0.0.0/0", "::/0"],
    "*": ["0.0.0.0/0", "::/0"],
    "0.0.0.0/0.0.0.0": ["0.0.0.0/0"],
    "192.0.2.7": ["192.0.2.7/32"],
    "2001:db8::7": ["2001:db8::7/128"],
    "192.0.2.0/255.255.255.0": ["192.0.2.0/24"],
    "192.0.2.7/255.255.255.255": ["192.0.2.7/32"],
    "192.0.2.0/24": ["192.0.2.0/24"],
    "2001:db8::/32": ["2001:db8::/32"],
    # No network: told as it is, and never as one address.
    "192.0.2.0/255.0.255.0": ["192.0.2.0/255.0.255.0"],
    "LocalSubnet": ["LocalSubnet"],
    "LocalSubnet6": ["LocalSubnet6"],
    "DefaultGateway": ["DefaultGateway"],
    "DNS": ["DNS"],
    "Internet": ["Internet"],
    "192.0.2.1-192.0.2.9": ["192.0.2.1-192.0.2.9"],
    "2001:db8::1-2001:db8::9": ["2001:db8::1-2001:db8::9"],
    "7": ["7"],
}


@pytest.mark.parametrize("shown", NETWORKS)
def test_a_network_is_told_as_what_it_is(engine: Scripts, shown: str) -> None:
    assert engine.run(f"ConvertTo-WinhostNetwork '{shown}'") == NETWORKS[shown]


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (["'192.0.2.0/24'", "'Any'"], []),
        (["'Any'"], []),
        (["'LocalSubnet'", "'192.0.2.7'"], ["LocalSubnet", "192.0.2.7/32"]),
        (["'192.0.2.7', 'LocalSubnet'", "'192.0.2.7'"], ["192.0.2.7/32", "LocalSubnet"]),
        (["$null"], []),
    ],
)
def test_a_rule_that_is_open_to_all_is_seen_as_that(engine: Scripts, rules: list[str], told: list[str]) -> None:
    made = "\n".join(f"[pscustomobject]@{{ RemoteAddresses = @({each}) }}" for each in rules)
    engine.run(f"function Find-WinhostVmRules {{ {made} }}")
    try:
        assert engine.run("Find-WinhostVmAllowedNetworks") == told
    finally:
        engine.run(agent_text())


STOPPED_VM = """& {{
    $script:Seconds = 0
    function Read-WinhostClock {{ $script:Seconds++; $script:Seconds }}
    function Start-Sleep {{ }}
    function Get-VM {{ [PSCustomObject]@{{ State = '{state}' }} }}
    function Get-VMIntegrationService {{
        [PSCustomObject]@{{
            Id = 'x\\5CED1297-4598-4915-A5FC-AD21BB4D02A4'; Enabled = $true; PrimaryOperationalStatus = 'Ok'
        }}
        [PSCustomObject]@{{
            Id = 'x\\9F8233AC-BE49-4C79-8EE3-E7E1985B2077'; Enabled = $true; PrimaryOperationalStatus = '{service}'
        }}
    }}
    function Stop-VM {{
        param($VM, [switch]$AsJob, [switch]$TurnOff, [switch]$Confirm)
        if ($TurnOff) {{ Write-Warning 'turned off' }}
        if ($AsJob) {{ Write-Warning 'asked'; @{{ State = 'Running'; JobStateInfo = @{{ Reason = '' }} }} }}
    }}
    function Remove-Job {{ throw 'it is still there' }}
    $how = [PSCustomObject]@{{ accept = @({accept}); within = 5 }}
    Stop-WinhostVm ([PSCustomObject]@{{ Id = 1; State = 'Running' }}) $how 3>&1 | ForEach-Object {{ "$_" }}
}}"""
LEFT = "The job of the shutdown could not be removed: it is still there"


def test_a_job_that_cannot_be_removed_hides_no_error(engine: Scripts) -> None:
    with pytest.raises(PipelineError) as caught:
        engine.run(STOPPED_VM.format(state="Running", service="Ok", accept=""))
    assert caught.value.error_id == "Winhost.GuestDidNotStop"
    assert engine.run(STOPPED_VM.format(state="Off", service="Ok", accept="")) == ["asked", LEFT]


def test_power_is_cut_with_consent_alone(engine: Scripts) -> None:
    """Stop-VM -AsJob cuts it without asking where the guest cannot be asked to shut down."""
    with pytest.raises(PipelineError, match="shutdown service did not answer") as caught:
        engine.run(STOPPED_VM.format(state="Running", service="NoContact", accept=""))
    assert caught.value.error_id == "Winhost.GuestDidNotStop"
    turned_off = STOPPED_VM.format(state="Running", service="NoContact", accept="'vm-turn-off'")
    assert engine.run(turned_off) == ["turned off"]
    assert engine.run(STOPPED_VM.format(state="Off", service="NoContact", accept="")) == []


def test_a_cleanup_that_fails_is_the_error_where_there_is_no_other(engine: Scripts) -> None:
    engine.run(
        "function Test-Cleanup { param([bool]$Fails) $ended = $false; "
        "try { if ($Fails) { throw 'the first' }; $ended = $true } "
        "finally { Invoke-WinhostCleanup $ended 'It stays' { throw 'the second' } } }"
    )
    for fails, error in (("$true", "the first"), ("$false", "the second")):
        with pytest.raises(PipelineError, match=error):
            engine.run(f"Test-Cleanup {fails}")


def test_a_restricted_language_mode_is_read_in_it(engine: Scripts, tmp_path: Path) -> None:
    request = json.dumps({"calls": [{"resource": "Session", "verb": "get"}]})
    (tmp_path / "agent.ps1").write_text(f"{agent_text()}\nInvoke-Winhost -Json '{request}'\n")
    (told,) = engine.run(f"""
        $runspace = [System.Management.Automation.Runspaces.RunspaceFactory]::CreateRunspace()
        $runspace.Open()
        $runspace.SessionStateProxy.LanguageMode = 'ConstrainedLanguage'
        $shell = [System.Management.Automation.PowerShell]::Create()
        $shell.Runspace = $runspace
        [void]$shell.AddScript([System.IO.File]::ReadAllText('{tmp_path / "agent.ps1"}'))
        $shell.Invoke()
        $shell.Dispose()
        $runspace.Dispose()
    """)
    (session,) = json.loads(told)["answers"][0]["instances"]
    assert session["state"]["language_mode"] == "ConstrainedLanguage"
    assert session["state"]["is_64bit"] is True
    # What takes a method is unknown then, and not what it would be of somebody who may not.
    assert {session["state"][name]["unknown"]["code"] for name in ("administrator", "execution_policy")} == {
        "MethodInvocationNotSupportedInConstrainedLanguage"
    }


@pytest.mark.parametrize(("value", "kind"), [("1", "bios"), ("2", "uefi")])
def test_uefi_or_bios_is_known_without_compiling(engine: Scripts, value: str, kind: str) -> None:
    engine.run(f"function Read-WinhostRegistry {{ {value} }}; function Import-WinhostNative {{ throw 'compiled' }}")
    assert engine.run("Read-WinhostFirmwareKind") == [kind]


def with_firmware(kind: str, secure: str) -> Machine:
    facts, section = hosts()["win11-pro-1gpu"]
    boot = {"kind": kind, "current": None, "next": None, "order": [], "entries": []}
    told = {"FirmwareBoot": boot, "SecureBoot": {"state": secure, "authorities": [], "revoked": 0}}
    records = {name: (Record(state),) for name, state in told.items()}
    return of(replace(facts, resources={**facts.resources, **records}), section)


@each_row(("kind", "secure"), [("uefi", "on"), ("uefi", "unsupported"), ("bios", "unsupported")])
def test_where_the_registry_does_not_tell_uefi_or_bios_variables_of_secure_boot_do(
    engine: Scripts, kind: str, secure: str
) -> None:
    engine.run("function Read-WinhostRegistry { }; function Import-WinhostNative { throw 'compiled' }")
    engine.use(with_firmware(kind, secure))
    assert engine.run("Read-WinhostFirmwareKind") == [kind]
    if kind == "uefi":
        assert engine.run("Read-WinhostSecureVariable 'SecureBoot'") == (["1"] if secure == "on" else [])


def test_another_error_of_the_firmware_is_not_taken_for_a_bios(engine: Scripts) -> None:
    with pytest.raises(PipelineError, match="denied"):
        engine.run("& { function Get-SecureBootUEFI { throw 'denied' }; Read-WinhostFirmwareKind }")
