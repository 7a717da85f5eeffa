"""Errors of the connection to a host and of its answers: whoever catches them does something else for each."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from winhost.core.answers import Json, MissingFact, RemoteFault, Unknown
from winhost.model.errors import DriftError, Exit, UsageError, WinhostError, visible

BAD_ANSWER = "Winhost.BadAnswer"  # what came back is not the agent's; ours, no host says it


def one_line(text: object) -> str:
    """Words of a library or a host on one line, with nothing in them that a terminal would obey."""
    return visible(" ".join(str(text).split()))


class Failure(StrEnum):
    """The reasons why there is no session with a host."""

    OTHER = "other"
    NAME = "name"
    ROUTE = "route"
    REFUSED = "refused"
    SILENT = "silent"
    NO_TLS = "no-tls"
    ONLY_TLS = "only-tls"
    CUT = "cut"
    REDIRECT = "redirect"
    NOT_WSMAN = "not-wsman"
    STARTING = "starting"
    BUSY = "busy"
    ENDPOINT = "endpoint"


# Each kind: what it means, and what to do about it; {host} and {transport} are filled in.
_ADVICE: Mapping[Failure, tuple[str, str]] = {
    Failure.OTHER: (
        "Nothing was changed there. Is it on, is PowerShell remoting enabled, is the port open?",
        "On the host: Enable-PSRemoting",
    ),
    Failure.NAME: (
        "DNS has no address for that name, so nothing was sent.",
        "Check hosts.{host}.address in fleet.yaml, the DNS server and the VPN",
    ),
    Failure.ROUTE: (
        "This machine has no network path to that address, so nothing was sent.",
        "Check the VPN, the network and hosts.{host}.address in fleet.yaml",
    ),
    Failure.REFUSED: (
        "The machine is up, but nothing listens at that port.",
        "On the host: Enable-PSRemoting. Or correct {transport}.port in fleet.yaml",
    ),
    Failure.SILENT: (
        "It is off, a firewall drops the connection, or the address is not its own.",
        "Check that the host is on, hosts.{host}.address in fleet.yaml, and the firewalls on the way",
    ),
    Failure.NO_TLS: (
        "fleet.yaml asks for TLS, and the port does not speak it. Nothing was sent.",
        "Name the HTTPS port at {transport}.port (usually 5986), or set {transport}.tls: false",
    ),
    Failure.ONLY_TLS: (
        "fleet.yaml asks for plain HTTP, and the port speaks TLS.",
        "Set {transport}.tls: true, or name the HTTP port at {transport}.port (usually 5985)",
    ),
    Failure.CUT: (
        "Nothing was changed there. It may be restarting, or the port speaks another protocol.",
        "Wait a little, and check {transport}.port and {transport}.tls in fleet.yaml",
    ),
    Failure.REDIRECT: (
        "winhost follows no redirect: what is behind it may be another machine, and would get the logon. "
        "WinRM itself never redirects, so this is another service, or somebody in between.",
        "Check hosts.{host}.address and {transport}.port in fleet.yaml",
    ),
    Failure.NOT_WSMAN: (
        "Nothing was changed there. Another service listens at that port.",
        "Check hosts.{host}.address and {transport}.port in fleet.yaml. "
        "On the host, winrm enumerate winrm/config/listener shows the right port",
    ),
    Failure.STARTING: (
        "Nothing was changed there. The service is still starting, or is overloaded.",
        "Wait a little",
    ),
    Failure.BUSY: (
        "Nothing was changed there. This user has too many sessions open there.",
        "Wait until some have ended. On the host: Get-WSManInstance -ResourceURI shell -Enumerate",
    ),
    Failure.ENDPOINT: (
        "Nothing was changed there. WinRM answers, and opens no session of this kind.",
        "On the host: Get-PSSessionConfiguration shows what may be opened; Enable-PSRemoting restores it",
    ),
}


class WireError(WinhostError):
    """The connection to a host failed, so that there is no answer.

    at: address and port, as `10.0.0.5 port 5986`, where they are known; detail: the words of a library or of the host.
    """

    exit_code = Exit.UNREACHABLE
    category = "ConnectionError"  # of the fault that facts carry
    host: str

    @staticmethod
    def named(host: str, at: str) -> str:
        """The host, and where winhost looked for it."""
        return f"{host} at {at}" if at else host


class Unreachable(WireError):
    """There is no session, so nothing was asked yet: no connection, no name, no listener, no remoting.

    code, problem, meaning, hint: where they are not those of the failure.
    """

    def __init__(
        self,
        host: str,
        detail: str,
        *,
        at: str = "",
        failure: Failure = Failure.OTHER,
        code: str = "Unreachable",
        problem: str = "cannot be reached",
        meaning: str | None = None,
        hint: str | None = None,
    ) -> None:
        means, advice = _ADVICE[failure]
        advice = advice.format(host=host, transport=f"hosts.{host}.transport")
        super().__init__(
            code,
            what=f"{self.named(host, at)} {problem}: {detail}",
            meaning=meaning or means,
            hint=hint or f"{advice}; then: winhost detect {host}",
            host=host,
        )
        self.detail, self.at, self.failure = detail, at, failure


NO_SESSION = "answers, but opens no session"


def no_session(host: str, detail: str, *, at: str, failure: Failure) -> Unreachable:
    """Something answers, but opens no session: too many are open, it is starting, or it is no remoting at all."""
    return Unreachable(host, detail, at=at, failure=failure, code="NoSession", problem=NO_SESSION)


class Distrust(StrEnum):
    """The faults of a certificate."""

    UNTRUSTED = "untrusted"
    EXPIRED = "expired"
    NOT_YET_VALID = "not-yet-valid"
    OTHER_NAME = "other-name"


_CERTIFICATES: Mapping[Distrust, tuple[str, str, str]] = {
    Distrust.UNTRUSTED: (
        "a certificate that is not trusted here",
        "Either the certificate is self-signed or of a private CA, or this is not your host.",
        "Name its CA at hosts.{host}.transport.verify in fleet.yaml (a path to a PEM file).",
    ),
    Distrust.EXPIRED: (
        "a certificate that has expired",
        "Its CA is trusted; only its time is over.",
        "On the host, give the HTTPS listener a new one: winrm enumerate winrm/config/listener shows the old one.",
    ),
    Distrust.NOT_YET_VALID: (
        "a certificate that is not valid yet",
        "Its CA is trusted; the clock of the host, of its CA or of this machine is wrong.",
        "Compare the clocks of this machine and the host.",
    ),
    Distrust.OTHER_NAME: (
        "a certificate for another name",
        "Its CA is trusted; it is not for the name in fleet.yaml. Either that is an alias, or this is not your host.",
        "Use a name from the certificate at hosts.{host}.address in fleet.yaml.",
    ),
}


def certificate_refused(host: str, detail: str, *, at: str, distrust: Distrust) -> WireError:
    """The host answers, but cannot prove who it is."""
    shown, meaning, advice = _CERTIFICATES[distrust]
    return WireError(
        "CertificateRefused",
        what=f"{WireError.named(host, at)} showed {shown}: {detail}",
        meaning=f"No password was sent. {meaning}",
        hint=f"{advice.format(host=host)} Then: winhost detect {host}",
        host=host,
    )


_DENIED = (
    "User and secret are right; this user lacks the right to log on remotely, or remoting is disabled. A local account "
    "of Administrators is refused as well while UAC filters it, where LocalAccountTokenFilterPolicy is not 1."
)
_WRONG = (
    "The host is reachable; only the logon failed: user or secret is wrong, or the account is locked. "
    "If they are right: the host may refuse NTLM (a policy, Protected Users), know itself by another name than this "
    "address, or take a local account for one of the domain."
)


class AuthenticationFailed(WireError):
    """The host answers and refuses the logon. `password_at`: where the fleet file refers to the password.

    denied: user and secret are right, and this user may not log on this way; code, meaning, hint: where they are not
    those of a logon to Windows.
    """

    category = "AuthenticationError"

    def __init__(
        self,
        host: str,
        detail: str,
        password_at: str | None = None,
        *,
        at: str = "",
        denied: bool = False,
        code: str = "AuthenticationFailed",
        meaning: str | None = None,
        hint: str | None = None,
    ) -> None:
        secret = password_at or f"hosts.{host}.transport.password in fleet.yaml"
        advice = (
            "On the host, make the user an administrator, and: Enable-PSRemoting. On a machine of a domain, use an "
            "account of the domain"
        )
        super().__init__(
            code,
            what=f"{self.named(host, at)} refused the logon: {detail}",
            meaning=meaning or (_DENIED if denied else _WRONG),
            hint=hint or f"{advice if denied else f'Check the user and {secret}'}; then: winhost detect {host}",
            host=host,
        )


def no_common_method(host: str, offered: Sequence[str], used: str, *, at: str) -> AuthenticationFailed:
    """The host offers no method of logging on that this wire speaks."""
    error = AuthenticationFailed(
        host,
        f"it offers only {' and '.join(offered)}",
        at=at,
        code="NoCommonMethod",
        meaning=f"No logon was tried: fleet.yaml says {used}, which the host does not offer. winhost speaks Negotiate, "
        "NTLM and Basic, and neither Kerberos nor CredSSP by itself.",
        hint="On the host, winrm get winrm/config/service/auth shows what it offers; "
        r"Set-Item WSMan:\localhost\Service\Auth\Negotiate $true adds Negotiate. "
        + (f"Or set hosts.{host}.transport.auth: basic in fleet.yaml, with TLS; " if "Basic" in offered else "")
        + f"then: winhost detect {host}",
    )
    error.what = (
        f"{WireError.named(host, at)} offers no method of logging on that winhost uses here: {' and '.join(offered)}"
    )
    return error


class TimedOut(WireError):
    """No answer in time. What was asked may still be running on the host. opening: nothing was asked yet; timeouts: the
    part of the host in fleet.yaml that has them.
    """

    category = "OperationTimeout"

    def __init__(
        self, host: str, detail: str, *, at: str = "", opening: bool = False, timeouts: str = "transport"
    ) -> None:
        setting = f"hosts.{host.partition('/')[0]}.{timeouts}.call_timeout"
        super().__init__(
            "TimedOut",
            what=f"{self.named(host, at)} did not answer in time: {detail}",
            meaning="It accepted the connection but opened no session in time. No request was sent."
            if opening
            else "The request may still be running there.",
            hint=f"Check what answers at that address and port; {setting} allows more time" if opening else None,
            host=host,
        )


class SessionDropped(WireError):
    """The answer was lost: it may have succeeded. Read again; never blindly repeat a `set`."""

    def __init__(self, host: str, detail: str, *, at: str = "") -> None:
        super().__init__(
            "SessionDropped",
            what=f"the session with {self.named(host, at)} broke off: {detail}",
            meaning="The request may have been carried out.",
            host=host,
        )


class ReachAnew(SessionDropped):
    """The host undoes the change by itself unless it is asked for again in a new session."""


class RemoteError(WinhostError):
    """The script on the host failed. `before` and `after`: the state around it, where the host could report it."""

    host: str

    def __init__(
        self,
        host: str,
        fault: RemoteFault,
        doing: str,
        before: Mapping[str, Json] | None = None,
        after: Mapping[str, Json] | None = None,
        warnings: tuple[str, ...] = (),
        *,
        code: str = "RemoteError",
    ) -> None:
        codes = ", ".join(part for part in (fault.category, fault.code, *fault.hresults) if part)
        super().__init__(
            code,
            what=f"{host}: {doing}: {one_line(fault)} ({codes})",
            meaning="winhost sends its own agent, so something on the host or on the network changed its answer."
            if fault.code == BAD_ANSWER
            else None,
            host=host,
        )
        self.fault, self.doing = fault, doing
        self.before, self.after, self.warnings = before, after, warnings


def bad_answer(host: str, why: str, doing: str) -> RemoteError:
    """An answer that is not the agent's, or not the one that was asked for."""
    return RemoteError(host, RemoteFault("InvalidResult", BAD_ANSWER, message=why), doing)


