"""Parts of the agent in a real PowerShell: what a call is sent is enough for it, and a log's reader recognizes it."""

import base64
import json
import re
import subprocess
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from psrpcore import (
    ClientPowerShell,
    ClientRunspacePool,
    PipelineOutputEvent,
    PipelineStateEvent,
    PSRPEvent,
    PSRPPayload,
    RunspacePoolStateEvent,
    StreamType,
)

from tests.powershell.twins import NO_PIPELINE_STOPS, machine
from tests.processes import PATIENCE_S, started
from winhost.connect import psrp, sent_parts
from winhost.lab.lab_host import INVOKE
from winhost.lab.powershell.powershell_engine import find_engine
from winhost.lab.powershell_host import EngineHost, EngineRunspace
from winhost.lab.wire.served_host import PipelineError, RemoteCommand
from winhost.resources.registry import WINDOWS
from winhost.resources.windows import parts
from winhost.resources.windows.parts import WindowsScripts, definitions, digests, published_digests

SCRIPTS = WindowsScripts()
MISSING = ("CommandNotFoundException", "VariableIsUndefined")
SECURITY = Path(__file__).parents[2] / "SECURITY.md"
FRAGMENT_HEAD = 21  # bytes; the last four of them are the length of what follows


@pytest.fixture
def runspace() -> Iterator[EngineRunspace]:
    with EngineHost(machine("server2025-role-installed")) as host:
        opened = host.open_runspace("someone")
        yield opened
        opened.close()


def ask(runspace: EngineRunspace, there: set[str], *calls: dict[str, Any]) -> str:
    request = json.dumps({"exclusive": False, "calls": calls})
    return sent(runspace, there, SCRIPTS.needed(request), request)


def sent(runspace: EngineRunspace, there: set[str], parts: Sequence[str], request: str) -> str:
    unsent = [part for part in parts if part not in there]
    there |= {*unsent}
    command = RemoteCommand(INVOKE, is_script=False, parameters={"Json": request})
    if unsent:
        command = RemoteCommand(SCRIPTS.text(unsent), is_script=True, arguments=(request,))
    (answer,) = runspace.invoke([command], NO_PIPELINE_STOPS)
    return str(answer)


def test_a_session_that_is_sent_parts_as_it_needs_them_answers_like_one_that_has_all(runspace: EngineRunspace) -> None:
    there: set[str] = set()
    boot = json.loads(ask(runspace, there, {"resource": "Boot", "verb": "get"}))
    assert boot["answers"][0]["ok"]
    few = len(there)
    read = ask(runspace, there, *({"resource": resource, "verb": "get"} for resource in WINDOWS))
    assert [word for word in MISSING if word in read] == []
    assert few < len(there) < len(SCRIPTS.needed('{"calls": []}')) + len(published_digests().splitlines())
    (vm, *_) = (r for r in json.loads(read)["answers"][list(WINDOWS).index("VmActions")]["instances"])
    change = {"resource": "VmActions", "verb": "set", "key": vm["key"], "desired": {"start": "nothing"}}
    (changed,) = json.loads(ask(runspace, there, change))["answers"]
    assert changed["after"]["start"] == "nothing"
    assert "vm_actions/change" in there
    (session,) = json.loads(ask(runspace, there, {"resource": "Session", "verb": "get"}))["answers"]
    assert session["ok"], session
    assert session == json.loads(read)["answers"][list(WINDOWS).index("Session")]


@pytest.mark.parametrize("host", ["server2025-role-installed", "win11-wsl-served"])
def test_a_host_that_says_what_it_needs_is_read_like_one_that_has_all(host: str) -> None:
    request = json.dumps({"exclusive": False, "calls": [{"resource": each, "verb": "get"} for each in WINDOWS]})
    asked: list[str] = []
    there: set[str] = set()

    def run(parts: Sequence[str], request: str) -> str:
        asked.append(request)
        return sent(runspace, there, parts, request)

    with EngineHost(machine(host)) as served:
        runspace, whole = served.open_runspace("someone"), served.open_runspace("someone")
        found = json.loads(sent_parts.call_with_parts(SCRIPTS, request, run))["answers"]
        expected = json.loads(sent(whole, set(), tuple(digests()), request))["answers"]
        runspace.close()
        whole.close()
    differing = [name for name, one, other in zip(WINDOWS, found, expected, strict=True) if one != other]
    assert differing == []
    assert len(asked) == {"server2025-role-installed": 1, "win11-wsl-served": 2}[host]
    assert [part for part in there if part.endswith(("/change", "/compile"))] == []


def test_a_read_says_that_it_needs_the_csharp_and_has_it_then(runspace: EngineRunspace) -> None:
    request = json.dumps({"calls": [{"resource": "EfiBackup", "verb": "get"}]})
    reading, compiling = SCRIPTS.needed(request), SCRIPTS.needed(request, ["Add-WinhostNative"])
    assert "helpers/firmware/compile" in compiling
    ask(runspace, set(), {"resource": "EfiBackup", "verb": "get", "key": {}})
    with pytest.raises(PipelineError) as caught:
        runspace.engine.ask({"script": "Import-WinhostNative"})
    assert caught.value.error_id == "Winhost.PartNeeded,Add-WinhostNative"
    runspace.engine.ask({"script": definitions([part for part in compiling if part not in reading])})
    assert runspace.engine.ask({"script": "Import-WinhostNative; [WinhostNative].Name"}) == ["WinhostNative"]


