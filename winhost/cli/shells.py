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


def own_shell(system: str = os.name, environment: Mapping[str, str] = os.environ) -> Shell:
    """Recognize the user's shell by its environment variables. PowerShell puts the user's own modules first, cmd.exe
    sets PROMPT, Git's bash MSYSTEM (unverified: not tried on a Windows).
    """
    if system != "nt" or "MSYSTEM" in environment:
        return Shell.POSIX
    modules = environment.get("PSModulePath", "").lower().rstrip("\\").split(";")
    if "PROMPT" not in environment or any(each.rstrip("\\").endswith(_MODULES) for each in modules):
        return Shell.POWERSHELL
    return Shell.CMD


def command_line(words: Iterable[str], shell: Shell | None = None) -> str:
    """Join words to one line, each quoted only if necessary. shell: None for the user's own."""
    return " ".join(_quoted(word, shell or own_shell()) for word in words)


def _quoted(word: str, shell: Shell) -> str:
    if shell is Shell.POSIX:
        return quote(word)
    if re.fullmatch(r"[A-Za-z0-9_./:\\@%+=-]*[A-Za-z0-9_./:\\%+=-]", word) and not word.startswith("@"):
        return word
    return f"'{word.replace(chr(39), chr(39) * 2)}'" if shell is Shell.POWERSHELL else f'"{word}"'


def line_to_see(key: SecretRef, shell: Shell) -> str | None:
    """The command that prints a key which winhost keeps; None for a reference of another kind."""
    if key.scheme == "file":
        return command_line(("type" if shell is Shell.CMD else "cat", key.target), shell)
    service, _, user = key.target.rpartition("/")
    return command_line(("keyring", "get", service, user), shell) if key.scheme == "keyring" else None


def post_with_key(url: str, body: str, shell: Shell, key: SecretRef | None = None) -> str:
    """A request with JSON in ASCII and the key, read as its reference says, or else from API_KEY. PowerShell's own
    `curl` is another program.
    """
    read = _read_in(shell, key or SecretRef("env", "API_KEY"))
    if shell is Shell.POWERSHELL:
        headers = f'@{{Authorization = "Bearer {read}"}}'
        sent = body.replace("'", "''")
        return (
            f"Invoke-RestMethod -Method Post -Uri {url} -Headers {headers} -ContentType application/json -Body '{sent}'"
        )
    escaped = body.replace('"', '\\"')
    sent = f'"{escaped}"' if shell is Shell.CMD else quote(body)
    return f'curl -H "Authorization: Bearer {read}" -H "Content-Type: application/json" -d {sent} {url}'


def _read_in(shell: Shell, key: SecretRef) -> str:
    """The expression within double quotes that reads a secret. cmd.exe reads only its environment."""
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
    call = line_to_see(key, shell) or command_line(key.command, shell)
    return f"$({'& ' if powershell and call.startswith(chr(39)) else ''}{call} | {first})"
