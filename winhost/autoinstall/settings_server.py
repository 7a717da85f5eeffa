"""Hands out the settings of one installation, once, over TLS; and hears how far the installer is.

The two have ports of their own. Settings hold a private key: their address has a token that is good for one answer and
for a limited time, and the medium knows the certificate by its fingerprint. An answer that does not arrive as a whole
leaves the settings to the same client, for a few attempts within minutes: one at the same address that says the same
random word, so that nobody who reads the token can take a copy and leave the installer another one. The installer's
webhook knows no certificates but public ones, so it speaks plain HTTP to an address that nobody can guess; its reports
are shown and decide nothing: an installed machine is known by its host key.
"""

import datetime
import hashlib
import json
import secrets
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from winhost.autoinstall.fetch_settings import CLIENT
from winhost.autoinstall.install_progress import InstallEvent, parsed_event
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes, KiB
from winhost.web.served import served

_LARGEST_EVENT: Bytes = 64 * KiB
_LIFETIME = datetime.timedelta(days=2)
_ATTEMPTS, _RETRY_S = 5, 600  # of the client that asked first, until an answer arrives as a whole
_GIVEN, _GONE, _BUSY = 200, 404, 503


@dataclass
class OneTimeSettings:
    """data: as the installer gets them; until: on time.monotonic's clock. given: whether somebody has all of them."""

    data: bytes
    until: float
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    given: bool = False
    _first: tuple[str, str] | None = None  # the client that asked first
    _attempts: int = 0
    _busy: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, path: str, address: str, word: str = "") -> int:
        """The HTTP status: 200 for the data, after which `ended` is to be called; 503 while an answer is on its way to
        that client; 404 for another token, another client than the first one, or whoever comes too late or too often.
        """
        good = secrets.compare_digest(path.encode(), f"/{self.token}".encode())
        with self._lock:
            now = time.monotonic()
            others = self._first not in (None, (address, word))
            if not good or others or self.given or now > self.until or self._attempts >= _ATTEMPTS:
                return _GONE
            if self._busy:
                return _BUSY
            if self._first is None:
                self._first, self.until = (address, word), min(self.until, now + _RETRY_S)
            self._attempts += 1
            self._busy = True
            return _GIVEN

    def ended(self, *, arrived: bool) -> None:
        """arrived: the whole answer did."""
        with self._lock:
            self._busy = False
            self.given = self.given or arrived


@dataclass(frozen=True)
class SettingsOffer:
    """url: with the token; sha256: of the certificate in DER."""

    url: str
    sha256: str
    settings: OneTimeSettings

    @property
    def for_medium(self) -> str:
        """The text of fetch.json."""
        return json.dumps({"url": self.url, "sha256": self.sha256})


@contextmanager
def offered_settings(data: bytes, address: str, seconds: float) -> Iterator[SettingsOffer]:
    """Serve the settings once on this address of the controller. Raises OSError."""
    settings = OneTimeSettings(data, time.monotonic() + seconds)
    pem, der = _certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "certificate"
        file.touch(0o600)
        file.write_bytes(pem)
        context.load_cert_chain(file)
    with _Server((address, 0), _giving(settings)) as server:
        # The handshake is made by the thread of each connection: one that hangs keeps nobody else waiting.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        url = f"https://{address}:{server.server_port}/{settings.token}"
        with served(server):
            yield SettingsOffer(url, hashlib.sha256(der).hexdigest(), settings)


@contextmanager
def heard_progress(address: str, hear: Callable[[InstallEvent], None]) -> Iterator[str]:
    """The address for the installer's webhook. Raises OSError."""
    token = secrets.token_urlsafe(32)
    with _Server((address, 0), _hearing(f"/{token}", hear)) as server, served(server):
        yield f"http://{address}:{server.server_port}/{token}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error of ours, and the terminal shows something else."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Quiet(BaseHTTPRequestHandler):
    timeout = 30

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
        """Its lines would have the token."""

    def answer(self, status: int, data: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _giving(settings: OneTimeSettings) -> type[BaseHTTPRequestHandler]:
    class Handler(_Quiet):
        def do_GET(self) -> None:
            status = settings.take(self.path, self.client_address[0], self.headers.get(CLIENT, ""))
            if status != _GIVEN:
                self.answer(status)
                return
            arrived = False
            try:
                self.answer(status, settings.data)
                arrived = _arrived(self.connection)
            finally:
                settings.ended(arrived=arrived)

    return Handler


def _arrived(connection: socket.socket) -> bool:
    """Tell whether the client has all that was sent. A client that gives up earlier resets the connection, or closes it
    while a part is still on its way. Raises OSError.
    """
    connection.shutdown(socket.SHUT_WR)  # of TCP alone: TLS would send a message that nobody reads
    for _ in range(64):
        if not connection.recv(4096):
            return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and _on_its_way(connection) == 0
    return False


def _on_its_way(connection: socket.socket) -> Bytes:
    """Sent and not acknowledged, as far as the system tells; the end of the stream counts as a byte."""
    try:
        import fcntl
        import termios
    except ImportError:  # Windows
        return 0
    left = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    return max(0, int.from_bytes(left, sys.byteorder) - 1)


def _hearing(path: str, hear: Callable[[InstallEvent], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(_Quiet):
        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            good = secrets.compare_digest(self.path.encode(), path.encode())
            if not good or not length.isdecimal() or int(length) > _LARGEST_EVENT:
                self.answer(404)
                return
            event = parsed_event(self.rfile.read(int(length)))
            if event is not None:
                hear(event)
            self.answer(200)

    return Handler


def _certificate() -> tuple[bytes, bytes]:
    """Key and certificate in PEM, which are forgotten when the server ends; and the certificate in DER."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name: Any = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "winhost")])
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    unsigned = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), begin, begin + _LIFETIME
    )
    signed = unsigned.sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + signed.public_bytes(Encoding.PEM), signed.public_bytes(Encoding.DER)
