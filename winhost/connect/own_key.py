"""The private key that fleet.yaml names for a Linux: its public half, compared with the keys that a plan gives.

Nothing asks for a passphrase: a private key of OpenSSH has its public half in clear, and others have a .pub file beside
them. For a comparison a keyring is not asked, because it may ask its owner.
"""

import re
import shlex
from base64 import b64encode
from binascii import Error, a2b_base64
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from winhost.model.errors import UsageError, visible
from winhost.model.fleet import Ssh
from winhost.model.secrets import SecretRef

_READ = ("file", "env")
_LARGEST = 64 * 1024
_OPENSSH = re.compile(r"-----BEGIN OPENSSH PRIVATE KEY-----(.*?)-----END OPENSSH PRIVATE KEY-----", re.DOTALL)
_MAGIC = b"openssh-key-v1\0"


def check_given(host: str, named: Ssh, given: Mapping[str, str]) -> str | None:
    """given: each line of a public key, with the option that gave it. Returns why it could not be compared, or None.

    Raises UsageError (OtherKey) where the private key belongs to none of them.
    """
    at, key = named.position_of("key") or "ssh.key in fleet.yaml", named.key
    assert key is not None
    if key.scheme in _READ:
        own, why = _public_half(key)
    else:
        own, why = None, f"a {key.scheme} is not asked while a plan is made"
    if own is None:
        return f"The public key given was not compared with the private key at {at}: {why}."
    if any(public_data(line) == own for line in given):
        return None
    keys = ", ".join(f"{fingerprint(public_data(line))} ({visible(option)})" for line, option in given.items())
    raise UsageError(
        "OtherKey",
        what=f"the private key that winhost has for the Linux of {visible(host)} belongs to no public key given",
        meaning=f"Given: {keys}. The public half of {visible(str(key))} is {fingerprint(own)}. winhost could not "
        "log on to the Linux that it sets up. Nothing was written.",
        hint=f"Give the public half of that key with {_advised(next(iter(given.values())), key, own)}\n"
        f"Or name the private key of the one given at {at}",
        host=host,
    )


def public_line(host: str, key: SecretRef, at: str | None) -> str:
    """The public half of a private key, as a .pub file has it. A keyring is asked for the key. at: where it is named.

    Raises UsageError: NoPublicHalf.
    """
    own, why = _public_half(key)
    if own is None:
        raise UsageError(
            "NoPublicHalf",
            what=f"the public half of the key at {at or 'ssh.key in fleet.yaml'} is not known: {why}",
            hint="Write it into a .pub file beside the private key: ssh-keygen -y -f KEY > KEY.pub",
            host=host,
        )
    return line_of(own)


def line_of(data: bytes) -> str:
    """A public key in the form of RFC 4253, which begins with its type, as a .pub file has it."""
    kind = data[4 : 4 + int.from_bytes(data[:4])].decode("ascii", "replace")
    return f"{kind} {b64encode(data).decode()}"


def fingerprint(data: bytes) -> str:
    """The fingerprint in the form of `ssh-keygen -l`."""
    return "SHA256:" + b64encode(sha256(data).digest()).decode().rstrip("=")


def _advised(option: str, key: SecretRef, own: bytes) -> str:
    """The option, with the .pub file beside the private key where that is its own."""
    beside = _beside(key)
    if beside is None or _of_pub(beside) != own:
        return option
    name, _, setting = option.partition(" ")
    return visible(f"{name} {shlex.quote(f'{setting}=@{beside}' if setting else str(beside))}")


def public_data(line: str) -> bytes:
    """A public key in the form of RFC 4253; nothing where a line has none."""
    try:
        return a2b_base64(line.split()[1])
    except (IndexError, Error):
        return b""


def _beside(key: SecretRef) -> Path | None:
    try:
        return Path(f"{key.target}.pub").expanduser() if key.scheme == "file" else None
    except RuntimeError:
        return None


def _of_pub(file: Path) -> bytes | None:
    try:
        with file.open("rb") as opened:
            return public_data(opened.read(_LARGEST).decode("utf-8")) or None
    except (OSError, UnicodeDecodeError):
        return None


def _public_half(key: SecretRef) -> tuple[bytes | None, str]:
    """The public half, or the reason why it cannot be had."""
    try:
        text, why = key.resolve(), ""
    except UsageError as unreadable:
        text, why = None, unreadable.what
    own = None
    if text:
        found = _OPENSSH.search(text.reveal())
        own = _of_openssh(found[1]) if found else _of_pem(text.reveal())
    beside = _beside(key)
    if own is None and beside:
        own = _of_pub(beside)
    return own, why or "its public half cannot be read without its passphrase, and there is no .pub file beside it"


def _of_openssh(text: str) -> bytes | None:
    """PROTOCOL.key of OpenSSH: the cipher, its key derivation and the options of that, a number of keys, the first."""
    try:
        data = a2b_base64(text)
    except Error:
        return None
    if not data.startswith(_MAGIC):
        return None
    rest = data[len(_MAGIC) :]
    for _ in range(3):
        rest = rest[4 + int.from_bytes(rest[:4]) :]
    length = int.from_bytes(rest[4:8])
    return rest[8 : 8 + length] if 0 < length <= len(rest) - 8 else None


def _of_pem(text: str) -> bytes | None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        public = load_pem_private_key(text.encode(), None).public_key()
        return public_data(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())
    except (TypeError, ValueError, UnsupportedAlgorithm):  # encrypted, of another kind, or no key at all
        return None
