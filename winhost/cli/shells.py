"""Write commands for the user's shell: POSIX, Windows PowerShell 5.1 and later, or cmd.exe."""

import os
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from shlex import quote

from winhost.model.secrets import SecretRef


class Shell(Enum):
    """A kind of shell."""

    POSIX = "sh"
    POWERSHELL = "powershell"
    CMD = "cmd"


_MODULES = ("documents\\powershell\\modules", "documents\\windowspowershell\\modules")


def detect_shell(os_name: str = os.name, environment: Mapping[str, str] = os.environ) -> Shell:
    """Recognize the user's shell by its environment variables: PowerShell puts the user's own modules first in
    PSModulePath, cmd.exe sets PROMPT, Git's bash sets MSYSTEM (unverified: not tried on Windows).
    """
    if os_name != "nt" or "MSYSTEM" in environment:
        return Shell.POSIX
    modules = environment.get("PSModulePath", "").lower().rstrip("\\").split(";")
    if "PROMPT" not in environment or any(each.rstrip("\\").endswith(_MODULES) for each in modules):
        return Shell.POWERSHELL
    return Shell.CMD


def command_line(arguments: Iterable[str], shell: Shell | None = None) -> str:
    """Join arguments to a command line, each quoted only if necessary. shell: None for the user's own shell."""
    return " ".join(_quoted(argument, shell or detect_shell()) for argument in arguments)


def _quoted(argument: str, shell: Shell) -> str:
    if shell is Shell.POSIX:
        return quote(argument)
    if re.fullmatch(r"[A-Za-z0-9_./:\\@%+=-]*[A-Za-z0-9_./:\\%+=-]", argument) and not argument.startswith("@"):
        return argument
    return f"'{argument.replace(chr(39), chr(39) * 2)}'" if shell is Shell.POWERSHELL else f'"{argument}"'


def command_to_show_key(key: SecretRef, shell: Shell) -> str | None:
    """Return the command that prints a key which winhost keeps; None for a reference of another kind."""
    if key.scheme == "file":
        return command_line(("type" if shell is Shell.CMD else "cat", key.target), shell)
    service, _, user = key.target.rpartition("/")
    return command_line(("keyring", "get", service, user), shell) if key.scheme == "keyring" else None


def post_with_key(url: str, body: str, shell: Shell, key: SecretRef | None = None) -> str:
    """Return the command that posts JSON to a URL with an API key, which the shell reads.

    body: in ASCII; key: where the shell reads the key, by default the environment variable API_KEY. PowerShell has
    another program under the name `curl`, so it gets Invoke-RestMethod.
    """
    key_expression = _key_expression(shell, key or SecretRef("env", "API_KEY"))
    if shell is Shell.POWERSHELL:
        headers = f'@{{Authorization = "Bearer {key_expression}"}}'
        quoted_body = body.replace("'", "''")
        request = f"-Method Post -Uri {url} -Headers {headers} -ContentType application/json"
        return f"Invoke-RestMethod {request} -Body '{quoted_body}'"
    escaped = body.replace('"', '\\"')
    quoted_body = f'"{escaped}"' if shell is Shell.CMD else quote(body)
    headers = f'-H "Authorization: Bearer {key_expression}" -H "Content-Type: application/json"'
    return f"curl {headers} -d {quoted_body} {url}"


def _key_expression(shell: Shell, key: SecretRef) -> str:
    """Return the expression, for use within double quotes, that reads a secret. cmd.exe can read only its
    environment.
    """
    if shell is Shell.CMD:
        return f"%{key.target if key.scheme == 'env' else 'API_KEY'}%"
    powershell = shell is Shell.POWERSHELL
    if key.scheme == "env":
        return f"$env:{key.target}" if powershell else f"${key.target}"
    if key.scheme == "file":
        path = key.target
        if path.startswith("~/"):  # neither shell expands it within quotes
            home, path = ("$HOME", path[2:])
            return f"$(Get-Content {home}/{_quoted(path, shell)})" if powershell else f"$(cat {home}/{quote(path)})"
        return f"$(Get-Content {_quoted(path, shell)})" if powershell else f"$(cat {quote(path)})"
    first = "Select-Object -First 1" if powershell else "head -n 1"
    call = command_to_show_key(key, shell) or command_line(key.command, shell)
    return f"$({'& ' if powershell and call.startswith(chr(39)) else ''}{call} | {first})"
