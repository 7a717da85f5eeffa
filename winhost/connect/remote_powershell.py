"""The input and output of powershell.exe for one call of the agent, for the wires that start one for each call."""

import json
from base64 import b64decode, b64encode
from importlib.resources import files

from winhost.connect.libraries import single_output
from winhost.connect.wire_errors import RemoteError, SessionDropped, bad_answer_error, one_line
from winhost.core.answers import RemoteFault
from winhost.model.once import once

OPTIONS = ("-NoLogo", "-NoProfile", "-NonInteractive", "-OutputFormat", "Text", "-EncodedCommand")


@once
def encoded_command() -> str:
    """Return the constant script that reads the agent and its request, encoded for the command line of
    powershell.exe.
    """
    text = (files(__package__) / "winrs.ps1").read_bytes().decode("ascii").replace("\r\n", "\n")
    return b64encode(text.encode("utf-16-le")).decode()


def format_input(script: str, request: str) -> bytes:
    """Format the input as one line of JSON in ASCII, which all code pages contain. Base64 would be a third longer."""
    return json.dumps({"script": script, "request": request}).encode("ascii") + b"\r\n"


def parse_output(host: str, endpoint: str, stdout: bytes, stderr: bytes, code: int) -> str:
    """Return the agent's answer from the output of powershell.exe. Raises SessionDropped, RemoteError."""
    lines = (one_line(line) for line in stderr.decode("utf-8", "replace").splitlines())
    why = next(filter(None, lines), "")
    if code and not why:
        raise SessionDropped(host, f"powershell.exe was ended on the host (exit code {code})", endpoint=endpoint)
    if code:
        raise RemoteError(host, RemoteFault("NotSpecified", f"ExitCode.{code}", message=why), "Invoke-Winhost")
    output = single_output(host, stdout.decode("ascii", "replace").split())
    try:
        return b64decode(output, validate=True).decode()
    except ValueError:
        why = f"what came back is no base64 of UTF-8: {one_line(output[:80])!r}"
        raise bad_answer_error(host, why, "Invoke-Winhost") from None
