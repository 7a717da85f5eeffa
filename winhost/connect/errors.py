"""Errors from the wire, kept apart because each asks for something else from whoever catches it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.facts import Json, RemoteFault

BAD_ANSWER = "Winhost.BadAnswer"  # what came back is not the agent's; ours, no host says it


def one_line(text: object) -> str:
    """Words of a library or a host on one line, with nothing in them that a terminal would obey."""
    return visible(" ".join(str(text).split()))


class Failure(StrEnum):
    """What kind of trouble keeps us from a session."""

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


@dataclass(eq=False)
class WireError(WinhostError):
    """The way to a host, not the host's answer, is at fault. `detail` is the library's word, for the curious.

    at: address and port, as `10.0.0.5 port 5986`, where they are known.
    """

    exit_code = Exit.UNREACHABLE

    host: str
    detail: str
    at: str = field(default="", kw_only=True)

    @property
    def named(self) -> str:
        """The host, and where we looked for it."""
        return f"{self.host} at {self.at}" if self.at else self.host


@dataclass(eq=False)
class Unreachable(WireError):
    """Nothing was asked yet: no connection, no name, no listener."""

    failure: Failure = field(default=Failure.OTHER, kw_only=True)

    @property
    def what(self) -> str:
        return f"{self.named} cannot be reached: {self.detail}"

    @property
    def meaning(self) -> str | None:
        return _ADVICE[self.failure][0]

    @property
    def hint(self) -> str | None:
        advice = _ADVICE[self.failure][1].format(host=self.host, transport=f"hosts.{self.host}.transport")
        return f"{advice}; then: winhost detect {self.host}"


class NoSession(Unreachable):
    """Something answers, but opens no session: too many are open, it is starting, or it is no remoting at all."""

    @property
    def what(self) -> str:
        return f"{self.named} answers, but opens no session: {self.detail}"


class Redirected(NoSession):
    """Something answers, and sends us elsewhere."""


class Distrust(StrEnum):
    """What is wrong with a certificate."""

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


@dataclass(eq=False)
class CertificateRefused(WireError):
    """The host answers, but cannot prove who it is."""

    distrust: Distrust = field(default=Distrust.UNTRUSTED, kw_only=True)

    @property
    def what(self) -> str:
        return f"{self.named} showed {_CERTIFICATES[self.distrust][0]}: {self.detail}"

    @property
    def meaning(self) -> str | None:
        return f"No password was sent. {_CERTIFICATES[self.distrust][1]}"

    @property
    def hint(self) -> str | None:
        return f"{_CERTIFICATES[self.distrust][2].format(host=self.host)} Then: winhost detect {self.host}"


@dataclass(eq=False)
class BundleUnusable(UsageError):
    """The CA bundle that the host's certificate is to be checked against is not there, or is none."""

    host: str
    path: str
    why: str
    named: bool = True
    """Whether fleet.yaml names it; else the environment does."""

    @property
    def what(self) -> str:
        return f"the CA bundle {visible(self.path)} for {self.host} cannot be used: {self.why}"

    @property
    def hint(self) -> str | None:
        if not self.named:
            return (
                f"REQUESTS_CA_BUNDLE names it: correct that, or set hosts.{self.host}.transport.verify in fleet.yaml."
            )
        return f"Name a PEM file at hosts.{self.host}.transport.verify in fleet.yaml, relative to that file."


@dataclass(eq=False)
class AuthenticationFailed(WireError):
    """The host answers and refuses the logon. `password_at`: where the fleet file refers to the password.

    denied: user and secret are right, and this user may not come in this way.
    """

    password_at: str | None = None
    denied: bool = field(default=False, kw_only=True)

    @property
    def what(self) -> str:
        return f"{self.named} refused the logon: {self.detail}"

    @property
    def meaning(self) -> str | None:
        if self.denied:
            return "User and secret are right; this user lacks the right to log on remotely, or remoting is disabled."
        return "The host is reachable; only the logon failed: user or secret is wrong, or the account is locked."

    @property
    def hint(self) -> str | None:
        if self.denied:
            advice = "On the host, make the user an administrator, and: Enable-PSRemoting"
        else:
            place = self.password_at or f"hosts.{self.host}.transport.password in fleet.yaml"
            advice = f"Check the user and {place}"
        return f"{advice}; then: winhost detect {self.host}"


@dataclass(eq=False)
class TimedOut(WireError):
    """No answer in time. What was asked may still be running on the host. opening: nothing was asked yet."""

    opening: bool = field(default=False, kw_only=True)

    @property
    def what(self) -> str:
        return f"{self.named} did not answer in time: {self.detail}"

    @property
    def meaning(self) -> str | None:
        if self.opening:
            return "It takes the connection and opens no session in time. Nothing was asked of it."
        return "What was asked may still be running there."

    @property
    def hint(self) -> str | None:
        if not self.opening:
            return None
        place = f"hosts.{self.host.partition('/')[0]}"
        return f"Check what answers at that address and port; more time is given at {place}.transport.call_timeout"


class SessionDropped(WireError):
    """The answer was lost: it may have succeeded. Read again; never blindly repeat a `set`."""

    @property
    def what(self) -> str:
        return f"the session with {self.named} broke off: {self.detail}"

    @property
    def meaning(self) -> str | None:
        return "What was asked may have been done."


@dataclass(eq=False)
class RemoteError(WinhostError):
    """The script said no. `before` and `after`, when the host could tell them, say what is so now."""

    host: str
    fault: RemoteFault
    doing: str
    before: Mapping[str, Json] | None = None
    after: Mapping[str, Json] | None = None
    warnings: tuple[str, ...] = field(default=())

    @property
    def what(self) -> str:
        codes = ", ".join(part for part in (self.fault.category, self.fault.code, *self.fault.hresults) if part)
        return f"{self.host}: {self.doing}: {one_line(self.fault)} ({codes})"

    @property
    def meaning(self) -> str | None:
        if self.fault.code != BAD_ANSWER:
            return None
        return "winhost brings its agent along: something on the host, or on the way, changed what it said."


class NotFound(RemoteError):
    """There is no such instance: not the same as being unable to look."""


@dataclass(eq=False)
class NotAvailable(WinhostError):
    """It cannot be looked at before `needs` is there: a stopped service must not look like an absent VM."""

    host: str
    doing: str
    needs: str

    @property
    def what(self) -> str:
        return f"{self.host}: {self.doing}: not possible before {self.needs} is there"


@dataclass(eq=False)
class Drifted(WinhostError):
    """The host is not as the plan saw it; nothing was changed. `differences`: property → (expected, found)."""

    exit_code = Exit.DRIFT

    host: str
    doing: str
    differences: Mapping[str, tuple[Json, Json]]

    @property
    def what(self) -> str:
        listed = "; ".join(f"{name} was {old!r}, is {new!r}" for name, (old, new) in self.differences.items())
        return f"{self.host} is not as planned: {self.doing}: {listed}"

    @property
    def meaning(self) -> str | None:
        return "Somebody changed it since the plan was made, so the plan's way back would not be theirs."

    @property
    def hint(self) -> str | None:
        return f"Plan again: winhost plan {self.host}"
