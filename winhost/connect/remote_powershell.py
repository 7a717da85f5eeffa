"""One call of the agent in a powershell.exe of its own: its input and its output, whichever wire carries them."""

import json
from base64 import b64decode, b64encode
from importlib.resources import files

from winhost.connect.libraries import only_output
from winhost.connect.wire_errors import RemoteError, SessionDropped, bad_answer, one_line
from winhost.core.answers import RemoteFault
from winhost.model.once import once

OPTIONS = ("-NoLogo", "-NoProfile", "-NonInteractive", "-OutputFormat", "Text", "-EncodedCommand")


@once
def encoded_command() -> str:
    """The constant text that reads the agent and its request, as powershell.exe takes it on its command line."""
    text = (files(__package__) / "winrs.ps1").read_bytes().decode("ascii").replace("\r\n", "\n")
    return b64encode(text.encode("utf-16-le")).decode()


def input_of(script: str, request: str) -> bytes:
    """One line of JSON in ASCII, which every code page has. In base64 the script would be a third longer."""
    return json.dumps({"script": script, "request": request}).encode("ascii") + b"\r\n"


def answer_of(host: str, at: str, stdout: bytes, stderr: bytes, code: int) -> str:
    """Raises SessionDropped, RemoteError."""
    lines = (one_line(line) for line in stderr.decode("utf-8", "replace").splitlines())
    why = next(filter(None, lines), "")
    if code and not why:
        raise SessionDropped(host, f"powershell.exe was ended on the host (exit code {code})", at=at)
    if code:
        raise RemoteError(host, RemoteFault("NotSpecified", f"ExitCode.{code}", message=why), "Invoke-Winhost")
    output = only_output(host, stdout.decode("ascii", "replace").split())
    try:
        return b64decode(output, validate=True).decode()
    except ValueError:
        why = f"what came back is no base64 of UTF-8: {one_line(output[:80])!r}"
        raise bad_answer(host, why, "Invoke-Winhost") from None
