"""Jobs of an account through the real scripts: who runs them, what comes back, and what nobody gets to see."""

import json
import os
import shutil
import stat
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.powershell.conftest import BUSY_S
from tests.powershell.twins import Scripts, machine, scripts, verdict
from winhost.lab.physics.local_accounts import Account
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_accounts import Accounts
from winhost.lab.physics.wsl_distros import Distros
from winhost.lab.powershell.calls.cmdlet_process import seams
from winhost.lab.powershell.powershell_engine import LAB_VARIABLE, Loopback, find_engine
from winhost.lab.powershell.standins import standins
from winhost.resources.windows.windows_scripts import agent_text

OWNER = {"account": "winhost"}
HOSTILE = (
    "",
    " ",
    'say "hi"',
    "it's",
    "C:\\path\\",
    '\\"',
    "a\tb",
    "\u00e4\u2019\U0001f4a9",
    "$(calc)",
    "%PATH%",
    "--",
    "\\\\",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        yield running


@pytest.fixture
def host(engine: Scripts) -> Machine:
    """With an account of ours that can run jobs."""
    made = machine("win11-pro-1gpu")
    engine.use(made)
    for resource, desired in (
        ("LocalAccount", {"there": True, "administrator": True}),
        ("AccountTasks", {"jobs": "ready"}),
    ):
        (answer,) = engine.answers(made, {"resource": resource, "verb": "set", "key": OWNER, "desired": desired})
        assert answer["ok"], answer
    return made


def in_text(arguments: Sequence[str]) -> str:
    """As a list in a script: a quote for each character that acts as one, twice."""
    quotes = str.maketrans({quote: quote * 2 for quote in "'\u2018\u2019\u201a\u201b"})
    return ", ".join(f"'{argument.translate(quotes)}'" for argument in arguments)


def run_job(engine: Scripts, arguments: Sequence[str], file: str = "", seconds: int = 30) -> dict[str, Any]:
    """What Invoke-WinhostJob gives, or the error that it stops with."""
    job = f"@{{ kind = 'wsl'; arguments = @({in_text(arguments)}); input = '{file}' }}"
    call = f"Invoke-WinhostJob 'winhost' {job} {seconds}"
    tried = f'try {{ {call} }} catch {{ @{{ stopped = "$($_.FullyQualifiedErrorId)"; at = $_.TargetObject }} }}'
    (answer,) = engine.run(
        f"$script:WinhostCache = @{{}}; ConvertTo-WinhostAscii (ConvertTo-Json $({tried}) -Compress)"
    )
    found: dict[str, Any] = json.loads(answer)
    return found


def test_a_job_is_run_as_the_account_and_answered(
    engine: Scripts, host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str], bytes]] = []

    def wsl(self: Distros, account: str, arguments: Sequence[str], content: bytes) -> tuple[int, str, str]:
        asked.append((account, list(arguments), content))
        return 7, "\u00e4\u2019\r\n\U0001f4a9", "not\u2028good"

    monkeypatch.setattr(Distros, "wsl", wsl)
    host.files.write("C:\\ProgramData\\winhost\\in", b"\x00\xff\r\n")
    found = run_job(engine, HOSTILE, "C:\\ProgramData\\winhost\\in")
    assert found == {"code": 7, "output": "\u00e4\u2019\r\n\U0001f4a9", "errors": "not\u2028good"}
    assert asked == [("winhost", list(HOSTILE), b"\x00\xff\r\n")]
    (script,) = host.files.list_below("C:\\ProgramData\\winhost\\jobs")
    assert script.endswith("\\winhost\\job.ps1")


def test_a_job_of_an_account_without_ready_tasks_is_not_there_yet(engine: Scripts, host: Machine) -> None:
    for jobs in ("disabled", "absent"):
        call = {"resource": "AccountTasks", "verb": "set", "key": OWNER, "desired": {"jobs": jobs}}
        assert [verdict(answer) for answer in engine.answers(host, call)] == ["ok"]
        assert run_job(engine, ["--version"]) == {"stopped": "Winhost.Unavailable", "at": "AccountTasks"}


@pytest.mark.parametrize(
    ("changed", "mends"),
    [
        ({"administrator": False}, "AccountRight"),
        ({"secret": "Somebody's own, 1"}, "AccountTasks"),
        ({"enabled": False}, "LocalAccount"),
    ],
)
def test_a_job_says_what_to_mend_where_its_account_cannot_log_on(
    engine: Scripts, host: Machine, changed: dict[str, Any], mends: str
) -> None:
    account = host.accounts.find("winhost")
    assert account is not None
    vars(account).update(changed)
    assert run_job(engine, ["--version"]) == {"stopped": "Winhost.Unavailable", "at": mends}
    assert not [path for path in host.files.list_below("C:\\ProgramData\\winhost\\jobs") if path.endswith(".json")]


