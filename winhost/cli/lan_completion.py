"""A completion at the address by which other machines reach an endpoint, where this computer is one that may."""

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_network

from winhost.connect.tunnel import SshWay
from winhost.connect.way_there import own_address
from winhost.core.dataclass import dataclass
from winhost.engine.host_session import HostSession
from winhost.engine.run_state import RunState
from winhost.serving.deployed import DeployedGateway

_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_CONNECT = 15  # seconds


@contextmanager
def closed_where_it_fails(connection: http.client.HTTPConnection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


class NotForUs(Exception):
    """This computer cannot ask an endpoint that may serve others well; the text says why."""


@dataclass(frozen=True)
class LanEndpoint:
    """address: of the machine that other machines connect to; allowed: networks that may."""

    address: str
    port: int
    tls: bool
    allowed: tuple[str, ...]

    @property
    def url(self) -> str:
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if self.tls else 'http'}://{shown}:{self.port}"

    @property
    def not_from_here(self) -> str | None:
        """Say in a sentence why this computer cannot ask there."""
        try:
            here = own_address(self.address)
        except OSError:
            return f"nothing leads from this computer to {self.address}"
        if any(ip_address(here) in ip_network(each) for each in self.allowed):
            return None
        return f"this computer ({here}) is in none of the networks that may: {', '.join(self.allowed)}"

    def connected(self, within: float) -> http.client.HTTPConnection:
        """Its certificate is checked before any key is sent. Raises NotForUs, OSError."""
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        connection = kind(self.address, self.port, timeout=_CONNECT)
        try:
            with closed_where_it_fails(connection):
                connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise NotForUs(f"its certificate is for other names, or not known here: {error.verify_message}") from None
        connection.sock.settimeout(within)
        return connection


def lan_endpoint(
    record: RunState, gateway: DeployedGateway, session: HostSession, host: str | None
) -> LanEndpoint | None:
    """None where the endpoint is for its own machine, or nobody knows its address. host: where the host of the plan is
    reached. Raises WinhostError.
    """
    address, _, port = gateway.listen.rpartition(":")
    bare = address.strip("[]")
    if bare not in _ANY and ip_address(bare).is_loopback:
        return None
    allowed = allowed_networks(record, port)
    reached = reached_address(record, gateway, host, session.way)
    return LanEndpoint(reached, int(port), gateway.tls, allowed) if reached and allowed else None


def allowed_networks(record: RunState, port: str) -> tuple[str, ...]:
    """Whose machines may come to this port, by the plan."""
    return tuple(_allowed(record, "PortForward", port)) or tuple(_allowed(record, "FirewallPort", port))


def socket_through_ssh(tunnel: Callable[[str, int], socket.socket], gateway: DeployedGateway) -> socket.socket:
    """Connect to a gateway on the machine that SSH leads to, wherever it listens. tunnel: of an open connection.

    Its certificate is for the names of clients; which machine this is, SSH has shown. Raises WinhostError, OSError.
    """
    address, _, port = gateway.listen.rpartition(":")
    bare = address.strip("[]")
    made = tunnel({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bare, bare), int(port))  # noqa: S104 - compared, not bound
    if not gateway.tls:
        return made
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        return unchecked.wrap_socket(made)
    except BaseException:
        made.close()
        raise


def reached_address(
    record: RunState, gateway: DeployedGateway, host: str | None, way: Callable[[], SshWay | None]
) -> str | None:
    """The address at which this computer reaches an endpoint that listens beyond its own machine; None behind a jump
    host. host: as in `lan_endpoint`; way: to the Linux that serves.
    """
    address, _, port = gateway.listen.rpartition(":")
    bare = address.strip("[]")
    mirrored = any(each.resource == "HyperVFirewall" for stage in record.stages for each in stage.desired)
    if mirrored or any(_allowed(record, "PortForward", port)):
        return host
    if bare not in _ANY:
        return bare
    found = way()
    return found.address if found and not found.jump else None


def _allowed(record: RunState, resource: str, port: str) -> Iterator[str]:
    for stage in record.stages:
        for each in stage.desired:
            networks = each.desired.get("allowed")
            if each.resource == resource and each.key.get("port") == port and isinstance(networks, list | tuple):
                yield from map(str, networks)
