"""A WSMan endpoint on loopback, with WinRM's HTTP.

Each connection has its own thread and authentication. Over HTTP, bodies are encrypted; for HTTPS, the endpoint makes a
temporary certificate. Each message is passed to its shell.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import socket
import socketserver
import ssl
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import field
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Self, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pypsrp.shell import SignalCode

from winhost.core.dataclass import dataclass
from winhost.lab.wire import wsman
from winhost.lab.wire.connection_logon import ConnectionLogon, DecryptionError
from winhost.lab.wire.served_host import ConnectionDropped, HttpRefusal, Moment, Phase, SimulatedHost, WireTroubles
from winhost.lab.wire.shells import URI as REMOTE_SHELL
from winhost.lab.wire.shells import PowerShellShell, RemoteShell
from winhost.lab.wire.wsman import Action, Element, Request, WSManFault
from winhost.web.server import run_server

_LIFETIME = datetime.timedelta(days=7)
_CLOCK_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate and its key in PEM. Clients trust the certificate itself."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_certificate() -> Certificate:
    """Make a certificate for localhost and 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    public, begin = key.public_key(), datetime.datetime.now(datetime.UTC) - _CLOCK_SKEW
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "winhost lab")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    others = "content_commitment key_encipherment data_encipherment key_agreement crl_sign encipher_only decipher_only"
    extensions: tuple[tuple[x509.ExtensionType, bool], ...] = (
        (x509.SubjectAlternativeName(names), False),
        # Python 3.13 checks strictly (RFC 5280): a trust anchor has these four.
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (x509.KeyUsage(digital_signature=True, key_cert_sign=True, **dict.fromkeys(others.split(), False)), True),
        (identifier, False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    )
    unsigned = x509.CertificateBuilder(name, name, public, x509.random_serial_number(), begin, begin + _LIFETIME)
    for extension, critical in extensions:
        unsigned = unsigned.add_extension(extension, critical)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(unsigned.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), private)


log = logging.getLogger(__name__)

Shell = PowerShellShell | RemoteShell


class Service:
    """The shells of one host. address: the endpoint's URL."""

    def __init__(self, host: SimulatedHost, faults: WireTroubles, address: str) -> None:
        self._host = host
        self._faults = faults
        self._address = address
        self._shells: dict[str, Shell] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def alive(self, boot: int) -> bool:
        """Tell whether the machine is up, and has been since that boot."""
        return not self._stopped and self._host.accepts_connections() and self._host.boot == boot

    def stop(self) -> None:
        self._stopped = True
        with self._lock:
            for shell in self._shells.values():
                shell.close()

    def answer(self, user: str, message: bytes) -> tuple[int, bytes]:
        """Return the HTTP status and the SOAP message. Raises ConnectionDropped or HttpRefusal if a trouble says so."""
        message_id = ""
        try:
            request = wsman.read_request(message)
            message_id = request.message_id
            self._faults.strike(Moment(request.action, Phase.ARRIVED))
            body, done = self._serve(user, request)
            self._faults.strike(Moment(request.action, Phase.FINISHED if done else Phase.WORKED))
            return 200, wsman.write_answer(request, body)
        except (ConnectionDropped, HttpRefusal):
            raise
        except WSManFault as fault:
            return 500, wsman.write_fault(fault, message_id)
        except Exception as error:  # the client gets an answer, the log has the rest
            log.exception("a message could not be served")
            return 500, wsman.write_fault(wsman.internal_fault(error), message_id)

    def _serve(self, user: str, request: Request) -> tuple[list[Element], bool]:
        """Return the body of the answer, and whether it has the end of a pipeline."""
        if request.action is Action.CREATE:
            return self._create(user, request), False
        shell = self._find(user, request.shell_id)
        match request.action:
            case Action.RECEIVE:
                command_id = request.content("rsp:Receive/rsp:DesiredStream").get("CommandId", "")
                parcel = shell.receive(command_id, request)
                return wsman.output_received(command_id, parcel.chunks, parcel.done, parcel.exit_code), parcel.done
            case Action.COMMAND:
                return wsman.command_started(shell.command(request)), False
            case Action.SEND:
                shell.send(request)
                return [wsman.element("rsp:SendResponse")], False
            case Action.SIGNAL:
                terminates = request.content("rsp:Signal/rsp:Code").text == SignalCode.TERMINATE
                end = shell.terminate if terminates else shell.interrupt
                end(request.content("rsp:Signal").get("CommandId", ""))
                return [wsman.element("rsp:SignalResponse")], False
        assert request.action is Action.DELETE
        with self._lock:
            self._shells.pop(shell.shell_id, None)
        shell.close()
        return [], False

    def _create(self, user: str, request: Request) -> list[Element]:
        shell_id = request.content("rsp:Shell").get("ShellId") or str(uuid.uuid4()).upper()
        alive = partial(self.alive, self._host.boot)
        shell: Shell
        if request.resource_uri == REMOTE_SHELL:
            shell = RemoteShell(shell_id, user, lambda: self._host.open_runspace(user), alive)
        else:
            shell = PowerShellShell(shell_id, user, self._host.open_runspace(user), alive)
            shell.feed(request.data("rsp:Shell/pwsh:creationXml"))
        with self._lock:
            self._shells[shell_id] = shell
        return wsman.shell_created(request, shell_id, user, self._address)

    def _find(self, user: str, shell_id: str) -> Shell:
        with self._lock:
            for expired in [each for each in self._shells.values() if not each.alive()]:
                expired.close()
                del self._shells[expired.shell_id]
            shell = self._shells.get(shell_id)
        if shell is None or shell.owner != user:
            raise wsman.shell_not_found_fault(shell_id)
        return shell


