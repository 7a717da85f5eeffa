"""The lines at the end of a run: a reachable address, a tunnel, and a request for the user's shell."""

import json
import os
import shlex
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from tests.serving.test_deployed import DEPLOYED
from winhost.cli.change import running
from winhost.cli.options import RunOptions
from winhost.cli.serve.hosts import describe_endpoint, find_serving_run
from winhost.cli.shells import Shell, command_line, detect_shell, post_with_key
from winhost.cli.up.first_completion import ENDPOINT_ADDRESS, completion_checks
from winhost.connect.tunnel import SshRoute
from winhost.core.answers import Json
from winhost.core.checks import Check
from winhost.core.steps import DesiredResource
from winhost.engine.run_context import Outcome
from winhost.engine.store import Store
from winhost.model.secrets import SecretRef
from winhost.serving.deployed import PATH

WAY = SshRoute("root", "192.0.2.7", 2222, "/home/me/.ssh/id of gpu", "me@192.0.2.1:22")


def recorded(listen: str, *resources: tuple[str, dict[str, str], dict[str, Json]]) -> Any:
    text = replace(DEPLOYED, gateway=replace(DEPLOYED.gateway, listen=listen)).text()
    desired = [("LinuxFile", {"path": PATH}, {"text": text}), *resources]
    stage = SimpleNamespace(desired=[DesiredResource(name, key, state, "", "") for name, key, state in desired])
    plan = SimpleNamespace(request=SimpleNamespace(asks_with=None, path="dda"))
    return SimpleNamespace(host="box", plan=plan, stages=[stage])


def said(
    listen: str,
    *resources: tuple[str, dict[str, str], dict[str, Json]],
    way: SshRoute | None = WAY,
    address: str = "192.0.2.3",
    shell: Shell = Shell.POSIX,
) -> list[str]:
    """Return the lines at the end of a run on the host `box`, which has this address in fleet.yaml."""
    record = recorded(listen, *resources)
    session: Any = SimpleNamespace(ssh_route=lambda: way)
    checks = completion_checks(lambda event: None, lambda: False, address)(record, session)
    assert [each.property for each in checks] == [ENDPOINT_ADDRESS]
    served = find_serving_run(record, None, checks)
    assert served
    return list(describe_endpoint(served, shell))


def test_on_the_lan_the_address_is_that_of_the_linux() -> None:
    lines = said("0.0.0.0:8443", way=replace(WAY, jump=None))
    assert lines[1] == "Base URL: http://192.0.2.7:8443/v1"
    assert "box:" not in "".join(lines)


def test_through_windows_it_is_the_address_in_the_fleet_file() -> None:
    forward = ("PortForward", {"port": "8443"}, {"allowed": ["10.0.0.0/8"]})
    assert "Base URL: http://192.0.2.3:8443/v1" in said("0.0.0.0:8443", forward)
    assert "Base URL: http://[2001:db8::3]:8443/v1" in said("0.0.0.0:8443", forward, address="2001:db8::3")
    mirrored = ("HyperVFirewall", {"creator": "x"}, {"ports": [8443]})
    assert "Base URL: http://192.0.2.3:8443/v1" in said("0.0.0.0:8443", mirrored)
    assert f"Base URL: http://{socket.gethostname()}:8443/v1" in said("0.0.0.0:8443", forward, address="localhost")


def test_an_address_that_this_computer_does_not_know_or_reach_is_opened_by_a_tunnel() -> None:
    for listen in ("0.0.0.0:8443", "127.0.0.1:8443"):
        lines = said(listen)
        assert f"The endpoint listens on {listen} of box. A tunnel with its base URL, until Ctrl-C:" in lines
        assert "  winhost open box" in lines
    assert "Base URL: http://192.0.2.55:8443/v1" in said("192.0.2.55:8443")


def test_a_key_of_the_user_is_named_where_no_reference_is_known() -> None:
    assert "API key:  the one that you named with --api-key" in said("127.0.0.1:8443")


def test_apply_and_up_end_with_the_same_lines_which_keep_the_fleet_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record: Any = recorded("127.0.0.1:8443")
    for name, given in (("read_journal", ()), ("replay", record)):
        monkeypatch.setattr(running, name, lambda *_, given=given: given)
    monkeypatch.setattr(Store, "existing_journal", lambda store, run: Path(run))
    monkeypatch.setattr(running, "load_fleet_if_any", lambda file: None)
    ends = []
    with click.Context(click.Command("apply")) as context:
        context.params["fleet_file"] = Path("my fleet.yaml")
        running.show_outcomes([("box", Outcome("box.1", "box", "applied", 1))], RunOptions())
        ends.append(capsys.readouterr().out.partition("Served:")[2])
        running.show_served("box.1", None)
        ends.append(capsys.readouterr().out.partition("Served:")[2])
    assert ends[0] == ends[1]
    for command in ("open", "chat", "serve status"):
        assert f"\n  winhost {command} --fleet 'my fleet.yaml' box" in ends[0], ends[0]


