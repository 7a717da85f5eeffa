"""The keys by which a machine is known before anything is told to it. A key is never trusted because it was shown
first.
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

# The algorithms by which keys of each type sign, in the order of preference.
_ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"),
}


class HostKeyRefused(WireError):
    """The machine answers, but shows another key than the known one, or one that nobody vouches for."""

    category = "SecurityError"

    def __init__(self, host: str, detail: str, *, at: str = "", unknown: str = "", kind: str = "ssh-ed25519") -> None:
        """unknown: where its key may be named, if none was known; kind: of the key that it showed."""
        file = "ecdsa" if kind.startswith("ecdsa") else kind.removeprefix("ssh-")
        on_the_machine = f"ssh-keygen -lf /etc/ssh/ssh_host_{file}_key.pub"
        if unknown:
            super().__init__(
                "HostKeyUnknown",
                what=f"{self.named(host, at)} presented a host key that is not known here: {detail}",
                meaning="Nothing was sent to it. winhost never trusts a key because it is the first one shown.",
                hint=f"On the machine's console: {on_the_machine}. Only if it shows the same, name it at {unknown}",
                host=host,
            )
            return
        super().__init__(
            "HostKeyRefused",
            what=f"{self.named(host, at)} presented a host key other than the known one: {detail}",
            meaning="Your key was not offered to it. Either the machine was reinstalled, or this is not your machine.",
            hint=f"Compare with the key on the machine itself: {on_the_machine}",
            host=host,
        )


def key_unusable(host: str, which: str, why: str, hint: str | None = None) -> UsageError:
    """A key from the fleet file, or that of the host, is not one. Names it, never shows it."""
    what = f"the {which} for {host} cannot be used: {visible(why)}"
    return UsageError("KeyUnusable", what=what, hint=hint, host=host)


@dataclass(frozen=True)
class KnownKeys:
    """The policy of an SSH client: it refuses every host key but these, by key or fingerprint.

    paramiko asks it about each key, because paramiko is given none to compare by itself.
    """

    host: str
    at: str
    keys: tuple["PKey", ...] = ()
    fingerprint: str | None = None
    unknown: str = ""

    def missing_host_key(self, client: Any, hostname: str, key: "PKey") -> None:
        """Raises HostKeyRefused, before anything of ours is offered."""
        if key in self.keys or key.fingerprint == self.fingerprint:
            return
        shown = f"{key.get_name()} {key.fingerprint}"
        if self.known:
            raise HostKeyRefused(self.host, f"{shown}, known is {self.known}", at=self.at, kind=key.get_name())
        raise HostKeyRefused(self.host, shown, at=self.at, unknown=self.unknown, kind=key.get_name())

    @property
    def known(self) -> str:
        return self.fingerprint or " or ".join(key.fingerprint for key in self.keys)

    @property
    def unasked(self) -> dict[str, list[str]]:
        """Algorithms that are switched off, so that a machine with several keys shows one that is known."""
        asked = {key.get_name() for key in self.keys} & _ALGORITHMS.keys()
        return {"keys": [each for kind in _ALGORITHMS.keys() - asked for each in _ALGORITHMS[kind]]} if asked else {}


def known_keys(host: str, at: str, login: Login) -> KnownKeys:
    """The keys that the host may show. Raises UsageError: KeyUnusable."""
    named = login.position_of("host_key", "known_hosts") or "ssh.host_key in fleet.yaml"
    if login.host_key is None:
        keys = _of_file(host, login.known_hosts.expanduser(), login.address, login.port)
        return KnownKeys(host, at, keys, unknown=f"{named}, or in {visible(str(login.known_hosts))}")
    if login.host_key.startswith("SHA256:"):
        return KnownKeys(host, at, fingerprint=login.host_key)
    return KnownKeys(host, at, tuple(_public(host, line) for line in login.host_key.strip().split("\n")))


def shown_host_key(address: str, port: int) -> str | None:
    """Ask a machine for its Ed25519 key without logging on: as in a .pub file, without a comment; None where no SSH
    server answers.
    """
    from paramiko import SSHException, Transport

    with suppress(SSHException, EOFError, OSError), socket.create_connection((address, port), _SHOWN_WITHIN_S) as line:
        transport = Transport(line)
        try:
            transport.get_security_options().key_types = ("ssh-ed25519",)
            transport.start_client(timeout=_SHOWN_WITHIN_S)
            key = transport.get_remote_server_key()
            return f"{key.get_name()} {key.get_base64()}"
        finally:
            transport.close()
    return None


def _public(host: str, text: str) -> "PKey":
    from paramiko import PKey, SSHException
    from paramiko.pkey import UnknownKeyType  # type: ignore[import-untyped]

    kind, _, rest = text.strip().partition(" ")
    try:
        return PKey.from_type_string(kind, base64.b64decode(rest.split(" ")[0], validate=True))
    except (UnknownKeyType, SSHException, binascii.Error, ValueError, EOFError):
        raise key_unusable(host, "host key", "it should be a type and its base64, as in a .pub file") from None


def _of_file(host: str, path: Path, address: str, port: int) -> tuple["PKey", ...]:
    """Keys of a known_hosts file, also under hashed names, without revoked ones; none where there is no file."""
    from paramiko import HostKeys, SSHException
    from paramiko.hostkeys import HostKeyEntry  # type: ignore[import-untyped]

    name = address if port == 22 else f"[{address}]:{port}"
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise key_unusable(host, "known_hosts file", f"{path}: {error.strerror}") from None
    revoked = {fields[3] for fields in lines if fields[:1] == ["@revoked"] and len(fields) > 3}
    found = []
    for fields in lines:
        if len(fields) < 3 or fields[0].startswith(("@", "#")) or fields[2] in revoked:
            continue
        try:
            entry = HostKeyEntry.from_line(" ".join(fields[:3]))
        except SSHException:
            continue  # it is no key, so it vouches for nobody
        if entry and any(one == name or _is_hash_of(HostKeys, one, name) for one in entry.hostnames):
            found.append(entry.key)
    return tuple(found)


def _is_hash_of(kind: Any, listed: str, name: str) -> bool:
    try:
        return listed.startswith("|1|") and kind.hash_host(name, listed) == listed
    except (ValueError, AssertionError, binascii.Error):
        return False
