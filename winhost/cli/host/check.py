"""Check that a host can be reached and managed, step by step, and say what to do about a failed step."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from winhost.cli.output import describe_error, say
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
from winhost.resources.shape import check_records
from winhost.resources.windows.parts import WindowsScripts

NAME, PORT, TLS, HOST_KEY, LOGON = "name", "port", "TLS", "host key", "logon"
SUDO, ADMINISTRATOR, POWERSHELL, SESSION = "root", "administrator", "PowerShell", "session"
_FULL_LANGUAGE = "FullLanguage"


@dataclass(frozen=True)
class TriedStep:
    """One step. works: None if it was not tried or is not known; found: what was found, for people; do: how to mend
    it.
    """

    step: str
    works: bool | None
    found: str
    do: str | None = None


@dataclass(frozen=True)
class CheckedHost:
    """The steps of a host. ready: no step failed."""

    host: str
    address: str
    ready: bool
    steps: tuple[TriedStep, ...]


@dataclass(frozen=True)
class HostCheck:
    """A check of a host. error: the error that ended it, if one did."""

    checked: CheckedHost
    error: WinhostError | None


def check_host(host: AnyHost, *, new: bool = False) -> HostCheck:
    """Try each step; changes nothing. new: fleet.yaml does not have the host, so no hint refers to that file."""
    steps: list[TriedStep] = []
    error: WinhostError | None = None
    try:
        for each in _check_linux(host) if isinstance(host, LinuxHost) else _check_windows(host):
            steps.append(each)
    except WinhostError as ending:
        error = ending
        steps += _remaining_steps(host, ending, {each.step for each in steps}, new)
    is_ready = all(each.works is not False for each in steps)
    return HostCheck(CheckedHost(host.name, host.address, is_ready, tuple(steps)), error)


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


def _remaining_steps(host: AnyHost, error: WinhostError, done_steps: set[str], new: bool) -> Iterator[TriedStep]:
    """Yield the steps that have no result yet: those before the failed one, the failed one, and those not tried."""
    failed_step, steps = _failed_step(error), (SESSION, ADMINISTRATOR, POWERSHELL)
    if isinstance(host, LinuxHost):
        steps = (NAME, PORT, HOST_KEY, LOGON, *((SUDO,) if host.sudo else ()), SESSION)
    elif host.transport.kind is not WireKind.LOCAL:
        steps = (NAME, PORT, *((TLS,) if host.transport.tls else ()), LOGON, *steps)
    planned = [each for each in steps if each not in done_steps]
    failed_index = planned.index(failed_step) if failed_step in planned else 0
    for index, step in enumerate(planned):
        if index < failed_index:
            yield TriedStep(step, True, _SUCCESS_TEXTS.get(step, "works"))
        elif index == failed_index:
            advice = _NEW_HOST_HINTS.get((isinstance(host, LinuxHost), step), error.hint) if new else error.hint
            do = "\n".join(text for text in (error.meaning, advice) if text)
            yield TriedStep(step, False, describe_error(error), do or None)
        else:
            yield TriedStep(step, None, "not tried")


_SUCCESS_TEXTS = {NAME: "it has an address", PORT: "it is open", TLS: "its certificate is trusted", LOGON: "accepted"}
_NEW_HOST_HINTS: Mapping[tuple[bool, str], str] = {
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


def _failed_step(error: WinhostError) -> str:
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
    return _FAILED_STEPS.get(error.failure, PORT if error.code == "NotThere" else SESSION)


_PORT_FAILURES = (Failure.ROUTE, Failure.REFUSED, Failure.SILENT)
_FAILED_STEPS = {Failure.NAME: NAME, Failure.NO_TLS: TLS, **dict.fromkeys(_PORT_FAILURES, PORT)}


def _check_port(host: AnyHost, address: str, port: int, seconds: int) -> Iterator[TriedStep]:
    """Check that the address resolves and the port is open. Raises Unreachable, TimedOut."""
    linux = isinstance(host, LinuxHost)
    guard = Guard(host.name, format_address(address, port), timeouts="ssh" if linux else "transport")
    guard.begin(seconds * 3, opening=True)
    with connect_socket(
        guard, address, port, seconds, make_error=no_sshd_error if linux else Unreachable
    ) as connection:
        reached_address = connection.getpeername()[0]
    yield TriedStep(
        NAME, True, f"{address} is {reached_address}" if reached_address != address else f"{address} is an address"
    )
    yield TriedStep(PORT, True, f"{port} is open")


def _check_windows(host: Host) -> Iterator[TriedStep]:
    transport = host.transport
    is_local = transport.kind is WireKind.LOCAL
    if not is_local:
        yield from _check_port(host, host.address, transport.port, transport.connect_timeout)
    with closing(WindowsConnector(host, WindowsScripts(), check_records).open()) as agent:
        session: Mapping[str, Any] = agent.get("Session", {}) or {}
    if not is_local:
        if transport.tls:
            certificate = "its certificate is trusted" if transport.verify else "its certificate is not checked"
            yield TriedStep(TLS, True, certificate)
        yield TriedStep(
            LOGON, True, f"{transport.auth} as {session.get('user')}{'' if transport.tls else '; it seals messages'}"
        )
    yield TriedStep(SESSION, True, "the agent of winhost answers")
    yield from session_rights(session, is_local)


def session_rights(session: Mapping[str, Any], is_local: bool) -> Iterator[TriedStep]:
    """Check what a session of Windows may do. is_local: it is one of this machine."""
    is_administrator, user = session.get("administrator"), one_line(session.get("user"))
    if is_administrator is True:
        yield TriedStep(ADMINISTRATOR, True, f"{user} has the rights of an administrator")
    elif is_administrator is not False:
        yield TriedStep(ADMINISTRATOR, None, "it could not be read")
    else:
        do = (
            "Start the terminal with `Run as administrator`, and run winhost there"
            if is_local
            else "On the host, in an elevated PowerShell: Add-LocalGroupMember -SID S-1-5-32-544 -Member "
            f"'{user.replace(chr(39), chr(39) * 2)}'"
        )
        yield TriedStep(ADMINISTRATOR, False, f"{user} has no rights of an administrator in this session", do)
    language_mode, version = one_line(session.get("language_mode")), one_line(session.get("powershell"))
    if language_mode == _FULL_LANGUAGE:
        yield TriedStep(POWERSHELL, True, f"{version}, {language_mode}")
    else:
        do = "A policy of AppLocker or App Control restricts PowerShell for this account: ask its author to exempt it"
        yield TriedStep(POWERSHELL, False, f"{version}, {language_mode}; winhost needs {_FULL_LANGUAGE}", do)


def _check_linux(host: LinuxHost) -> Iterator[TriedStep]:
    if host.jump is None:
        yield from _check_port(host, host.address, host.port, host.connect_timeout)
    else:
        through = format_address(host.jump.address, host.jump.port)
        yield TriedStep(NAME, None, f"reached through {through}")
        yield TriedStep(PORT, None, f"reached through {through}")
    connector = SshConnector(host, linux_scripts.session_text(), check_records)
    with closing(connector.open()) as agent:
        agent.read(("LinuxSystem",))
    yield TriedStep(HOST_KEY, True, "it matches the recorded one")
    proof = "key" if host.key else "key of the ssh-agent" if host.agent else "password"
    yield TriedStep(LOGON, True, f"as {one_line(host.user)} with a {proof}")
    if host.sudo:
        yield TriedStep(SUDO, True, f"sudo {'with' if host.sudo_password else 'without'} a password")
    yield TriedStep(SESSION, True, "the agent of winhost answers, in Python")