def test_a_fleet_file_that_is_being_edited_hides_no_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record: Any = recorded("127.0.0.1:8443")
    for name, given in (("read_journal", ()), ("replay", record)):
        monkeypatch.setattr(running, name, lambda *_, given=given: given)
    monkeypatch.setattr(Store, "existing_journal", lambda store, run: Path(run))
    (tmp_path / "fleet.yaml").write_text("hosts: {")
    options = RunOptions(fleet_file=tmp_path / "fleet.yaml")
    ends = [(host, Outcome(f"{host}.1", host, "applied", 1)) for host in ("box", "other")]
    assert running.show_outcomes(ends, options) == 0
    assert capsys.readouterr().out.count("Served:") == 2


def test_only_a_run_that_holds_ends_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Check("Engine", "EngineUnit", "active", desired=True, found=False, holds=False)
    running.show_outcomes([("box", Outcome("box.1", "box", "differs", 1, (wrong,)))], RunOptions())
    assert "Served:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("environment", "shell"),
    [
        ({"PSModulePath": r"C:\Program Files\WindowsPowerShell\Modules", "PROMPT": "$P$G"}, Shell.CMD),
        ({"PSModulePath": r"C:\Users\me\Documents\WindowsPowerShell\Modules;C:\x"}, Shell.POWERSHELL),
        # PowerShell that was started from cmd.exe
        ({"PSModulePath": r"C:\Users\me\Documents\PowerShell\Modules;C:\x", "PROMPT": "$P$G"}, Shell.POWERSHELL),
        ({"MSYSTEM": "MINGW64", "PROMPT": "$P$G"}, Shell.POSIX),
        ({}, Shell.POWERSHELL),
    ],
)
def test_the_shell_of_a_windows(environment: dict[str, str], shell: Shell) -> None:
    assert detect_shell("nt", environment) is shell
    assert detect_shell("posix", environment) is Shell.POSIX


BODY = json.dumps({"model": "org/it's", "messages": []})


def test_a_request_for_each_shell() -> None:
    words = shlex.split(post_with_key("http://x:1/v1", BODY, Shell.POSIX))
    assert (words[0], words[words.index("-d") + 1], words[-1]) == ("curl", BODY, "http://x:1/v1")
    assert 'Bearer $API_KEY"' in post_with_key("http://x:1/v1", BODY, Shell.POSIX)
    powershell = post_with_key("http://x:1/v1", BODY, Shell.POWERSHELL)
    assert powershell.startswith("Invoke-RestMethod -Method Post -Uri http://x:1/v1")  # `curl` is an alias there
    assert powershell.partition("-Body ")[2] == "'" + BODY.replace("'", "''") + "'"
    assert '"Bearer $env:API_KEY"' in powershell
    cmd = post_with_key("http://x:1/v1", BODY, Shell.CMD)
    assert "'" not in cmd.replace("it's", "")
    assert '-d "{\\"model\\": \\"org/it\'s\\"' in cmd
    assert "Bearer %API_KEY%" in cmd


@pytest.mark.parametrize(
    "reference", ["env:ALICE", "file:{}/a key's", "file:~/key", "cmd:echo secret", "keyring:a b/me"]
)
def test_a_request_reads_the_key_from_where_its_reference_says(reference: str, tmp_path: Path) -> None:
    """The shell is real; `curl` is a stand-in that prints its arguments, and so is `keyring`."""
    for name in ("a key's", "key"):
        (tmp_path / name).write_text("secret\n")
    for name, does in (("curl", 'printf "%s\\n" "$@"'), ("keyring", '[ "$1 $2 $3" = "get a b me" ] && echo secret')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    line = post_with_key("http://x:1/v1", BODY, Shell.POSIX, SecretRef.parse(reference.format(tmp_path)))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "ALICE": "secret"}
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines()[:2] == ["-H", "Authorization: Bearer secret"]
    assert "secret" not in line.replace("echo secret", "")


def test_a_reference_is_read_as_powershell_does() -> None:
    for reference, reads in (
        ("env:ALICE", '"Bearer $env:ALICE"'),
        ("file:/a b/key", "\"Bearer $(Get-Content '/a b/key')\""),
        ("file:~/key", '"Bearer $(Get-Content $HOME/key)"'),
        ("keyring:winhost/me", '"Bearer $(keyring get winhost me | Select-Object -First 1)"'),
    ):
        assert reads in post_with_key("http://x", BODY, Shell.POWERSHELL, SecretRef.parse(reference))
    assert "%API_KEY%" in post_with_key("http://x", BODY, Shell.CMD, SecretRef.parse("keyring:winhost/me"))


def test_words_are_quoted_as_each_shell_needs() -> None:
    words = ("ssh", "-i", r"C:\Users\My Name\id", "me@192.0.2.1")
    assert command_line(words, Shell.POWERSHELL) == r"ssh -i 'C:\Users\My Name\id' me@192.0.2.1"
    assert command_line(words, Shell.CMD) == r'ssh -i "C:\Users\My Name\id" me@192.0.2.1'
    assert shlex.split(command_line(words, Shell.POSIX)) == list(words)
