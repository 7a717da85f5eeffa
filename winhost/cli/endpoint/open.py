"""Connect from this computer to what a host serves: at its loopback, at its address on the network, or through SSH.
`winhost open` opens a port of this computer that leads there.
"""

import http.client
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import RLock, Thread

import click

from winhost.cli.live_hosts import serving_wire
from winhost.cli.output import say
from winhost.cli.serve.hosts import Targets, is_this_linux, paste_lines
from winhost.cli.serve.target import no_linux, parse_deployed
from winhost.cli.up.first_completion import (
    AccessRefused,
    LanEndpoint,
    allowed_networks,
    connection_through_ssh,
    socket_through_ssh,
)
from winhost.cli.watch import show_progress
from winhost.connect.ssh import SshWire
from winhost.connect.wire_errors import AuthenticationFailed, NotAvailable, SessionDropped, Unreachable, WireError
from winhost.core.dataclass import dataclass
from winhost.engine.serving_session import ServingSession
from winhost.model.errors import UsageError, WinhostError
from winhost.model.fleet import AnyHost
from winhost.serving.deployed import Deployed, DeployedGateway

_TRIES, _PAUSE_S = 3, 2


class SshTunnel:
    """Connections to ports of a host's Linux through one SSH connection, which is made again when it is lost."""

    def __init__(self, host: AnyHost) -> None:
        self._host = host
        self._wire: SshWire | None = None
        self._lock = RLock()

    def wire(self) -> SshWire:
        """Return the connection, and open it if necessary. Raises WinhostError."""
        with self._lock:
            if self.lost:
                self.close()
                self._wire = serving_wire(self._host)
            assert self._wire
            return self._wire

    @property
    def lost(self) -> bool:
        with self._lock:
            return self._wire is None or not self._wire.alive

    def connect(self, address: str, port: int) -> socket.socket:
        """Raises Unreachable if nothing listens there, WinhostError."""
        try:
            return self.wire().tunnel(address, port)
        except SessionDropped:
            self.close()
            return self.wire().tunnel(address, port)

    def again(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Connect again, trying a few times; a refused logon is not tried twice. Raises the last WinhostError."""
        for left in range(_TRIES - 1, -1, -1):
            try:
                self.wire()
            except WireError as error:
                if not left or isinstance(error, AuthenticationFailed):
                    raise
                sleep(_PAUSE_S)
            else:
                return

    def close(self) -> None:
        with self._lock:
            if self._wire is not None:
                self._wire.close()
            self._wire = None


@dataclass(frozen=True)
class Endpoint:
    """A way to an endpoint. url: its address for this computer, None through SSH; key: the reference that its plan had;
    not_direct: why it is not asked at its address; tunnel: the SSH connection that leads there.
    """

    host: str
    deployed: Deployed
    url: str | None
    key: str | None
    connect: Callable[[float], http.client.HTTPConnection]
    not_direct: str | None = None
    tunnel: SshTunnel | None = None

    @property
    def models(self) -> Sequence[str]:
        return [each.model for each in self.deployed.published]


@contextmanager
def endpoint_of(name: str, targets: Targets) -> Iterator[Endpoint]:
    """Connect as far as it takes to say where the endpoint is. Raises WinhostError."""
    run, host = targets.serving.get(name), targets.host(name)
    direct: LanEndpoint | None = None
    if run and run.address is not None:
        allowed = allowed_networks(run.record, run.deployed.gateway.port)
        if allowed or is_this_linux(run.host):
            direct = LanEndpoint(run.address, run.deployed.gateway, allowed)
    why = direct.refusal if direct and not is_this_linux(host) else None
    if run and direct and why is None:
        yield Endpoint(name, run.deployed, run.url, run.key, lambda within: _at(name, direct, within))
        return
    if host is None:
        raise UsageError(
            "NoWayThere",
            what=f"{name}: its endpoint is reached through SSH, and fleet.yaml does not have this host",
            hint="Add it: winhost host add USER@ADDRESS --name " + name,
            host=name,
        )
    with closing(SshTunnel(host)) as tunnel:
        with show_progress(stop_hint="Ctrl-C stops.") as watch, watch.activity(name, "connecting"):
            try:
                tunnel.wire()
            except NotAvailable as lacking:
                raise no_linux(name, lacking) from None
            # Another computer set it up where no run is known. The session shares the connection, which stays open.
            deployed = run.deployed if run else parse_deployed(name, ServingSession(tunnel.wire).deployed())
        connected = partial(connection_through_ssh, tunnel.connect, deployed.gateway)
        yield Endpoint(name, deployed, None, run.key if run else None, connected, why, tunnel)


def _at(name: str, direct: LanEndpoint, within: float) -> http.client.HTTPConnection:
    try:
        return direct.connect(within)
    except AccessRefused as refused:
        raise WinhostError(
            "CertificateUnknown",
            what=f"{name} at {direct.url}: {refused}",
            meaning="No key was sent.",
            hint="Name its CA, as a PEM file, in the variable SSL_CERT_FILE",
            host=name,
        ) from None
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise Unreachable(
            name,
            why,
            at=direct.url,
            code="EndpointSilent",
            meaning="Nothing was asked: the gateway does not run, its machine is off, or a firewall is between.",
            hint=f"See how it is: winhost status {name}",
        ) from None


_HERE = "127.0.0.1"
_PIECE, _LOOK_S = 65536, 1.0


def open(host: str | None, port: int | None, fleet_file: Path | None) -> int:  # noqa: A001 - the command is called so
    targets = Targets.read(fleet_file)
    name = targets.named(host) if host else targets.only
    with endpoint_of(name, targets) as endpoint:
        if endpoint.tunnel is None:
            assert endpoint.url
            say(f"{name}: no tunnel is needed: this computer reaches it at {endpoint.url}")
            _show(endpoint, endpoint.url)
            return 0
        if endpoint.not_direct:
            say(f"{name}: not at its address: {endpoint.not_direct}")
        with _listening(port, endpoint.deployed.gateway) as listener:
            say(f"{name}: open until Ctrl-C")
            _show(endpoint, f"http://{_HERE}:{listener.getsockname()[1]}")
            sys.stdout.flush()
            Forwarding(name, listener, endpoint.tunnel, endpoint.deployed.gateway).run()
    return 0


def _show(endpoint: Endpoint, url: str) -> None:
    for line in paste_lines(url, endpoint.models[0], endpoint.key):
        click.echo(f"  {line}")
    if len(endpoint.models) > 1:
        say(f"  Other models: {', '.join(endpoint.models[1:])}")


def _listening(port: int | None, gateway: DeployedGateway) -> socket.socket:
    """Listen at the named port, or else at that of the gateway, or else at any. Raises UsageError: PortTaken."""
    for each in (port,) if port else (gateway.port, 0):
        try:
            return socket.create_server((_HERE, each or 0))
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)  # its own words repeat the address
    raise UsageError("PortTaken", what=f"port {port} of {_HERE} cannot be used: {why}", hint="Leave --port out.")


class Forwarding:
    """Forwards connections, each in a thread of its own, until SSH cannot be made again."""

    def __init__(self, host: str, listener: socket.socket, tunnel: SshTunnel, gateway: DeployedGateway) -> None:
        self._host, self._listener, self._tunnel, self._gateway = host, listener, tunnel, gateway
        self._said: str | None = None

    def run(self) -> None:
        """Forward until SSH ends for good. Raises the WinhostError with which it ended."""
        self._listener.settimeout(_LOOK_S)
        while True:
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                Thread(target=self._serve, args=(client,), daemon=True).start()
            if self._tunnel.lost:
                say(f"{self._host}: the SSH connection was lost; connecting again", err=True)
                self._tunnel.again()
                say(f"{self._host}: connected again", err=True)

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                with socket_through_ssh(self._tunnel.connect, self._gateway) as there:
                    _pump(client, there)
            except WinhostError as error:
                if error.what != self._said:  # said once: a gateway that does not listen now may do so later
                    self._said = error.what
                    say(f"{error.what}. {error.hint or ''}", err=True)
            except OSError:
                pass  # one of the two has gone


def _pump(client: socket.socket, there: socket.socket) -> None:
    """Copy both ways in one thread: a TLS socket is not thread-safe. Raises OSError."""
    while True:
        pending = getattr(there, "pending", lambda: 0)()
        ready = [there] if pending else select.select([client, there], [], [])[0]
        for source, sink in ((client, there), (there, client)):
            if source in ready:
                data = source.recv(_PIECE)
                if not data:
                    return
                sink.sendall(data)
