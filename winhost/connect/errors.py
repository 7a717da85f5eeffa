"""Errors from the wire, kept apart because each asks for something else from whoever catches it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from winhost.model.errors import Exit, UsageFault, WinhostError, visible
from winhost.model.facts import Json, RemoteFault


def one_line(text: object) -> str:
    """Words of a library or a host on one line, with nothing in them that a terminal would obey."""
    return visible(" ".join(str(text).split()))


@dataclass(eq=False)
class WireError(WinhostError):
    """The way to a host, not the host's answer, is at fault. `detail` is the library's word, for the curious."""

    exit_code = Exit.UNREACHABLE

    host: str
    detail: str


class Unreachable(WireError):
    """Nothing was asked yet: no connection, no name, no listener."""

    @property
    def what(self) -> str:
        return f"{self.host} cannot be reached: {self.detail}"

    @property
    def meaning(self) -> str | None:
        return "Nothing was changed there. Is it on, is PowerShell remoting enabled, is the port open?"

    @property
    def hint(self) -> str | None:
        return f"On the host: Enable-PSRemoting. From here, again: winhost detect {self.host}"


class NoSession(Unreachable):
    """Something answers, but opens no session: too many are open, it is starting, or it is no remoting at all."""

    @property
    def what(self) -> str:
        return f"{self.host} answers, but opens no session: {self.detail}"

    @property
    def meaning(self) -> str | None:
        return "Nothing was changed there. It may still be starting, or this user has too many sessions open there."

    @property
    def hint(self) -> str | None:
        return f"Wait a little, and look at hosts.{self.host}.transport.port; then: winhost detect {self.host}"


class CertificateRefused(WireError):
    """The host answers, but cannot prove who it is."""

    @property
    def what(self) -> str:
        return f"{self.host} showed a certificate that is not trusted here: {self.detail}"

    @property
    def meaning(self) -> str | None:
        return "No password was sent. Either the certificate is self-signed or this is not your host."

    @property
    def hint(self) -> str | None:
        return f"Name its CA at hosts.{self.host}.transport.verify in fleet.yaml (a path to a PEM file)."


@dataclass(eq=False)
class BundleUnusable(UsageFault):
    """The CA bundle that the host's certificate is to be checked against is not there, or is none."""

    host: str
    path: str
    why: str

    @property
    def what(self) -> str:
        return f"the CA bundle {visible(self.path)} for {self.host} cannot be used: {self.why}"

    @property
    def hint(self) -> str | None:
        return f"Name a PEM file at hosts.{self.host}.transport.verify in fleet.yaml, relative to that file."


@dataclass(eq=False)
class AuthenticationFailed(WireError):
    """The host answers and refuses the logon. `password_at`: where the fleet file refers to the password."""

    password_at: str | None = None

    @property
    def what(self) -> str:
        return f"{self.host} refused the logon: {self.detail}"

    @property
    def meaning(self) -> str | None:
        return "The host is reachable; only the logon failed. User, secret or the right to log on remotely is wrong."

    @property
    def hint(self) -> str | None:
        place = self.password_at or f"hosts.{self.host}.transport.password in fleet.yaml"
        return f"Look at the user and at {place}, then: winhost detect {self.host}"


class TimedOut(WireError):
    """No answer in time. What was asked may still be running on the host."""

    @property
    def what(self) -> str:
        return f"{self.host} did not answer in time: {self.detail}"

    @property
    def meaning(self) -> str | None:
        return "The call may still be running there."


class SessionDropped(WireError):
    """The answer was lost: it may have succeeded. Read again; never blindly repeat a `set`."""

    @property
    def what(self) -> str:
        return f"the session with {self.host} broke off: {self.detail}"

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
