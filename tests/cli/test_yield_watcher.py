"""Tests of the watcher for a desktop: its script parses, and its C# runs against a real gateway."""

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.cli.conftest import Line
from tests.gateway.running import gateway, settings_for
from tests.gateway.test_yielding import DESK, DESK_KEY, DESK_LINE
from tests.processes import PATIENCE_S
from tests.resources.dotnet import compiled_program, linux_sdk, quiet
from tests.resources.test_scripts import Script, calls, does_not_parse, is_plain_text, not_in_51, said
from winhost.resources.windows.windows_scripts import watcher_script

TEXT = watcher_script()
SCRIPT = Script("watch.ps1", TEXT)
(SOURCE,) = re.findall(r"(?ms)^ *\$source = @'\n(.*?)\n'@$", TEXT)
CALLS = {"Add-Type", "ConvertFrom-Json", "Get-CimInstance", "Set-StrictMode", "Start-Sleep"}

HARNESS = r"""
using System;

public static class Harness
{
    public static int Main(string[] asked)
    {
        if (asked[0] == "tell")
        {
            Console.WriteLine(WinhostWatcher.Tell(asked[1], asked[2], asked[3]));
        }
        else if (asked[0] == "wants")
        {
            for (int state = 0; state < 8; state++)
            {
                bool full = WinhostWatcher.Wants(state, true, false);
                Console.WriteLine(full + " " + WinhostWatcher.Wants(state, false, true));
            }
            bool runs = WinhostWatcher.Runs(new[] { "DOTNET.exe" }), other = WinhostWatcher.Runs(new[] { "no.exe" });
            Console.WriteLine(runs + " " + other);
        }
        else
        {
            foreach (string each in asked[1].Split(','))
            {
                Console.WriteLine(WinhostWatcher.Next(each.StartsWith("+"), long.Parse(each.Substring(1))));
            }
        }
        return 0;
    }
}
"""


def test_its_script_is_of_5_1_and_calls_nothing_else() -> None:
    assert [*does_not_parse(SCRIPT), *not_in_51(SCRIPT), *is_plain_text(SCRIPT)] == []
    own = {said(node) for node in SCRIPT.nodes("function_name")}
    assert {call.name for call in calls(SCRIPT)} - own == CALLS


def test_the_command_writes_it_with_what_the_workload_says(line: Line, tmp_path: Path) -> None:
    work = tmp_path / "w.yaml"
    text = "schema: winhost.workload/1\nmodels: {chat: {parameters: 7B, state: sleeping}}\n"
    work.write_text(text)
    assert "availability.yield_to" in line("serve", "watcher", work, "-o", tmp_path / "out").err
    work.write_text(text + "availability: {yield_to: {programs: [game.exe], gpu_memory: 2 GiB}}\n")
    assert line("serve", "watcher", work, "-o", tmp_path / "out").code == 0
    settings = json.loads((tmp_path / "out/settings.json").read_text())
    assert settings == {
        "url": "http://127.0.0.1:8443",
        "programs": ["game.exe"],
        "full_screen": False,
        "unlocked": False,
        "gpu_memory": 2 << 30,
    }
    assert {*re.findall(r"\$settings\.(\w+)", TEXT)} == settings.keys()
    assert (tmp_path / "out/watch.ps1").read_bytes().decode().replace("\r\n", "\n") == TEXT
    assert line("serve", "watcher", work, "-o", tmp_path / "out").code == 2
    told = line("serve", "watcher", work, "-o", tmp_path / "json", "--json").results
    assert [each["file"] for each in told] == [str(tmp_path / "json" / name) for name in ("watch.ps1", "settings.json")]
    assert line("serve", "watcher", work, "--url", "http://10.0.0.5:8443", "-o", tmp_path / "new").code == 2


@pytest.mark.real
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    not (sys.platform == "linux" and shutil.which("npm") and shutil.which("cc")), reason="needs npm, cc"
)
def test_its_program_decides_and_asks_the_gateway(tmp_path: Path) -> None:
    program = compiled_program(tmp_path, [SOURCE, HARNESS])

    def run(*words: str) -> list[str]:
        command = [linux_sdk() / "dotnet", "exec", program, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=quiet())
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]

    assert run("next", "-0,-5,+10,-20,-69,-70,-75,+80,+90") == [
        "",
        "",
        "yield",
        "yield",
        "yield",
        "resume",
        "",
        *["yield"] * 2,
    ]
    full, unlocked = zip(*(each.split() for each in run("wants")[:8]), strict=True)
    assert [state for state, each in enumerate(full) if each == "True"] == [2, 3, 4]
    assert [state for state, each in enumerate(unlocked) if each == "True"] == [2, 3, 4, 5, 6, 7]
    assert run("wants")[8] == "True False"

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    wanted = settings_for(tmp_path, listen={"address": "127.0.0.1", "port": port}, yields={})
    wanted["models"][0]["turns"] = {"gpus": [0], "version": "0.24.0"}
    assert run("tell", url, DESK_KEY, "yield") != [""], "nobody listens"

    def state() -> str:
        with urlopen(Request(f"{url}/winhost/yield", headers=DESK), timeout=PATIENCE_S) as answer:
            return str(json.load(answer)["state"])

    with gateway(tmp_path, wanted, engine_up=False, more_keys=DESK_LINE):
        assert (run("tell", url, DESK_KEY, "yield"), state() in ("yielding", "yielded")) == ([""], True)
        assert (run("tell", f"{url}/", DESK_KEY, "resume"), state()) == ([""], "serving")
        assert run("tell", url, "wh-another-key-that-nobody-knows", "yield") == ["status 401"]
