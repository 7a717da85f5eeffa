"""winhost open: a port of this computer that leads to what a host serves."""

import os
import select
import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread

import click

from winhost.cli.endpoint import Endpoint, SshTunnel, Targets, endpoint_of
from winhost.cli.lan_completion import socket_through_ssh
from winhost.cli.output import say
from winhost.cli.served_hosts import paste_lines
from winhost.model.errors import UsageError, WinhostError
from winhost.serving.deployed import DeployedGateway

_HERE = "127.0.0.1"
_PIECE, _LOOK_S = 65536, 1.0


def open_(host: str | None, port: int | None, fleet_file: Path | None) -> int:
    """Make the tunnel to what HOST serves, until Ctrl-C."""
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
    """Listen at the port that was named, else at that of the gateway, else at any. Raises UsageError: PortTaken."""
    own = int(gateway.listen.rpartition(":")[2])
    for each in (port,) if port else (own, 0):
        try:
            return socket.create_server((_HERE, each or 0))
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)  # its own words repeat the address
    raise UsageError("PortTaken", what=f"port {port} of {_HERE} cannot be used: {why}", hint="Leave --port out.")


class Forwarding:
    """Takes connections, each in a thread of its own, until SSH cannot be made again."""

    def __init__(self, host: str, listener: socket.socket, tunnel: SshTunnel, gateway: DeployedGateway) -> None:
        self._host, self._listener, self._tunnel, self._gateway = host, listener, tunnel, gateway
        self._said: str | None = None

    def run(self) -> None:
        """Raises the WinhostError with which SSH ended for good."""
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
                self._note(error)
            except OSError:
                pass  # one of the two has gone

    def _note(self, error: WinhostError) -> None:
        """Each thing once: a gateway that does not listen now may do so later."""
        if error.what != self._said:
            self._said = error.what
            say(f"{error.what}. {error.hint or ''}", err=True)


def _pump(client: socket.socket, there: socket.socket) -> None:
    """Both ways in one thread: TLS takes no two at a time. Raises OSError."""
    while True:
        pending = getattr(there, "pending", lambda: 0)()
        ready = [there] if pending else select.select([client, there], [], [])[0]
        for source, sink in ((client, there), (there, client)):
            if source in ready:
                data = source.recv(_PIECE)
                if not data:
                    return
                sink.sendall(data)