def not_found(host: str, fault: RemoteFault, doing: str, *around: Any) -> RemoteError:
    """The instance does not exist, which differs from a host that cannot be read. around: as of RemoteError."""
    return RemoteError(host, fault, doing, *around, code="NotFound")


class NotAvailable(WinhostError):
    """A resource cannot be read until `needs` is available: a stopped service must not look like a missing VM."""

    def __init__(self, host: str, doing: str, needs: str) -> None:
        super().__init__("NotAvailable", what=f"{host}: {doing}: not possible until {needs} is available", host=host)
        self.doing, self.needs = doing, needs


def linux_not_running(host: str, doing: str, needs: str) -> NotAvailable:
    """The Linux that takes turns with Windows is not running."""
    error = NotAvailable(host, doing, needs)
    error.what = f"{host}: {doing}: Windows runs now, and not its Linux"
    error.hint = f"Start that, once: winhost boot {host} linux --accept restart --console"
    return error


class Drifted(DriftError):
    """The host is not as the plan saw it; nothing was changed. `differences`: property → (expected, found)."""

    def __init__(self, host: str, doing: str, differences: Mapping[str, tuple[Json, Json]]) -> None:
        listed = "; ".join(f"{name} was {old!r}, is {new!r}" for name, (old, new) in differences.items())
        super().__init__(
            "Drifted",
            what=f"{host} is not as planned: {doing}: {listed}",
            meaning="It was changed after the plan was made; applying the plan could overwrite that change.",
            hint=f"Plan again: winhost plan {host}",
            host=host,
        )
        self.differences = differences


_SSH = "ssh"  # stands for a cmdlet: no agent runs a program of this name
_OURS = "Winhost."
_FAMILIES: Mapping[str, type[WinhostError]] = {"InvalidArgument": UsageError, "NotSpecified": WinhostError}


def fault_of(error: WinhostError) -> RemoteFault:
    """The reason why the Linux of a host could not be asked, in the form that facts carry."""
    usage = "InvalidArgument" if isinstance(error, UsageError) else "NotSpecified"
    category = error.category if isinstance(error, WireError) else usage
    first = f"{error.what}." if error.meaning or error.hint else error.what
    message = " ".join(filter(None, (first, error.meaning, error.hint)))
    return RemoteFault(category, f"{_OURS}{error.code}", cmdlet=_SSH, message=one_line(message))


def error_of(missing: MissingFact, host: str | None = None) -> WinhostError | None:
    """The same error again, with its code and exit code, if a fact is missing because a Linux could not be asked."""
    found = missing.missing
    if not isinstance(found, Unknown) or found.unknown.cmdlet != _SSH or not found.unknown.code.startswith(_OURS):
        return None
    family = _FAMILIES.get(found.unknown.category, WireError)
    return family(found.unknown.code.removeprefix(_OURS), what=found.unknown.message, host=host)
