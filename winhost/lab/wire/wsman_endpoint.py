"""A WSMan endpoint on loopback, to be started and stopped."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from winhost.lab.wire.certificate import make_certificate
from winhost.lab.wire.connection_logon import EndpointAccounts, user_file
from winhost.lab.wire.served_host import SimulatedHost
from winhost.lab.wire.wire_troubles import WireTroubles
from winhost.lab.wire.wsman_connection import Listener
from winhost.web.served import served


class Endpoint:
    """Serves one simulated host to real clients, until it is stopped. It cannot be started again.

    `users` maps names (`name` or `DOMAIN\\name`) to passwords. With `tls`, `certificate_path` is the PEM file of the
    throw-away certificate that clients must trust; it lasts as long as the endpoint. `port` 0 takes a free one.
    """

    def __init__(
        self,
        host: SimulatedHost,
        users: Mapping[str, str],
        *,
        tls: bool = False,
        allow_basic: bool = True,
        faults: WireTroubles | None = None,
        port: int = 0,
    ) -> None:
        self.faults = faults or WireTroubles()
        self.certificate_path: Path | None = None
        accounts = EndpointAccounts(users)
        with ExitStack() as undo:
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="winhost-lab-")))
            context = self._prepare_tls(folder) if tls else None
            self._listener = Listener(host, accounts, self.faults, port=port, tls=context, allow_basic=allow_basic)
            undo.callback(self._listener.server_close)
            self._undo = undo.pop_all()

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        return self._listener.url

    @property
    def unencrypted_bodies(self) -> int:
        """The number of bodies that crossed HTTP readable, other than under Basic. All of them were refused."""
        return self._listener.unencrypted_bodies

    def start(self) -> None:
        user_file.open()
        self._undo.callback(user_file.close)
        self._undo.callback(self._listener.close_connections)
        self._undo.callback(self._listener.service.stop)
        self._undo.enter_context(served(self._listener))

    def stop(self) -> None:
        """Cuts all connections and tells running pipelines to stop. Harmless when nothing runs."""
        self._undo.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare_tls(self, folder: Path) -> ssl.SSLContext:
        made = make_certificate()
        self.certificate_path = folder / "certificate.pem"
        self.certificate_path.write_bytes(made.certificate)
        key = folder / "key.pem"
        key.write_bytes(made.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate_path, key)
        key.unlink()
        return context
