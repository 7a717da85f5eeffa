"""The wire to a Windows host: PowerShell remoting through pypsrp, one runspace per host and command."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winhost.connect.agent import Agent
from winhost.connect.errors import (
    AuthenticationFailed,
    CertificateRefused,
    RemoteError,
    SessionDropped,
    TimedOut,
    Unreachable,
)
from winhost.model.facts import RemoteFault
from winhost.model.fleet import Auth, Host

if TYPE_CHECKING:
    from pypsrp.wsman import WSMan


@dataclass(frozen=True)
class PsrpWay:
    """Opens runspaces on one host of the fleet. `scripts` is the constant text that defines the agent there."""

    target: Host
    scripts: str

    @property
    def host(self) -> str:
        return self.target.name

    def open(self) -> Agent:
        """A runspace with the agent in it. Raises Unreachable, CertificateRefused, AuthenticationFailed, TimedOut."""
        wire = PsrpWire(self.target)
        try:
            wire.send(self.scripts)
        except BaseException:
            wire.close()
            raise
        return Agent(wire, self.target.transport.call_timeout)


class PsrpWire:
    """One runspace. Basic goes only inside TLS or to loopback; the fleet file refuses it elsewhere."""

    def __init__(self, target: Host) -> None:
        from pypsrp.powershell import RunspacePool

        self.host = target.name
        with _translated(target.name, Unreachable):
            self._wsman = _wsman(target)
            self._pool: RunspacePool = RunspacePool(self._wsman)
            self._pool.open()

    def send(self, script: str) -> None:
        """Run constant text in the runspace's own scope, so that what it defines stays."""
        self._run(lambda shell: shell.add_script(script, use_local_scope=False), within=120)

    def invoke(self, request: str, within: float) -> str:
        """One call of the agent. Raises SessionDropped, TimedOut, RemoteError."""
        output = self._run(lambda shell: shell.add_cmdlet("Invoke-Winhost").add_parameter("Json", request), within)
        if len(output) != 1 or not isinstance(output[0], str):
            raise RemoteError(
                self.host, RemoteFault("InvalidResult", message=f"{len(output)} outputs"), "Invoke-Winhost"
            )
        return output[0]

    def close(self) -> None:
        """Close the runspace; a host that is gone has closed it already."""
        with suppress(Exception):
            self._pool.close()
        self._wsman.close()

    def _run(self, build: Callable[[Any], Any], within: float) -> list[Any]:
        from pypsrp.complex_objects import PSInvocationState
        from pypsrp.powershell import PowerShell

        deadline = time.monotonic() + within
        with _translated(self.host, SessionDropped):
            shell = PowerShell(self._pool)
            build(shell)
            shell.begin_invoke()
            while shell.state == PSInvocationState.RUNNING:
                shell.poll_invoke()
                if time.monotonic() > deadline and shell.state == PSInvocationState.RUNNING:
                    # Left running: stopping it half-way would leave the host in a state that nobody asked for.
                    raise TimedOut(self.host, f"no answer after {within:.0f} s")
            if shell.had_errors:
                raise RemoteError(self.host, _first_error(shell.streams.error), "run the agent")
            return list(shell.output)


def _wsman(target: Host) -> "WSMan":
    from pypsrp.wsman import WSMan

    transport = target.transport
    password = transport.password.resolve().reveal() if transport.password else None
    # pypsrp hands this to requests, which takes a path to a CA bundle as well as a bool; its annotation forgets that.
    verify: Any = transport.verify if isinstance(transport.verify, bool) else str(transport.verify)
    return WSMan(
        target.address,
        port=transport.port,
        username=transport.user,
        password=password,
        ssl=transport.tls,
        auth="basic" if transport.auth is Auth.BASIC else transport.auth.value,
        cert_validation=verify,
        # Basic cannot encrypt by itself: the fleet file allows it without TLS on loopback only.
        encryption="never" if transport.auth is Auth.BASIC and not transport.tls else "auto",
        connection_timeout=int(transport.connect_timeout),
        operation_timeout=int(transport.operation_timeout),
        # The host holds a call open for one operation timeout; give its answer time to arrive.
        read_timeout=int(transport.operation_timeout + max(10, transport.connect_timeout)),
        no_proxy=True,
    )


def _first_error(errors: list[Any]) -> RemoteFault:
    if not errors:
        return RemoteFault("NotSpecified")
    first = errors[0]
    return RemoteFault(
        category=str(getattr(first, "reason", None) or "NotSpecified"),
        code=str(getattr(first, "fq_error", None) or ""),
        message=str(first),
    )


@contextmanager
def _translated(host: str, lost: type[Unreachable] | type[SessionDropped]) -> Iterator[None]:
    """Our errors for the library's. A wire that fails is `lost`: before the first call unreachable, then dropped."""
    import requests.exceptions
    from pypsrp.exceptions import AuthenticationError, WinRMError
    from spnego.exceptions import SpnegoError

    try:
        yield
    except (AuthenticationError, SpnegoError) as error:
        raise AuthenticationFailed(host, _short(error)) from error
    except requests.exceptions.SSLError as error:
        raise CertificateRefused(host, _short(error)) from error
    except requests.exceptions.Timeout as error:
        raise TimedOut(host, _short(error)) from error
    except (requests.exceptions.RequestException, WinRMError, OSError) as error:
        raise lost(host, _short(error)) from error


def _short(error: BaseException) -> str:
    """The innermost cause on one line: libraries wrap `Connection refused` in five layers of themselves."""
    inner: BaseException = error
    while (cause := inner.__cause__ or inner.__context__) is not None:
        inner = cause
    return " ".join(str(inner).split())[:300] or type(inner).__name__