def test_a_task_that_never_answers_is_given_up(engine: Scripts, host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accounts, "_run_jobs", lambda self, account: None)
    assert run_job(engine, ["--version"], seconds=1)["stopped"] == "Winhost.JobTimedOut"


def test_a_job_that_came_just_too_late_is_begun_again(
    engine: Scripts, host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    really = Accounts._run_jobs

    def do(self: Accounts, account: str) -> None:
        seen.append(account)
        if len(seen) > 1:
            really(self, account)

    monkeypatch.setattr(Accounts, "_run_jobs", do)
    monkeypatch.setattr(Distros, "wsl", lambda self, account, arguments, content: (0, "done", ""))
    assert run_job(engine, ["--version"])["output"] == "done"
    assert len(seen) == 2


def passwords(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those that accounts get from now on, in their order."""
    given: list[str] = []

    def keep(account: Account, secret: str | None) -> None:
        vars(account)["kept"] = secret
        if secret is not None:
            given.append(secret)

    monkeypatch.setattr(Account, "secret", property(lambda account: vars(account)["kept"], keep))
    return given


def test_no_secret_comes_back_from_the_scripts(engine: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    given = passwords(monkeypatch)
    on = machine("win11-pro-1gpu")
    goals: list[tuple[str, dict[str, Any], str]] = [
        ("LocalAccount", {"there": True}, "ok"),
        ("AccountTasks", {"jobs": "ready"}, "Winhost.NoBatchRight"),
        ("LocalAccount", {"administrator": True}, "ok"),
        ("AccountTasks", {"jobs": "ready", "keep_alive": "ready", "distro": "Nowhere"}, "ok"),
    ]
    answers = []
    for resource, desired, end in goals:
        answers += engine.answers(on, {"resource": resource, "verb": "set", "key": OWNER, "desired": desired})
        assert verdict(answers[-1]) == end
    shown = [
        json.dumps(answers),
        *engine.run("$Error | Out-String"),
        *engine.run("Get-Variable | Out-String -Width 999"),
    ]
    assert len(given) == 3
    assert [secret for secret in given if any(secret in text for text in shown)] == []
    for secret in given:
        assert len(secret) == 52
        assert any(map(str.isupper, secret))
        assert any(map(str.islower, secret))
        assert any(map(str.isdigit, secret))
    assert len(set(given)) == 3


# What a host keeps of a session where its administrators want to know: what it was asked, and all that it shows.
TRANSCRIBED = """
$null = Start-Transcript -Path '{transcript}' -IncludeInvocationHeader
$VerbosePreference = 'Continue'
$DebugPreference = 'Continue'
foreach ($line in [System.IO.File]::ReadAllLines('{requests}')) {{
    Write-Host $line
    Invoke-Winhost -Json $line *>&1 | Out-String -Width 9999 | Write-Host
}}
$Error | Format-List -Property * -Force | Out-String -Width 9999 | Write-Host
$null = Stop-Transcript
"""


def test_no_secret_stands_in_a_transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = passwords(monkeypatch)
    on = machine("win11-pro-1gpu")
    goals = (("LocalAccount", {"there": True, "administrator": True}), ("AccountTasks", {"jobs": "ready"}))
    calls = [{"resource": resource, "verb": "set", "key": OWNER, "desired": desired} for resource, desired in goals]
    requests, transcript, script = (tmp_path / name for name in ("requests", "transcript.txt", "session.ps1"))
    requests.write_text("".join(json.dumps({"calls": [call]}) + "\n" for call in calls), encoding="ascii")
    session = TRANSCRIBED.format(transcript=transcript, requests=requests)
    script.write_text("\n".join([standins(), agent_text(), seams(), session]), encoding="ascii")
    with Loopback(on) as lab:
        words = ("-NoLogo", "-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass", "-File", str(script))
        subprocess.run(
            [find_engine(), *words], env={**os.environ, LAB_VARIABLE: lab.address}, check=True, timeout=BUSY_S
        )
    kept = transcript.read_text(encoding="utf-8-sig")
    assert kept.count('"ok":true') == len(calls)
    assert len(given) == 2
    assert [secret for secret in given if secret in kept] == []


# ---- the script of the task, in a process of its own

FAKE = """#!{python}
import json, os, sys, time
if "--sleep" in sys.argv:
    time.sleep(60)
told = {{"arguments": sys.argv[1:], "utf8": os.environ.get("WSL_UTF8"), "input": sys.stdin.buffer.read().hex()}}
sys.stdout.write(json.dumps(told, ensure_ascii=True) + "\\u00e4\\u2019")
sys.stderr.write("e" * 200000)
sys.exit(3)
"""


@pytest.fixture
def folder(engine: Scripts, tmp_path: Path) -> Path:
    """Of an account: the script as the agent writes it, but for the program, which is one of ours."""
    if os.name == "nt":
        pytest.skip("needs a program without an extension")
    program = tmp_path / "wsl"
    program.write_text(FAKE.format(python=sys.executable), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (text,) = engine.run('"$script:WinhostJobScript"')
    assert text.count("'C:\\Program Files\\WSL\\wsl.exe'") == 1
    jobs = tmp_path / "jobs"
    (jobs / "answers").mkdir(parents=True)
    (jobs / "job.ps1").write_text(text.replace("C:\\Program Files\\WSL\\wsl.exe", str(program)), encoding="ascii")
    return jobs


def run_task(folder: Path) -> None:
    program = shutil.which(find_engine())
    command = [str(program), "-NoProfile", "-NonInteractive", "-File", str(folder / "job.ps1")]
    subprocess.run(command, check=True, timeout=BUSY_S, stdin=subprocess.DEVNULL)


def put(folder: Path, number: int, **job: Any) -> None:
    whole = {"kind": "wsl", "arguments": [], "input": "", "seconds": 30} | job
    (folder / f"job-{number:032x}.json").write_text(json.dumps(whole), encoding="ascii")

    (folder / "answers" / f"answer-{number:032x}.json").touch()


def answer(folder: Path, number: int) -> dict[str, Any]:
    text = (folder / "answers" / f"answer-{number:032x}.json").read_text("utf-8")
    assert text.endswith("}\n")
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_task_runs_each_job_and_answers_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\x00\xff\r\n")
    put(folder, 1, arguments=list(HOSTILE))
    put(folder, 2, input=str(tmp_path / "in"))
    put(folder, 3, arguments=["--sleep"], seconds=1)
    put(folder, 4, kind="nothing")
    put(folder, 5, input=str(tmp_path / "not there"))
    put(folder, 6)
    (folder / f"job-{6:032x}.json").write_text("{", encoding="ascii")
    # More than a pipe holds, for a program that hangs and reads nothing of it.
    (tmp_path / "much").write_bytes(bytes(1 << 20))
    put(folder, 7, arguments=["--sleep"], input=str(tmp_path / "much"), seconds=1)
    there = sorted(folder.rglob("*"))
    run_task(folder)
    assert sorted(folder.rglob("*")) == there
    first = answer(folder, 1)
    told, rest = json.JSONDecoder().raw_decode(first["output"])
    assert told == {"arguments": list(HOSTILE), "utf8": "1", "input": ""}
    assert first["output"][rest:] == "\u00e4\u2019"
    assert (first["code"], len(first["errors"]), first["timed_out"]) == (3, 200000, False)
    assert json.JSONDecoder().raw_decode(answer(folder, 2)["output"])[0]["input"] == "00ff0d0a"
    for hung in (3, 7):
        assert answer(folder, hung) == {"code": -1, "output": "", "errors": "", "timed_out": True}
    assert answer(folder, 4) == {"code": 0, "output": "", "errors": "", "timed_out": False}
    for failed in (5, 6):
        assert answer(folder, failed)["code"] == -1
        assert answer(folder, failed)["errors"]


def test_what_is_the_accounts_own_its_task_writes_and_clears(folder: Path, tmp_path: Path) -> None:
    config, kept, elsewhere = tmp_path / ".wslconfig", tmp_path / "kept", tmp_path / "elsewhere"
    for each in (kept / "sub", elsewhere):
        each.mkdir(parents=True)
        (each / "ext4.vhdx").write_bytes(b"disk")
    (kept / "link").symlink_to(elsewhere)
    config.write_bytes(b"before")
    put(folder, 1, kind="write", path=str(config), bytes=b64encode(b"[wsl2]\r\n\xff").decode())
    put(folder, 2, kind="write", path=str(tmp_path / "new"), bytes="")
    put(folder, 3, kind="write", path=str(tmp_path / "wsl"), bytes=None)
    put(folder, 4, kind="write", path=str(tmp_path / "not there" / "x"), bytes="")
    put(folder, 5, kind="clear", path=str(kept))
    run_task(folder)
    assert config.read_bytes() == b"[wsl2]\r\n\xff"
    assert (tmp_path / "new").read_bytes() == b""
    assert not (tmp_path / "wsl").exists()
    assert [answer(folder, number)["code"] for number in (1, 2, 3, 4, 5)] == [0, 0, 0, -1, 0]
    assert list(kept.iterdir()) == []
    assert (elsewhere / "ext4.vhdx").read_bytes() == b"disk"


def test_a_job_that_nobody_waits_for_any_more_is_not_done(folder: Path) -> None:
    put(folder, 1, arguments=["--unregister", "Ubuntu"])
    put(folder, 2, arguments=["--unregister", "Ubuntu"])
    (folder / "answers" / f"answer-{1:032x}.json").unlink()
    (folder / "answers" / f"answer-{2:032x}.json").write_text("{}\n", encoding="ascii")
    run_task(folder)
    assert [path.read_text("ascii") for path in (folder / "answers").iterdir()] == ["{}\n"]
