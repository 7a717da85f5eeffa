"""The way to a Windows host, by what its fleet file says is spoken there."""

from dataclasses import dataclass

from winhost.connect.agent import Agent, Fits, Wire, anything
from winhost.model.fleet import Host, WireKind


@dataclass(frozen=True)
class WindowsConnector:
    """Opens sessions on one host of the fleet; `scripts`: see PsrpWire; `fits`: see Agent."""

    target: Host
    scripts: str
    fits: Fits = anything

    @property
    def host(self) -> str:
        return self.target.name

    def open(self) -> Agent:
        """Raises Unreachable, CertificateRefused, AuthenticationFailed, TimedOut."""
        return Agent(self._wire(), self.target.transport.call_timeout, self.fits)

    def _wire(self) -> Wire:
        if self.target.transport.kind is WireKind.WINRS:
            from winhost.connect.winrs import WinrsWire

            return WinrsWire(self.target, self.scripts)
        from winhost.connect.psrp import PsrpWire

        return PsrpWire(self.target, self.scripts)