def test_a_real_powershell_takes_a_pipeline_as_it_is_sent() -> None:
    """Line feeds and tabs as themselves.

    Over PSRP as `pwsh -SSHServerMode` speaks it, with the deserializer that is also behind WinRM.
    """
    script = "$text = @'\nfirst & <second>\n\n\tthird\n'@\n# a comment\n$text\n$args[0]\n"
    assert psrp._script_element(script).text == script
    pool = ClientRunspacePool()
    command = [find_engine(), "-NoLogo", "-NoProfile", "-SSHServerMode"]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        ended = threading.Timer(PATIENCE_S, server.kill)
        ended.start()
        try:
            pool.open()
            _send(server, pool)
            _until(server, pool, RunspacePoolStateEvent, [])
            pipeline = ClientPowerShell(pool)
            pipeline.add_script(script, use_local_scope=False)
            pipeline.add_argument("{}")
            pipeline.start()
            _send(server, pool)
            output: list[Any] = []
            _until(server, pool, PipelineStateEvent, output)
        finally:
            ended.cancel()
            server.kill()
    assert output == ["first & <second>\n\n\tthird", "{}"]


def _send(server: "subprocess.Popen[bytes]", pool: ClientRunspacePool) -> None:
    begun: set[uuid.UUID] = set()
    assert server.stdin
    while (payload := pool.data_to_send(1 << 20)) is not None:
        whose = payload.pipeline_id or uuid.UUID(int=0)
        if payload.pipeline_id and whose not in begun:
            begun.add(whose)
            server.stdin.write(f"<Command PSGuid='{whose}' />\n".encode())
        data = payload.data
        if payload.pipeline_id:
            data = data.replace(b"_x000A_", b"\n").replace(b"_x0009_", b"\t")
            size = len(data) - FRAGMENT_HEAD
            data = data[: FRAGMENT_HEAD - 4] + size.to_bytes(4, "big") + data[FRAGMENT_HEAD:]
        server.stdin.write(
            f"<Data Stream='Default' PSGuid='{whose}'>{base64.b64encode(data).decode()}</Data>\n".encode()
        )
        server.stdin.flush()


def _until(
    server: "subprocess.Popen[bytes]", pool: ClientRunspacePool, kind: type[PSRPEvent], output: list[Any]
) -> None:
    assert server.stdout
    for line in server.stdout:
        found = re.match(rb"<Data Stream='\w+' PSGuid='([^']+)'>([^<]*)", line)
        if not found:
            continue
        whose = uuid.UUID(found[1].decode())
        pool.receive_data(PSRPPayload(base64.b64decode(found[2]), StreamType.default, whose if whose.int else None))
        while (event := pool.next_event()) is not None:
            if isinstance(event, PipelineOutputEvent):
                output.append(event.data)
            if isinstance(event, kind) and getattr(event, "state", None) is not None and int(event.state) >= 2:
                return
    raise AssertionError("PowerShell ended before it answered")


def test_the_script_of_security_md_recognizes_what_was_sent(tmp_path: Path) -> None:
    request = json.dumps({"calls": [{"resource": "VmMmio", "verb": "set"}]})
    sent = SCRIPTS.needed(request)
    text = SCRIPTS.text(sent)
    altered = text.replace("\n# winhost part: vm_mmio/read\n", "\n# winhost part: vm_mmio/read\nGet-Date\n")
    events = []
    for block, whole in (("ours", text), ("altered", altered), ("other", "Get-ChildItem .Properties")):
        pieces = [whole[at : at + 15_000] for at in range(0, len(whole), 15_000)]
        events += [[str(at + 1), len(pieces), piece, block] for at, piece in enumerate(pieces)]
    (tmp_path / "events.json").write_text(json.dumps(events[::-1]))
    (tmp_path / parts.PUBLISHED).write_text(published_digests())
    (script,) = re.findall(r"```powershell\n(.*?)```", SECURITY.read_text("utf-8"), re.DOTALL)
    (tmp_path / "check.ps1").write_text(
        "function Get-WinEvent { param($FilterHashtable)\n"
        "  foreach ($each in (Get-Content -Raw events.json | ConvertFrom-Json)) {\n"
        "    [pscustomobject]@{ Properties = @($each | ForEach-Object { [pscustomobject]@{ Value = $_ } }) } } }\n"
        f"@(& {{\n{script}\n}}) | ConvertTo-Json\n"
    )
    command = [find_engine(), "-NoLogo", "-NoProfile", "-NonInteractive", "-File", "check.ps1"]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=True, cwd=tmp_path)
    found = {(each["Block"], each["Part"]): each["AsPublished"] for each in json.loads(done.stdout)}
    assert {part: good for (block, part), good in found.items() if block == "ours"} == dict.fromkeys(sent, True)
    assert [part for (block, part), good in found.items() if block == "altered" and not good] == ["vm_mmio/read"]
    assert {block for block, _ in found} == {"ours", "altered"}
