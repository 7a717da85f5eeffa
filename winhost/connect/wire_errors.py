"""Errors of the connection to a host and of its answers. Each class is handled differently by its callers."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from winhost.core.answers import Json, MissingFact, RemoteFault, Unknown
from winhost.model.errors import DriftError, Exit, UsageError, WinhostError, visible

BAD_ANSWER = "Winhost.BadAnswer"  # the output is no answer of the agent; made here and not by a host


def one_line(text: object) -> str:
    """Return text of a library or a host on one line, with control characters escaped."""
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


# By kind: what it means, and what to do about it, with {host} and {transport}.
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
    Failure.STARTING: ("Nothing was changed there. The service is still starting, or is overloaded.", "Wait a little"),
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

    endpoint: address and port, as `10.0.0.5 port 5986`, if known; detail: the text of a library or of the host.
    """

    exit_code = Exit.UNREACHABLE
    category = "ConnectionError"  # of the fault in facts
    host: str

    @staticmethod
    def described(host: str, endpoint: str) -> str:
        """Return the host with its endpoint."""
        return f"{host} at {endpoint}" if endpoint else host


class Unreachable(WireError):
    """No session could be opened, so no request was sent: no connection, no name, no listener, no remoting.

    code, problem, meaning, hint: override those of the failure.
    """

    def __init__(
        self,
        host: str,
        detail: str,
        *,
        endpoint: str = "",
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
            what=f"{self.described(host, endpoint)} {problem}: {detail}",
            meaning=meaning or means,
            hint=hint or f"{advice}; then: winhost detect {host}",
            host=host,
        )
        self.detail, self.endpoint, self.failure = detail, endpoint, failure


NO_SESSION = "answers, but opens no session"


def no_session_error(host: str, detail: str, *, endpoint: str, failure: Failure) -> Unreachable:
    """Make the error for a service that answers but opens no session: too many are open, it is starting, or it is no
    remoting.
    """
    return Unreachable(host, detail, endpoint=endpoint, failure=failure, code="NoSession", problem=NO_SESSION)


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


def certificate_error(host: str, detail: str, *, endpoint: str, distrust: Distrust) -> WireError:
    """Make the error for a host whose certificate is not accepted."""
    shown, meaning, advice = _CERTIFICATES[distrust]
    return WireError(
        "CertificateRefused",
        what=f"{WireError.described(host, endpoint)} showed {shown}: {detail}",
        meaning=f"No password was sent. {meaning}",
        hint=f"{advice.format(host=host)} Then: winhost detect {host}",
        host=host,
    )


_DENIED_MEANING = (
    "User and secret are right; this user lacks the right to log on remotely, or remoting is disabled. A local account "
    "of Administrators is refused as well while UAC filters it, where LocalAccountTokenFilterPolicy is not 1."
)
_WRONG_MEANING = (
    "The host is reachable; only the logon failed: user or secret is wrong, or the account is locked. "
    "If they are right: the host may refuse NTLM (a policy, Protected Users), know itself by another name than this "
    "address, or take a local account for one of the domain."
)


class AuthenticationFailed(WireError):
    """The host answers and refuses the logon. password_at: the setting of the password in the fleet file; denied: user
    and secret are right, and this user may not log on this way; code, meaning, hint: override those of Windows.
    """

    category = "AuthenticationError"

    def __init__(
        self,
        host: str,
        detail: str,
        password_at: str | None = None,
        *,
        endpoint: str = "",
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
            what=f"{self.described(host, endpoint)} refused the logon: {detail}",
            meaning=meaning or (_DENIED_MEANING if denied else _WRONG_MEANING),
            hint=hint or f"{advice if denied else f'Check the user and {secret}'}; then: winhost detect {host}",
            host=host,
        )


def no_common_method_error(host: str, offered: Sequence[str], used: str, *, endpoint: str) -> AuthenticationFailed:
    """Make the error for a host that offers no authentication method which this wire supports."""
    error = AuthenticationFailed(
        host,
        f"it offers only {' and '.join(offered)}",
        endpoint=endpoint,
        code="NoCommonMethod",
        meaning=f"No logon was tried: fleet.yaml says {used}, which the host does not offer. winhost speaks Negotiate, "
        "NTLM and Basic, and neither Kerberos nor CredSSP by itself.",
        hint="On the host, winrm get winrm/config/service/auth shows what it offers; "
        r"Set-Item WSMan:\localhost\Service\Auth\Negotiate $true adds Negotiate. "
        + (f"Or set hosts.{host}.transport.auth: basic in fleet.yaml, with TLS; " if "Basic" in offered else "")
        + f"then: winhost detect {host}",
    )
    offers = f"offers no method of logging on that winhost uses here: {' and '.join(offered)}"
    error.what = f"{WireError.described(host, endpoint)} {offers}"
    return error


