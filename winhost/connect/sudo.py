"""Becoming root on a Linux: sudo reads the password from its input, when it asks for it, and from nowhere else."""

import time
from contextlib import suppress
from dataclasses import field
from typing import Any

from winhost.connect.wire_errors import AuthenticationFailed, one_line
from winhost.core.dataclass import dataclass
from winhost.model.fleet import LinuxHost

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_PAUSE_S = 0.02
_MOST = 64 * 1024  # bytes that are listened to before it asks

# sudo has no codes. In the C locale it has these words, and sudo-rs the second of each line.
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
    "SudoWrongPassword": (
        "sudo did not accept the password. winhost tried it once.",
        "Check {at}",
    ),
    "SudoSilent": (
        "sudo neither started nor asked in the words that winhost gave it.",
        "On the machine: sudo -k -S true. If PAM asks in words of its own, with visudo: Defaults passprompt_override",
    ),
    "SudoMissing": ("There is no sudo on the machine.", "On the machine, as root: apt-get install sudo"),
    "SudoFailed": ("sudo did not start.", "On the machine: sudo -k -S true"),
}


def program_as_root(linux: LinuxHost, token: str, python: str) -> str:
    """The command. python: a program that prints its argument once it runs; token: random, so that no output of the
    host can pass for it.
    """
    how = f"-k -S -p {token}" if linux.sudo_password else "-n"
    return f"exec env LC_ALL=C sudo {how} -- {python} {token}"


@dataclass
class SudoLogon:
    """One start of a program by sudo, on an open channel. Raises AuthenticationFailed, UsageError."""

    linux: LinuxHost
    token: str
    at: str
    _said: bytes = field(default=b"", init=False)

    def become_root(self, channel: Any, seconds: float) -> None:
        """Wait until the program runs. The password is sent only once sudo asks for it with our prompt."""
        end = time.monotonic() + seconds
        token, out, asked = self.token.encode(), b"", False
        while time.monotonic() < end and len(self._said) + len(out) < _MOST:
            if channel.recv_stderr_ready():
                self._said += channel.recv_stderr(4096)
            if self._said.count(token) > asked:
                if asked:
                    raise self._refused("SudoWrongPassword")
                self._answer(channel)
                asked = True
            elif channel.recv_ready():
                out += channel.recv(1)  # what comes after it is an answer to us
                if out.endswith(token + b"\n"):
                    return
            elif channel.exit_status_ready() and not channel.recv_stderr_ready():
                raise self._ended(channel)
            else:
                time.sleep(_PAUSE_S)
        raise self._refused("SudoSilent")

    def _answer(self, channel: Any) -> None:
        assert self.linux.sudo_password is not None
        password = self.linux.sudo_password.resolve().reveal()
        if "\n" in password or "\0" in password:
            raise self.linux.sudo_password.unreadable("it has several lines, and sudo reads one")
        lost = False
        try:
            channel.sendall((password + "\n").encode())
        except OSError:
            lost = True  # raised below, without the frames that hold the password
        del password
        if lost:
            raise self._refused("SudoFailed")

    def _ended(self, channel: Any) -> AuthenticationFailed:
        with suppress(OSError):
            self._said += channel.recv_stderr(4096)
        if channel.exit_status in (_NOT_FOUND, _NOT_EXECUTABLE):
            return self._refused("SudoMissing")
        words = self._said.decode("utf-8", "replace").casefold()
        for code, signs in _REFUSALS:
            if any(sign in words for sign in signs):
                return self._refused(code)
        return self._refused("SudoFailed")

    def _refused(self, code: str) -> AuthenticationFailed:
        meaning, hint = _ADVICE[code]
        linux = self.linux
        said = self._said.replace(self.token.encode(), b"").decode("utf-8", "replace").strip()
        at = linux.position_of("sudo_password") or "ssh.sudo_password in fleet.yaml"
        return AuthenticationFailed(
            linux.name,
            f"sudo, for user {one_line(linux.user)}{': ' if said else ''}{one_line(said)[-200:]}",
            at=self.at,
            code=code,
            meaning=meaning,
            hint=f"{hint.format(user=linux.user, at=at)}; then: winhost detect {linux.name.partition('/')[0]}",
        )
