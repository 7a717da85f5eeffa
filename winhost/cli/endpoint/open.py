"""Connect from this computer to the endpoint of a host: on loopback, at its address on the network, or through SSH.
`winhost open` opens a port on this computer that leads there.
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
from winhost.cli.serve.hosts import Targets, client_lines, is_this_linux
from winhost.cli.serve.target import no_linux_error, parse_deployed
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
    """Connections to ports of a host's Linux through one SSH connection, which is reopened after it is lost."""

    def __init__(self, host: AnyHost) -> None:
        self._host = host
        self._wire: SshWire | None = None
        self._lock = RLock()

    def wire(self) -> SshWire:
        """Return the connection, and open it if necessary. Raises WinhostError."""
        with self._lock:
            if self.is_lost:
                self.close()
                self._wire = serving_wire(self._host)
            assert self._wire
            return self._wire

    @property
    def is_lost(self) -> bool:
        with self._lock:
            return self._wire is None or not self._wire.alive

    def connect(self, address: str, port: int) -> socket.socket:
        """Connect to a port of the host's Linux. Raises Unreachable if nothing listens there, WinhostError."""
        try:
            return self.wire().tunnel(address, port)
        except SessionDropped:
            self.close()
            return self.wire().tunnel(address, port)

    def reconnect(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Reopen the connection, with several tries unless the logon is refused. Raises the last WinhostError."""
        for remaining in range(_TRIES - 1, -1, -1):
            try:
                self.wire()
            except WireError as error:
                if not remaining or isinstance(error, AuthenticationFailed):
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
    """An endpoint and the connection to it. url: its URL for this computer, None through SSH; key: the reference to an
    API key in its plan; not_direct: why this computer cannot use its address; tunnel: the SSH connection to it.
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
def open_endpoint(name: str, targets: Targets) -> Iterator[Endpoint]:
    """Find the endpoint of a host; connect by SSH unless this computer can use its address. Raises WinhostError."""
    run, host = targets.serving.get(name), targets.host(name)
    direct: LanEndpoint | None = None
    if run and run.address is not None:
        allowed = allowed_networks(run.record, run.deployed.gateway.port)
        if allowed or is_this_linux(run.host):
            direct = LanEndpoint(run.address, run.deployed.gateway, allowed)
    why = direct.refusal if direct and not is_this_linux(host) else None
    if run and direct and why is None:
        yield Endpoint(name, run.deployed, run.url, run.key, lambda timeout: _connect_directly(name, direct, timeout))
        return
    if host is None:
        raise UsageError(
            "NoWayThere",
            what=f"{name}: winhost reaches its endpoint through SSH, and fleet.yaml does not contain this host",
            hint="Add it: winhost host add USER@ADDRESS --name " + name,
            host=name,
        )
    with closing(SshTunnel(host)) as tunnel:
        with show_progress(stop_hint="Ctrl-C stops.") as watch, watch.activity(name, "connecting"):
            try:
                tunnel.wire()
            except NotAvailable as error:
                raise no_linux_error(name, error) from None
            # Without a run, another computer set up the endpoint. The session shares the connection, which stays open.
            deployed = run.deployed if run else parse_deployed(name, ServingSession(tunnel.wire).deployed())
        connected = partial(connection_through_ssh, tunnel.connect, deployed.gateway)
        yield Endpoint(name, deployed, None, run.key if run else None, connected, why, tunnel)


def _connect_directly(name: str, direct: LanEndpoint, timeout: float) -> http.client.HTTPConnection:
    try:
        return direct.connect(timeout)
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
            endpoint=direct.url,
            code="EndpointSilent",
            meaning="No request was sent: the gateway is not running, its machine is off, or a firewall blocks it.",
            hint=f"See its state: winhost status {name}",
        ) from None


_LOOPBACK = "127.0.0.1"
_BUFFER_SIZE, _POLL_S = 65536, 1.0


def open(host: str | None, port: int | None, fleet_file: Path | None) -> int:  # noqa: A001 - the command is called so
    targets = Targets.read(fleet_file)
    name = targets.resolve(host) if host else targets.only_serving
    with open_endpoint(name, targets) as endpoint:
        if endpoint.tunnel is None:
            assert endpoint.url
            say(f"{name}: no tunnel is needed: this computer reaches it at {endpoint.url}")
            _show(endpoint, endpoint.url)
            return 0
        if endpoint.not_direct:
            say(f"{name}: its address cannot be used: {endpoint.not_direct}")
        with _open_listener(port, endpoint.deployed.gateway) as listener:
            say(f"{name}: open until Ctrl-C")
            _show(endpoint, f"http://{_LOOPBACK}:{listener.getsockname()[1]}")
            sys.stdout.flush()
            Forwarding(name, listener, endpoint.tunnel, endpoint.deployed.gateway).run()
    return 0


def _show(endpoint: Endpoint, url: str) -> None:
    for line in client_lines(url, endpoint.models[0], endpoint.key):
        click.echo(f"  {line}")
    if len(endpoint.models) > 1:
        say(f"  Other models: {', '.join(endpoint.models[1:])}")


def _open_listener(port: int | None, gateway: DeployedGateway) -> socket.socket:
    """Listen on the named port; by default on the gateway's, or else on a free one. Raises UsageError: PortTaken."""
    for each in (port,) if port else (gateway.port, 0):
        try:
            return socket.create_server((_LOOPBACK, each or 0))
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)  # str(error) would repeat the address
    raise UsageError("PortTaken", what=f"port {port} of {_LOOPBACK} cannot be used: {why}", hint="Leave --port out.")


class Forwarding:
    """Forwards connections, each in a thread of its own, until SSH cannot be reopened."""

    def __init__(self, host: str, listener: socket.socket, tunnel: SshTunnel, gateway: DeployedGateway) -> None:
        self._host, self._listener, self._tunnel, self._gateway = host, listener, tunnel, gateway
        self._last_error: str | None = None

    def run(self) -> None:
        """Forward until SSH cannot be reopened. Raises the WinhostError of the last attempt."""
        self._listener.settimeout(_POLL_S)
        while True:
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                Thread(target=self._serve, args=(client,), daemon=True).start()
            if self._tunnel.is_lost:
                say(f"{self._host}: the SSH connection was lost; connecting again", err=True)
                self._tunnel.reconnect()
                say(f"{self._host}: connected again", err=True)

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                with socket_through_ssh(self._tunnel.connect, self._gateway) as remote:
                    _pump(client, remote)
            except WinhostError as error:
                if error.what != self._last_error:  # an error that repeats is shown once
                    self._last_error = error.what
                    say(f"{error.what}. {error.hint or ''}", err=True)
            except OSError:
                pass  # the client or the gateway closed its connection


def _pump(client: socket.socket, remote: socket.socket) -> None:
    """Copy data both ways, in one thread because a TLS socket is not thread-safe. Raises OSError."""
    while True:
        pending = getattr(remote, "pending", lambda: 0)()
        readable = [remote] if pending else select.select([client, remote], [], [])[0]
        for source, sink in ((client, remote), (remote, client)):
            if source in readable:
                data = source.recv(_BUFFER_SIZE)
                if not data:
                    return
                sink.sendall(data)
