"""Serve the settings of one installation once over TLS, and receive the installer's reports of its progress.

The two servers have separate ports. Settings contain a private key: their address has a token that is valid for one
answer and for a limited time, and the medium contains the fingerprint of the certificate. If the answer does not arrive
as a whole, the same client may try again a few times within minutes. A client is the same if it asks from the same
address and sends the same random word, so that nobody who reads the token can take the only copy. The
installer's webhook trusts only public certificates, so it sends plain HTTP to an address that nobody can guess.
Reports are only shown and decide nothing: winhost recognizes an installed machine by its host key.
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
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from winhost.autoinstall.fetch_settings import CLIENT
from winhost.core.dataclass import dataclass
from winhost.model.errors import visible
from winhost.model.units import Bytes, KiB
from winhost.web.server import run_server

_MAX_EVENT: Bytes = 64 * KiB
_LIFETIME = datetime.timedelta(days=2)
_ATTEMPTS, _RETRY_SECONDS = 5, 600  # of the client that asked first, until an answer arrives as a whole
_OK, _NOT_FOUND, _BUSY = 200, 404, 503
_MAX_TEXT = 200


class InstallPhase(StrEnum):
    """The phases in their order."""

    WAITING = "waiting"
    STARTED = "started"
    COMPARED = "compared"
    PARTITIONED = "partitioning"
    COPIED = "copying"
    CONFIGURED = "configuring"
    FINISHED = "finishing"
    RESTARTING = "restarting"


# Words in the name or description of an event, by the phase that it begins. The first match counts.
_PHASE_SIGNS = (
    (InstallPhase.RESTARTING, ("subiquity/shutdown",)),
    (InstallPhase.FINISHED, ("subiquity/late", "/postinstall", "final system configuration")),
    (InstallPhase.CONFIGURED, ("curthooks", "configuring installed system", "/install/configure")),
    (InstallPhase.COPIED, ("extract", "/acquiring")),
    (InstallPhase.PARTITIONED, ("partitioning", "block-meta", "block_meta")),
    (InstallPhase.COMPARED, ("winhost/guard",)),
)
_ORDER = list(InstallPhase)


@dataclass(frozen=True)
class InstallEvent:
    """An event of the installer. begins: it is a start, not an end."""

    name: str
    description: str
    begins: bool
    failed: bool


def parse_event(data: bytes) -> InstallEvent | None:
    """Parse an event of the installer; None for any other data."""
    try:
        event = json.loads(data)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("name"), str):
        return None
    name, description = (visible(str(event.get(key, ""))[:_MAX_TEXT]) for key in ("name", "description"))
    failed = str(event.get("result", "")).upper() in ("FAIL", "FAILED")
    return InstallEvent(name, description, event.get("event_type") == "start", failed)


@dataclass
class InstallProgress:
    """The progress by the installer's reports. phase: the latest one; failure: the description of the first failed
    event; received_count: of events.
    """

    phase: InstallPhase = InstallPhase.WAITING
    failure: str | None = None
    received_count: int = 0

    def receive(self, event: InstallEvent) -> bool:
        """Record an event. Returns True if the installation is in another phase, or has failed."""
        self.received_count += 1
        before = (self.phase, self.failure)
        words = f"{event.name} {event.description}".lower()
        begun = next(
            (phase for phase, signs in _PHASE_SIGNS if any(sign in words for sign in signs)), InstallPhase.STARTED
        )
        if event.failed and begun is InstallPhase.COMPARED:
            begun = InstallPhase.STARTED
        self.phase = max(self.phase, begun, key=_ORDER.index)
        # Events after a failed one repeat the failure with less detail.
        if event.failed and self.failure is None:
            self.failure = event.description or event.name
        return (self.phase, self.failure) != before


@dataclass
class OneTimeSettings:
    """Settings for one client. data: for the installer; until: a time of time.monotonic; given: a client has received
    all of it.
    """

    data: bytes
    until: float
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    given: bool = False
    _first: tuple[str, str] | None = None  # the client that asked first
    _attempts: int = 0
    _busy: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, path: str, address: str, word: str = "") -> int:
        """Return the HTTP status for a request: 200 for the data, after which the caller must call `ended`; 503 while
        an answer to this client is not finished; 404 for a wrong token, another client than the first one, and a
        request that is too late or one too many.
        """
        good = secrets.compare_digest(path.encode(), f"/{self.token}".encode())
        with self._lock:
            now = time.monotonic()
            others = self._first not in (None, (address, word))
            if not good or others or self.given or now > self.until or self._attempts >= _ATTEMPTS:
                return _NOT_FOUND
            if self._busy:
                return _BUSY
            if self._first is None:
                self._first, self.until = (address, word), min(self.until, now + _RETRY_SECONDS)
            self._attempts += 1
            self._busy = True
            return _OK

    def ended(self, *, arrived: bool) -> None:
        """Record the end of an answer. arrived: the client has received all of it."""
        with self._lock:
            self._busy = False
            self.given = self.given or arrived


@dataclass(frozen=True)
class SettingsOffer:
    """The offered settings. url: with the token; sha256: of the certificate in DER."""

    url: str
    sha256: str
    settings: OneTimeSettings

    @property
    def fetch_file(self) -> str:
        """The text of fetch.json."""
        return json.dumps({"url": self.url, "sha256": self.sha256})


@contextmanager
def offer_settings(data: bytes, address: str, seconds: float) -> Iterator[SettingsOffer]:
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
    with _Server((address, 0), _settings_handler(settings)) as server:
        # The handshake is made by the thread of each connection: one that hangs keeps nobody else waiting.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        url = f"https://{address}:{server.server_port}/{settings.token}"
        with run_server(server):
            yield SettingsOffer(url, hashlib.sha256(der).hexdigest(), settings)


@contextmanager
def receive_progress(address: str, receive: Callable[[InstallEvent], None]) -> Iterator[str]:
    """Receive reports, and yield the address for the installer's webhook. Raises OSError."""
    token = secrets.token_urlsafe(32)
    with _Server((address, 0), _report_handler(f"/{token}", receive)) as server, run_server(server):
        yield f"http://{address}:{server.server_port}/{token}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for a client that hangs up, because it would disturb the terminal."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Quiet(BaseHTTPRequestHandler):
    timeout = 30

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
        """Log nothing: the lines would contain the token."""

    def answer(self, status: int, data: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _settings_handler(settings: OneTimeSettings) -> type[BaseHTTPRequestHandler]:
    class Handler(_Quiet):
        def do_GET(self) -> None:
            status = settings.take(self.path, self.client_address[0], self.headers.get(CLIENT, ""))
            if status != _OK:
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
    """Tell whether the client has received all that was sent. One that gives up resets the connection, or closes it
    while a part is still on its way. Raises OSError.
    """
    connection.shutdown(socket.SHUT_WR)  # of TCP alone: TLS would send a message that nobody reads
    for _ in range(64):
        if not connection.recv(4096):
            return (
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                and _unacknowledged_bytes(connection) == 0
            )
    return False


def _unacknowledged_bytes(connection: socket.socket) -> Bytes:
    """Return the sent bytes that are not acknowledged, if the system knows. The end of the stream counts as 1."""
    try:
        import fcntl
        import termios
    except ImportError:  # Windows
        return 0
    left = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    return max(0, int.from_bytes(left, sys.byteorder) - 1)


def _report_handler(path: str, receive: Callable[[InstallEvent], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(_Quiet):
        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            good = secrets.compare_digest(self.path.encode(), path.encode())
            if not good or not length.isdecimal() or int(length) > _MAX_EVENT:
                self.answer(404)
                return
            event = parse_event(self.rfile.read(int(length)))
            if event is not None:
                receive(event)
            self.answer(200)

    return Handler


def _certificate() -> tuple[bytes, bytes]:
    """Make a key and its certificate for this server: both in PEM, and the certificate in DER."""
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