class TimedOut(WireError):
    """There was no answer in time. The request may still be running on the host. opening: no request was sent yet;
    timeouts: the part of the host in fleet.yaml that has them.
    """

    category = "OperationTimeout"

    def __init__(
        self, host: str, detail: str, *, endpoint: str = "", opening: bool = False, timeouts: str = "transport"
    ) -> None:
        setting = f"hosts.{host.partition('/')[0]}.{timeouts}.call_timeout"
        super().__init__(
            "TimedOut",
            what=f"{self.described(host, endpoint)} did not answer in time: {detail}",
            meaning="It accepted the connection but opened no session in time. No request was sent."
            if opening
            else "The request may still be running there.",
            hint=f"Check what answers at that address and port; {setting} allows more time" if opening else None,
            host=host,
        )


class SessionDropped(WireError):
    """The answer was lost, and the request may have succeeded. Read again; never blindly repeat a `set`."""

    def __init__(self, host: str, detail: str, *, endpoint: str = "") -> None:
        super().__init__(
            "SessionDropped",
            what=f"the session with {self.described(host, endpoint)} broke off: {detail}",
            meaning="The request may have been carried out.",
            host=host,
        )


class ReconnectRequired(SessionDropped):
    """The host undoes the change unless a new session confirms it."""


class RemoteError(WinhostError):
    """The script on the host failed. before, after: the states around it, if the host could read them."""

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


def bad_answer_error(host: str, why: str, doing: str) -> RemoteError:
    """Make the error for an output that is no answer of the agent, or not to this request."""
    return RemoteError(host, RemoteFault("InvalidResult", BAD_ANSWER, message=why), doing)


def not_found_error(host: str, fault: RemoteFault, doing: str, *around: Any) -> RemoteError:
    """Make the error for an instance that does not exist. around: more arguments of RemoteError."""
    return RemoteError(host, fault, doing, *around, code="NotFound")


class NotAvailable(WinhostError):
    """A resource cannot be read until `needs` is available: a stopped service must not look like a missing VM."""

    def __init__(self, host: str, doing: str, needs: str) -> None:
        super().__init__("NotAvailable", what=f"{host}: {doing}: not possible until {needs} is available", host=host)
        self.doing, self.needs = doing, needs


def linux_not_running_error(host: str, doing: str, needs: str) -> NotAvailable:
    """Make the error for a Linux next to Windows that is not running."""
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


_SSH_CMDLET = "ssh"  # in place of a cmdlet's name, for errors that no agent makes
_CODE_PREFIX = "Winhost."
_FAMILIES: Mapping[str, type[WinhostError]] = {"InvalidArgument": UsageError, "NotSpecified": WinhostError}


def fault_of(error: WinhostError) -> RemoteFault:
    """Convert the error of a host's Linux to the form in facts."""
    usage = "InvalidArgument" if isinstance(error, UsageError) else "NotSpecified"
    category = error.category if isinstance(error, WireError) else usage
    first = f"{error.what}." if error.meaning or error.hint else error.what
    message = " ".join(filter(None, (first, error.meaning, error.hint)))
    return RemoteFault(category, f"{_CODE_PREFIX}{error.code}", cmdlet=_SSH_CMDLET, message=one_line(message))


def error_of(missing: MissingFact, host: str | None = None) -> WinhostError | None:
    """Convert a missing fact back to the error of the host's Linux, with its code and exit code; None if the fact is
    missing for another reason.
    """
    missing_fact = missing.missing
    if (
        not isinstance(missing_fact, Unknown)
        or missing_fact.unknown.cmdlet != _SSH_CMDLET
        or not missing_fact.unknown.code.startswith(_CODE_PREFIX)
    ):
        return None
    family = _FAMILIES.get(missing_fact.unknown.category, WireError)
    return family(missing_fact.unknown.code.removeprefix(_CODE_PREFIX), what=missing_fact.unknown.message, host=host)
