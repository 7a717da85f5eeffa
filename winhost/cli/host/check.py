"""Check that a host can be reached and managed: what was found in each step, and what to do if it fails."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from winhost.cli.output import say, what_happened
from winhost.connect.guard import Guard, connect_socket, format_address
from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.ssh import SshConnector
from winhost.connect.ssh_logon import START_SSHD, no_sshd_error
from winhost.connect.windows import WindowsConnector
from winhost.connect.wire_errors import AuthenticationFailed, Failure, Unreachable, one_line
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, WinhostError
from winhost.model.fleet import AnyHost, Host, LinuxHost, WireKind
from winhost.resources.linux import linux_scripts
from winhost.resources.shape import misfit
from winhost.resources.windows.parts import WindowsScripts

NAME, PORT, TLS, HOST_KEY, LOGON = "name", "port", "TLS", "host key", "logon"
SUDO, ADMINISTRATOR, POWERSHELL, SESSION = "root", "administrator", "PowerShell", "session"
_FULL = "FullLanguage"


@dataclass(frozen=True)
class TriedStep:
    """One step. works: None if it was not tried, or nothing depends on it; do: what mends it."""

    step: str
    works: bool | None
    found: str
    do: str | None = None


@dataclass(frozen=True)
class CheckedHost:
    """The steps of a host. ready: nothing failed."""

    host: str
    address: str
    ready: bool
    steps: tuple[TriedStep, ...]


@dataclass(frozen=True)
class HostCheck:
    """A test of a host. error: the error that ended it, if one did."""

    checked: CheckedHost
    error: WinhostError | None


def check_host(host: AnyHost, *, new: bool = False) -> HostCheck:
    """Try each step, and change nothing. new: fleet.yaml does not have the host, so no advice is about it."""
    tried: list[TriedStep] = []
    error: WinhostError | None = None
    try:
        for each in _of_linux(host) if isinstance(host, LinuxHost) else _of_windows(host):
            tried.append(each)
    except WinhostError as ended:
        error = ended
        tried += _ended(host, ended, {each.step for each in tried}, new)
    ready = all(each.works is not False for each in tried)
    return HostCheck(CheckedHost(host.name, host.address, ready, tuple(tried)), error)


def show_check(checked: CheckedHost) -> None:
    good = "can be managed" if checked.ready else "cannot be managed yet"
    address = "" if checked.address == checked.host else f" ({checked.address})"
    say(f"{checked.host}{address}: {good}", fg="green" if checked.ready else "red", bold=True)
    width = max(len(each.step) for each in checked.steps)
    for each in checked.steps:
        mark = {True: "✓", False: "✗", None: "-"}[each.works]
        say(f"  {mark} {each.step.ljust(width)}  {each.found}", hang=width + 4)
        for line in each.do.split("\n") if each.do else ():
            say(f"{' ' * (width + 6)}{line}")


def _ended(host: AnyHost, error: WinhostError, done: set[str], new: bool) -> Iterator[TriedStep]:
    """Yield the steps that were left: those before the one that failed, that one, and those that were not tried."""
    failed, steps = _step_of(error), (SESSION, ADMINISTRATOR, POWERSHELL)
    if isinstance(host, LinuxHost):
        steps = (NAME, PORT, HOST_KEY, LOGON, *((SUDO,) if host.sudo else ()), SESSION)
    elif host.transport.kind is not WireKind.LOCAL:
        steps = (NAME, PORT, *((TLS,) if host.transport.tls else ()), LOGON, *steps)
    planned = [each for each in steps if each not in done]
    at = planned.index(failed) if failed in planned else 0
    for number, step in enumerate(planned):
        if number < at:
            yield TriedStep(step, True, _BEFORE.get(step, "works"))
        elif number == at:
            advice = _OF_NEW.get((isinstance(host, LinuxHost), step), error.hint) if new else error.hint
            do = "\n".join(text for text in (error.meaning, advice) if text)
            yield TriedStep(step, False, what_happened(error), do or None)
        else:
            yield TriedStep(step, None, "not tried")


_BEFORE = {NAME: "it has an address", PORT: "it is open", TLS: "its certificate is trusted", LOGON: "accepted"}
_OF_NEW: Mapping[tuple[bool, str], str] = {
    (False, NAME): "Check the address, the DNS server and the VPN",
    (True, NAME): "Check the address, the DNS server and the VPN",
    (False, PORT): "On the host, in an elevated PowerShell: Enable-PSRemoting\n"
    "A Linux is added by: winhost host add USER@ADDRESS --linux",
    (True, PORT): START_SSHD,
    (False, TLS): "Name its CA, as a PEM file: --ca PATH. Or log on without TLS, with sealed messages: --port 5985",
    (False, LOGON): "Check the user and the password. A local account of the host: HOSTNAME\\USER@ADDRESS",
    (True, LOGON): "Check the user, and the key or the password",
    (False, SESSION): "On the host, in an elevated PowerShell: Enable-PSRemoting",
    (True, SESSION): "On the machine: python3 --version",
}


def _step_of(error: WinhostError) -> str:
    if isinstance(error, HostKeyRefused):
        return HOST_KEY
    if error.code == "CertificateRefused":
        return TLS
    if error.code.startswith("Sudo"):
        return SUDO
    if isinstance(error, AuthenticationFailed | UsageError):
        return LOGON
    if not isinstance(error, Unreachable):
        return SESSION
    return _STEPS.get(error.failure, PORT if error.code == "NotThere" else SESSION)


_ON_THE_WAY = (Failure.ROUTE, Failure.REFUSED, Failure.SILENT)
_STEPS = {Failure.NAME: NAME, Failure.NO_TLS: TLS, **dict.fromkeys(_ON_THE_WAY, PORT)}


def _reached(host: AnyHost, address: str, port: int, seconds: int) -> Iterator[TriedStep]:
    """Raises Unreachable, TimedOut."""
    linux = isinstance(host, LinuxHost)
    guard = Guard(host.name, format_address(address, port), timeouts="ssh" if linux else "transport")
    guard.begin(seconds * 3, opening=True)
    with connect_socket(guard, address, port, seconds, make_error=no_sshd_error if linux else Unreachable) as line:
        found = line.getpeername()[0]
    yield TriedStep(NAME, True, f"{address} is {found}" if found != address else f"{address} is an address")
    yield TriedStep(PORT, True, f"{port} is open")


def _of_windows(host: Host) -> Iterator[TriedStep]:
    how = host.transport
    local = how.kind is WireKind.LOCAL
    if not local:
        yield from _reached(host, host.address, how.port, how.connect_timeout)
    with closing(WindowsConnector(host, WindowsScripts(), misfit).open()) as agent:
        session: Mapping[str, Any] = agent.get("Session", {}) or {}
    if not local:
        if how.tls:
            checked = "its certificate is trusted" if how.verify else "its certificate is not checked"
            yield TriedStep(TLS, True, checked)
        yield TriedStep(LOGON, True, f"{how.auth} as {session.get('user')}{'' if how.tls else '; it seals messages'}")
    yield TriedStep(SESSION, True, "the agent of winhost answers")
    yield from rights(session, local)


def rights(session: Mapping[str, Any], local: bool) -> Iterator[TriedStep]:
    """Check what a session of Windows may do. local: it is one of this machine."""
    found, user = session.get("administrator"), one_line(session.get("user"))
    if found is True:
        yield TriedStep(ADMINISTRATOR, True, f"{user} has the rights of an administrator")
    elif found is not False:
        yield TriedStep(ADMINISTRATOR, None, "it could not be read")
    else:
        do = (
            "Start the terminal with `Run as administrator`, and run winhost there"
            if local
            else "On the host, in an elevated PowerShell: Add-LocalGroupMember -SID S-1-5-32-544 -Member "
            f"'{user.replace(chr(39), chr(39) * 2)}'"
        )
        yield TriedStep(ADMINISTRATOR, False, f"{user} has no rights of an administrator in this session", do)
    mode, version = one_line(session.get("language_mode")), one_line(session.get("powershell"))
    if mode == _FULL:
        yield TriedStep(POWERSHELL, True, f"{version}, {mode}")
    else:
        do = "A policy of AppLocker or App Control restricts PowerShell for this account: ask its author to exempt it"
        yield TriedStep(POWERSHELL, False, f"{version}, {mode}; winhost needs {_FULL}", do)


def _of_linux(host: LinuxHost) -> Iterator[TriedStep]:
    if host.jump is None:
        yield from _reached(host, host.address, host.port, host.connect_timeout)
    else:
        through = format_address(host.jump.address, host.jump.port)
        yield TriedStep(NAME, None, f"reached through {through}")
        yield TriedStep(PORT, None, f"reached through {through}")
    connector = SshConnector(host, linux_scripts.session_text(), misfit)
    with closing(connector.open()) as agent:
        agent.read(("LinuxSystem",))
    yield TriedStep(HOST_KEY, True, "it is the known one")
    proof = "key" if host.key else "key of the ssh-agent" if host.agent else "password"
    yield TriedStep(LOGON, True, f"as {one_line(host.user)} with a {proof}")
    if host.sudo:
        yield TriedStep(SUDO, True, f"sudo {'with' if host.sudo_password else 'without'} a password")
    yield TriedStep(SESSION, True, "the agent of winhost answers, in Python")
