"""The connector for a Windows host, which opens the wire that its fleet file names."""

import logging

from winhost.connect.agent import Agent, Fits, Wire, accept_any
from winhost.connect.guard import format_address
from winhost.connect.logged import logged, shorten
from winhost.connect.sent_parts import Scripts
from winhost.core.dataclass import dataclass
from winhost.model.fleet import Host, WireKind

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WindowsConnector:
    """Opens sessions with one host. scripts: the agent's text in parts; fits: see Agent."""

    target: Host
    scripts: Scripts
    fits: Fits = accept_any

    @property
    def host(self) -> str:
        return self.target.name

    def open(self) -> Agent:
        """Open a session. Raises Unreachable, CertificateRefused, AuthenticationFailed, TimedOut."""
        how = self.target.transport
        endpoint = format_address(self.target.address, how.port)
        if how.kind is WireKind.LOCAL:
            from winhost.connect.this_computer import LocalWire

            return Agent(LocalWire(self.target, self.scripts), how.call_timeout, self.fits)
        doing = f"open {how.kind}, {'https' if how.tls else 'http'}, {endpoint}, {how.auth} as {shorten(how.user)}"
        with logged(log, self.target.name, doing):
            if how.kind is WireKind.WINRS:
                from winhost.connect.winrs import WinrsWire

                wire: Wire = WinrsWire(self.target, self.scripts)
            else:
                from winhost.connect.psrp import PsrpWire

                wire = PsrpWire(self.target, self.scripts)
        return Agent(wire, how.call_timeout, self.fits)
