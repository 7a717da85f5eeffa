"""The text that a remote shell starts powershell.exe with, in a real one: what goes in and out is what was meant."""

import subprocess
from base64 import b64decode

import pytest

from tests.powershell.conftest import BUSY_S
from winhost.connect.remote_powershell import OPTIONS, encoded_command, format_input
from winhost.lab.powershell.powershell_engine import find_engine

ECHO = "function Invoke-Echo { param([string]$Json) $script:Kept = $Json; $script:Kept }\nInvoke-Echo -Json $args[0]\n"
HOSTILE = [
    "{}",
    "$(Get-Date) `$x 'a' \"b\" \u2019",
    "a\r\nb\n",
    "\u202eright to left",
    "x" * 300_000,
    "\U0001f600 Größe",
]


def call(script: str, request: str) -> tuple[int, list[str], str]:
    command = [find_engine(), *OPTIONS, encoded_command()]
    done = subprocess.run(
        command, input=format_input(script, request), capture_output=True, timeout=BUSY_S, check=False
    )
    return done.returncode, [b64decode(line).decode() for line in done.stdout.split()], done.stderr.decode()


@pytest.mark.parametrize("request_", HOSTILE, ids=range(len(HOSTILE)))
def test_a_request_arrives_as_it_was_sent_and_so_does_its_answer(request_: str) -> None:
    assert call(ECHO, request_) == (0, [request_], "")


def test_each_output_is_a_line_and_a_fault_is_an_exit_code_with_a_sentence() -> None:
    assert call("'a'; 'b'", "{}") == (0, ["a", "b"], "")
    code, said, complained = call("throw 'no such thing'", "{}")
    assert (code, said) == (1, [])
    assert "no such thing" in complained
