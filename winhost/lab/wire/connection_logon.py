"""Authenticates clients: Negotiate and NTLM count for a connection, Basic for one request, as with WinRM."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import struct
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import spnego
from pypsrp.encryption import WinRMEncryption
from pypsrp.exceptions import WinRMError
from spnego.exceptions import NegotiateOptions, SpnegoError

from winhost.core.dataclass import dataclass

_VARIABLE = "NTLM_USER_FILE"


_NTLM_LOCK = threading.Lock()


@contextmanager
def ntlm_users(users: Mapping[str, str]) -> Iterator[None]:
    """Make these users (`name` or `DOMAIN\\name` to password) the only ones of pyspnego's NTLM server.

    pyspnego only reads users from a file that an environment variable names.
    """
    parted = ((*name.rpartition("\\")[::2], password) for name, password in users.items())
    former = os.environ.get(_VARIABLE)
    with _NTLM_LOCK, tempfile.TemporaryDirectory(prefix="winhost-lab-") as folder:
        path = Path(folder, "users")
        path.touch(mode=0o600)
        path.write_text("".join(f"{':'.join(each)}\n" for each in parted), encoding="utf-8")
        os.environ[_VARIABLE] = str(path)
        try:
            yield
        finally:
            del os.environ[_VARIABLE]
            os.environ |= {_VARIABLE: former} if former is not None else {}


_ENCRYPTED_BOUNDARY = "Encrypted Boundary"


class DecryptionError(Exception):
    """A sealed body is damaged, or this connection has no key for it."""


def find_user_name(users: Mapping[str, str], name: str) -> str | None:
    """Return the user's name as in `users`, or None. Case does not matter, as in Windows."""
    return next((user_name for user_name in users if user_name.upper() == name.upper()), None)


@dataclass(frozen=True)
class Logon:
    """The result of a logon step. user: None until someone is logged on; token: for the client's next step."""

    user: str | None
    token: bytes = b""


NOT_LOGGED_ON = Logon(None)


class ConnectionLogon:
    """The authentication of one connection, and its encryption keys."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._context: spnego.ContextProxy | None = None
        self._user: str | None = None

    def challenges(self, token: bytes) -> list[str]:
        """Return the values for WWW-Authenticate. WinRM offers NTLM only inside Negotiate."""
        if token:
            return [f"Negotiate {base64.b64encode(token).decode('ascii')}"]
        return ["Negotiate", 'Basic realm="WSMAN"']

    def logon(self, authorization: str) -> Logon:
        """Process a logon step. authorization: the header of the request, "" without one."""
        scheme, _, credentials = authorization.partition(" ")
        match scheme.lower():
            case "":
                return Logon(self._user)
            case "basic":
                return self._basic(credentials)
            case "negotiate" | "ntlm":
                return self._negotiate(credentials)
            case _:
                return NOT_LOGGED_ON

    def _basic(self, credentials: str) -> Logon:
        try:
            name, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return NOT_LOGGED_ON
        user_name = find_user_name(self._users, name)
        expected = self._users[user_name] if user_name else ""
        return Logon(user_name if hmac.compare_digest(expected.encode(), password.encode()) else None)

    def _negotiate(self, credentials: str) -> Logon:
        self._user = None
        if self._context is not None and self._context.complete:
            self._context = None
        try:
            with ntlm_users(self._users):
                if self._context is None:
                    # On Windows, the system's own provider would check the accounts of this computer.
                    self._context = spnego.server(protocol="negotiate", options=NegotiateOptions.use_negotiate)
                token = self._context.step(base64.b64decode(credentials, validate=True))
            if self._context.complete:
                self._user = find_user_name(self._users, self._context.client_principal or "")
        except (SpnegoError, binascii.Error, ValueError, struct.error):
            self._context = None
            return NOT_LOGGED_ON
        return Logon(self._user, token or b"")

    def unseal(self, body: bytes) -> bytes:
        try:
            return self._encryption().unwrap_message(body, _ENCRYPTED_BOUNDARY)
        except (SpnegoError, WinRMError, IndexError, ValueError, struct.error) as error:
            raise DecryptionError from error

    def seal(self, message: bytes) -> tuple[str, bytes]:
        """Encrypt a message; return the content type and the body."""
        encryption = self._encryption()
        kind, body = encryption.wrap_message(message)
        return f'{kind};protocol="{encryption.protocol}";boundary="{_ENCRYPTED_BOUNDARY}"', body

    def _encryption(self) -> WinRMEncryption:
        if self._context is None or not self._context.complete:
            raise DecryptionError
        return WinRMEncryption(self._context, WinRMEncryption.SPNEGO)
