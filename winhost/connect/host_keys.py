"""The host keys of SSH servers. A machine has to show a known key before anything is sent to it; a key is never trusted
because it is the first one shown.
"""

import base64
import binascii
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winhost.connect.wire_errors import WireError
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible
from winhost.model.fleet import Login

if TYPE_CHECKING:
    from paramiko import PKey  # type: ignore[import-untyped]  # it brings no types

_SHOWN_WITHIN_S = 15

# The signature algorithms for each type of key, in the order of preference.
_ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"),
}


class HostKeyRefused(WireError):
    """The machine shows another host key than the known one, or none is known."""

    category = "SecurityError"

    def __init__(
        self, host: str, detail: str, *, endpoint: str = "", unknown: str = "", kind: str = "ssh-ed25519"
    ) -> None:
        """unknown: where its key can be configured, if none is known; kind: the type of the key that it showed."""
        file = "ecdsa" if kind.startswith("ecdsa") else kind.removeprefix("ssh-")
        command = f"ssh-keygen -lf /etc/ssh/ssh_host_{file}_key.pub"
        if unknown:
            super().__init__(
                "HostKeyUnknown",
                what=f"{self.described(host, endpoint)} presented a host key that is not known here: {detail}",
                meaning="Nothing was sent to it. winhost never trusts a key because it is the first one shown.",
                hint=f"On the machine's console: {command}. Only if it shows the same, name it at {unknown}",
                host=host,
            )
            return
        super().__init__(
            "HostKeyRefused",
            what=f"{self.described(host, endpoint)} presented a host key other than the known one: {detail}",
            meaning="Your key was not offered to it. Either the machine was reinstalled, or this is not your machine.",
            hint=f"Compare with the key on the machine itself: {command}",
            host=host,
        )


def unusable_key_error(host: str, which: str, why: str, hint: str | None = None) -> UsageError:
    """Make the error for a key that cannot be used. which: names the key, because its content is never shown."""
    what = f"the {which} for {host} cannot be used: {visible(why)}"
    return UsageError("KeyUnusable", what=what, hint=hint, host=host)


@dataclass(frozen=True)
class KnownKeys:
    """A host key policy for paramiko: it refuses all keys except these. paramiko gets no known keys of its own, so that
    it calls this policy for each key.
    """

    host: str
    endpoint: str
    keys: tuple["PKey", ...] = ()
    fingerprint: str | None = None
    unknown: str = ""

    def missing_host_key(self, client: Any, hostname: str, key: "PKey") -> None:
        """Raise HostKeyRefused for an unknown key, before anything is sent to the machine."""
        if key in self.keys or key.fingerprint == self.fingerprint:
            return
        shown = f"{key.get_name()} {key.fingerprint}"
        if self.known:
            raise HostKeyRefused(
                self.host, f"{shown}, known is {self.known}", endpoint=self.endpoint, kind=key.get_name()
            )
        raise HostKeyRefused(self.host, shown, endpoint=self.endpoint, unknown=self.unknown, kind=key.get_name())

    @property
    def known(self) -> str:
        return self.fingerprint or " or ".join(key.fingerprint for key in self.keys)

    @property
    def disabled_algorithms(self) -> dict[str, list[str]]:
        """The algorithms that are disabled so that a machine with several keys shows a known one."""
        key_types = {key.get_name() for key in self.keys} & _ALGORITHMS.keys()
        return (
            {"keys": [each for kind in _ALGORITHMS.keys() - key_types for each in _ALGORITHMS[kind]]}
            if key_types
            else {}
        )


def load_known_keys(host: str, endpoint: str, login: Login) -> KnownKeys:
    """Load the keys that the host may show. Raises UsageError: KeyUnusable."""
    setting = login.position_of("host_key", "known_hosts") or "ssh.host_key in fleet.yaml"
    if login.host_key is None:
        keys = _read_known_hosts(host, login.known_hosts.expanduser(), login.address, login.port)
        return KnownKeys(host, endpoint, keys, unknown=f"{setting}, or in {visible(str(login.known_hosts))}")
    if login.host_key.startswith("SHA256:"):
        return KnownKeys(host, endpoint, fingerprint=login.host_key)
    return KnownKeys(
        host, endpoint, tuple(_parse_public_key(host, line) for line in login.host_key.strip().split("\n"))
    )


def fetch_host_key(address: str, port: int) -> str | None:
    """Read the Ed25519 key that a machine shows, without logging on. Returns it as in a .pub file, without a comment;
    None if no SSH server answers.
    """
    from paramiko import SSHException, Transport

    with (
        suppress(SSHException, EOFError, OSError),
        socket.create_connection((address, port), _SHOWN_WITHIN_S) as connection,
    ):
        transport = Transport(connection)
        try:
            transport.get_security_options().key_types = ("ssh-ed25519",)
            transport.start_client(timeout=_SHOWN_WITHIN_S)
            key = transport.get_remote_server_key()
            return f"{key.get_name()} {key.get_base64()}"
        finally:
            transport.close()
    return None


def _parse_public_key(host: str, text: str) -> "PKey":
    from paramiko import PKey, SSHException
    from paramiko.pkey import UnknownKeyType  # type: ignore[import-untyped]

    kind, _, rest = text.strip().partition(" ")
    try:
        return PKey.from_type_string(kind, base64.b64decode(rest.split(" ")[0], validate=True))
    except (UnknownKeyType, SSHException, binascii.Error, ValueError, EOFError):
        raise unusable_key_error(host, "host key", "it should be a type and its base64, as in a .pub file") from None


def _read_known_hosts(host: str, path: Path, address: str, port: int) -> tuple["PKey", ...]:
    """Read the keys of a known_hosts file, also under hashed names and without revoked ones; none if there is
    no file.
    """
    from paramiko import HostKeys, SSHException
    from paramiko.hostkeys import HostKeyEntry  # type: ignore[import-untyped]

    name = address if port == 22 else f"[{address}]:{port}"
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise unusable_key_error(host, "known_hosts file", f"{path}: {error.strerror}") from None
    revoked = {fields[3] for fields in lines if fields[:1] == ["@revoked"] and len(fields) > 3}
    found = []
    for fields in lines:
        if len(fields) < 3 or fields[0].startswith(("@", "#")) or fields[2] in revoked:
            continue
        try:
            entry = HostKeyEntry.from_line(" ".join(fields[:3]))
        except SSHException:
            continue  # it is no key
        if entry and any(pattern == name or _is_hash_of(HostKeys, pattern, name) for pattern in entry.hostnames):
            found.append(entry.key)
    return tuple(found)


def _is_hash_of(host_keys: Any, pattern: str, name: str) -> bool:
    try:
        return pattern.startswith("|1|") and host_keys.hash_host(name, pattern) == pattern
    except (ValueError, AssertionError, binascii.Error):
        return False
