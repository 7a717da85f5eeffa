"""The way to a Windows host, by what its fleet file says is spoken there."""

import logging

from winhost.connect.agent import Agent, Fits, Wire, anything
from winhost.connect.guard import shown_address
from winhost.connect.logged import brief, logged
from winhost.connect.sent_parts import Scripts
from winhost.core.dataclass import dataclass
from winhost.model.fleet import Host, WireKind

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WindowsConnector:
    """Opens sessions on one host of the fleet; `scripts`: what the wire sends of the agent; `fits`: see Agent."""

    target: Host
    scripts: Scripts
    fits: Fits = anything

    @property
    def host(self) -> str:
        return self.target.name

    def open(self) -> Agent:
        """Raises Unreachable, CertificateRefused, AuthenticationFailed, TimedOut."""
        how = self.target.transport
        at = shown_address(self.target.address, how.port)
        if how.kind is WireKind.LOCAL:
            from winhost.connect.this_computer import LocalWire

            return Agent(LocalWire(self.target, self.scripts), how.call_timeout, self.fits)
        doing = f"open {how.kind}, {'https' if how.tls else 'http'}, {at}, {how.auth} as {brief(how.user)}"
        with logged(log, self.target.name, doing):
            if how.kind is WireKind.WINRS:
                from winhost.connect.winrs import WinrsWire

                wire: Wire = WinrsWire(self.target, self.scripts)
            else:
                from winhost.connect.psrp import PsrpWire

                wire = PsrpWire(self.target, self.scripts)
        return Agent(wire, how.call_timeout, self.fits)
