"""Become root on a Linux. The password is sent to sudo's standard input when sudo prompts for it, and nowhere else."""

import time
from contextlib import suppress
from dataclasses import field
from typing import Any

from winhost.connect.wire_errors import AuthenticationFailed, one_line
from winhost.core.dataclass import dataclass
from winhost.model.fleet import LinuxHost

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_PAUSE_S = 0.02
_MAX_OUTPUT = 64 * 1024  # bytes that are read before the prompt

# sudo has no error codes. In the C locale it prints these phrases, and sudo-rs the second of each line.
_REFUSALS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("SudoNeedsTty", ("must have a tty", "a terminal is required")),
    ("SudoNeedsPassword", ("a password is required", "interactive authentication is required")),
    ("SudoNotAllowed", ("not in the sudoers file", "not allowed", "may not run", "i'm afraid i can't do that")),
    ("SudoWrongPassword", ("incorrect password attempt", "incorrect authentication attempt")),
)
_ADVICE = {
    "SudoNeedsTty": (
        "sudo runs there only from a terminal (requiretty in sudoers), and winhost has none.",
        "On the machine, with visudo: Defaults:{user} !requiretty",
    ),
    "SudoNeedsPassword": (
        "sudo asks for a password, and fleet.yaml names none.",
        "Name it at {at}, as env:NAME; or on the machine, with visudo: {user} ALL=(ALL) NOPASSWD: ALL",
    ),
    "SudoNotAllowed": (
        "sudoers does not let this user become root.",
        "On the machine, as root: usermod -aG sudo {user}",
    ),
    "SudoWrongPassword": ("sudo did not accept the password. winhost tried it once.", "Check {at}"),
    "SudoSilent": (
        "sudo neither started nor asked in the words that winhost gave it.",
        "On the machine: sudo -k -S true. If PAM asks in words of its own, with visudo: Defaults passprompt_override",
    ),
    "SudoMissing": ("There is no sudo on the machine.", "On the machine, as root: apt-get install sudo"),
    "SudoFailed": ("sudo did not start.", "On the machine: sudo -k -S true"),
}


def root_command(linux: LinuxHost, token: str, python: str) -> str:
    """Return the command that runs a program as root. python: a program that prints its argument when it starts; token:
    that argument and the prompt, random so that no other output can be mistaken for it.
    """
    options = f"-k -S -p {token}" if linux.sudo_password else "-n"
    return f"exec env LC_ALL=C sudo {options} -- {python} {token}"


@dataclass
class SudoLogon:
    """Starts a program with sudo on an open channel. Raises AuthenticationFailed, UsageError."""

    linux: LinuxHost
    token: str
    endpoint: str
    _output: bytes = field(default=b"", init=False)

    def become_root(self, channel: Any, seconds: float) -> None:
        """Wait until the program runs. The password is sent only when sudo prints the prompt with the token."""
        end = time.monotonic() + seconds
        token, out, is_password_sent = self.token.encode(), b"", False
        while time.monotonic() < end and len(self._output) + len(out) < _MAX_OUTPUT:
            if channel.recv_stderr_ready():
                self._output += channel.recv_stderr(4096)
            if self._output.count(token) > is_password_sent:
                if is_password_sent:
                    raise self._refused_error("SudoWrongPassword")
                self._send_password(channel)
                is_password_sent = True
            elif channel.recv_ready():
                out += channel.recv(1)  # the agent's answers follow
                if out.endswith(token + b"\n"):
                    return
            elif channel.exit_status_ready() and not channel.recv_stderr_ready():
                raise self._end_error(channel)
            else:
                time.sleep(_PAUSE_S)
        raise self._refused_error("SudoSilent")

    def _send_password(self, channel: Any) -> None:
        assert self.linux.sudo_password is not None
        password = self.linux.sudo_password.resolve().reveal()
        if "\n" in password or "\0" in password:
            raise self.linux.sudo_password.unreadable_error("it has several lines, and sudo reads one")
        is_lost = False
        try:
            channel.sendall((password + "\n").encode())
        except OSError:
            is_lost = True  # raised below, without frames that hold the password
        del password
        if is_lost:
            raise self._refused_error("SudoFailed")

    def _end_error(self, channel: Any) -> AuthenticationFailed:
        with suppress(OSError):
            self._output += channel.recv_stderr(4096)
        if channel.exit_status in (_NOT_FOUND, _NOT_EXECUTABLE):
            return self._refused_error("SudoMissing")
        output = self._output.decode("utf-8", "replace").casefold()
        for code, phrases in _REFUSALS:
            if any(phrase in output for phrase in phrases):
                return self._refused_error(code)
        return self._refused_error("SudoFailed")

    def _refused_error(self, code: str) -> AuthenticationFailed:
        meaning, hint = _ADVICE[code]
        linux = self.linux
        output = self._output.replace(self.token.encode(), b"").decode("utf-8", "replace").strip()
        setting = linux.position_of("sudo_password") or "ssh.sudo_password in fleet.yaml"
        return AuthenticationFailed(
            linux.name,
            f"sudo, for user {one_line(linux.user)}{': ' if output else ''}{one_line(output)[-200:]}",
            endpoint=self.endpoint,
            code=code,
            meaning=meaning,
            hint=f"{hint.format(user=linux.user, at=setting)}; then: winhost detect {linux.name.partition('/')[0]}",
        )