_LOOPBACK = "127.0.0.1"
_PLAIN_TYPE = "application/soap+xml;charset=UTF-8"
_SEALED_TYPE = "multipart/encrypted"


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes = b""
    content_type: str = ""
    challenges: tuple[str, ...] = ()
    closes: bool = False


class Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "winhost-lab"
    disable_nagle_algorithm = True  # or each call waits 40 ms for the client's delayed acknowledgement
    wbufsize = -1  # headers and body leave in one segment
    server: Endpoint

    def setup(self) -> None:
        super().setup()
        self._boot = self.server.host.boot
        self._network_epoch = self.server.host.network_epoch
        self._session = ConnectionLogon(self.server.users)

    def do_POST(self) -> None:
        try:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._check_machine()
            reply = self._reply(body)
            self._check_machine()
        except ConnectionDropped:
            self.close_connection = True
        except HttpRefusal as refusal:
            # A 401 has to say how to log on (RFC 9110). Clients do not read the body of one that does not.
            challenges = tuple(self._session.challenges(b"")) if refusal.status == 401 else ()
            self._send(Reply(refusal.status, challenges=challenges, closes=True))
        else:
            self._send(reply)

    def _check_machine(self) -> None:
        epoch = self.server.host.network_epoch
        if not self.server.service.alive(self._boot) or epoch is None or epoch != self._network_epoch:
            raise ConnectionDropped

    def _reply(self, body: bytes) -> Reply:
        authorization = self.headers.get("Authorization", "")
        # With AllowUnencrypted=false, WinRM refuses unencrypted bodies, except with Basic, which cannot encrypt.
        basic = authorization.lower().startswith("basic ")
        is_readable = bool(body) and not (self.server.tls or basic or self._is_sealed())
        if is_readable:
            self.server.count_unencrypted()
        logon = self._session.logon(authorization)
        if logon.user is None:
            return Reply(401, challenges=tuple(self._session.challenges(logon.token)))
        if is_readable:
            return Reply(400, closes=True)
        if authorization:
            self.server.faults.strike(Moment(Action.LOGON, Phase.ARRIVED))
        challenges = tuple(self._session.challenges(logon.token)) if logon.token else ()
        return self._serve(logon.user, body, challenges)

    def _is_sealed(self) -> bool:
        return self.headers.get("Content-Type", "").lower().startswith(_SEALED_TYPE)

    def _serve(self, user: str, body: bytes, challenges: tuple[str, ...]) -> Reply:
        if not body:  # a client that encrypts first logs on with an empty request
            return Reply(200, challenges=challenges)
        if not self._is_sealed():
            return Reply(*self.server.service.answer(user, body), _PLAIN_TYPE, challenges)
        try:
            message = self._session.unseal(body)
        except DecryptionError:
            return Reply(400, closes=True)
        status, soap = self.server.service.answer(user, message)
        content_type, body = self._session.seal(soap)
        return Reply(status, body, content_type, challenges)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for challenge in reply.challenges:
            self.send_header("WWW-Authenticate", challenge)
        if reply.content_type:
            self.send_header("Content-Type", reply.content_type)
        if reply.closes:
            self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's signature
        log.debug(format, *args)


class Endpoint(socketserver.ThreadingTCPServer):
    """Serves one simulated host to clients on loopback, until it is stopped. It cannot be started again.

    users: names (`name` or `DOMAIN\\name`) to passwords. With `tls`, `certificate_path` is the PEM file of the
    certificate that clients have to trust. unencrypted_bodies: how many came over HTTP without Basic; all were refused.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, host: SimulatedHost, users: Mapping[str, str], *, tls: bool = False, faults: WireTroubles | None = None
    ) -> None:
        self.host = host
        self.users = users
        self.faults = faults or WireTroubles()
        self.certificate_path: Path | None = None
        self.unencrypted_bodies = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        with ExitStack() as undo:
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="winhost-lab-")))
            self.tls = self._prepare_tls(folder) if tls else None
            super().__init__((_LOOPBACK, 0), Connection)
            undo.callback(self.server_close)
            self._undo = undo.pop_all()
        self.service = Service(host, self.faults, self.url)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{_LOOPBACK}:{self.port}/wsman"

    def start(self) -> None:
        self._undo.callback(self.close_connections)
        self._undo.callback(self.service.stop)
        self._undo.enter_context(run_server(self))

    def stop(self) -> None:
        """Close all connections, and stop running pipelines. May be called again."""
        self._undo.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare_tls(self, folder: Path) -> ssl.SSLContext:
        certificate = make_certificate()
        self.certificate_path = folder / "certificate.pem"
        self.certificate_path.write_bytes(certificate.certificate)
        key = folder / "key.pem"
        key.write_bytes(certificate.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate_path, key)
        key.unlink()
        return context

    def count_unencrypted(self) -> None:
        with self._lock:
            self.unencrypted_bodies += 1

    def verify_request(self, request: object, client_address: object) -> bool:
        return self.host.accepts_connections() and self.host.network_epoch is not None

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        if self.tls is not None:
            # The handshake is left to the connection's own thread, so that a silent client does not block others.
            connection = self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: object) -> None:
        with self._lock:
            self._open.discard(cast(socket.socket, request))
        super().shutdown_request(cast(socket.socket, request))

    def close_connections(self) -> None:
        with self._lock:
            still_open = list(self._open)
        for connection in still_open:
            try:
                # Shut down the socket below TLS, because its thread may be reading.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                log.debug("the client had closed the connection")

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a broken connection at DEBUG, and any other error at ERROR."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        log.log(level, "a connection broke", exc_info=True)
