"""The public key of the private key that fleet.yaml names for a Linux, for comparison with the public keys of a plan.

No passphrase is needed: an OpenSSH private key has its public key in clear, and for others there may be a .pub file
next to them. A keyring is not read for a comparison, because it may prompt its owner.
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

_READABLE_SCHEMES = ("file", "env")
_MAX_KEY_BYTES = 64 * 1024
_OPENSSH = re.compile(r"-----BEGIN OPENSSH PRIVATE KEY-----(.*?)-----END OPENSSH PRIVATE KEY-----", re.DOTALL)
_MAGIC = b"openssh-key-v1\0"


def check_public_keys(host: str, named: Ssh, public_keys: Mapping[str, str]) -> str | None:
    """Check that the private key belongs to one of the public keys. public_keys: by line, the option with which the
    user gave it. Returns why the keys could not be compared, or None.

    Raises UsageError (OtherKey) if the private key belongs to none of them.
    """
    setting, key = named.position_of("key") or "ssh.key in fleet.yaml", named.key
    assert key is not None
    if key.scheme in _READABLE_SCHEMES:
        own_key, reason = _public_half(key)
    else:
        own_key, reason = None, f"a {key.scheme} is not asked while a plan is made"
    if own_key is None:
        return f"The public key given was not compared with the private key at {setting}: {reason}."
    if any(parse_public_key(line) == own_key for line in public_keys):
        return None
    keys = ", ".join(
        f"{fingerprint(parse_public_key(line))} ({visible(option)})" for line, option in public_keys.items()
    )
    raise UsageError(
        "OtherKey",
        what=f"the private key that winhost has for the Linux of {visible(host)} belongs to no public key given",
        meaning=f"Given: {keys}. The public half of {visible(str(key))} is {fingerprint(own_key)}. winhost could not "
        "log on to the Linux that it sets up. Nothing was written.",
        hint=f"Give the public half of that key with {_advise_option(next(iter(public_keys.values())), key, own_key)}\n"
        f"Or name the private key of the one given at {setting}",
        host=host,
    )


def public_key_line(host: str, key: SecretRef, setting: str | None) -> str:
    """Return the public key of a private key, as in a .pub file. A private key in a keyring is read.

    setting: the one that names the key. Raises UsageError: NoPublicHalf.
    """
    own_key, reason = _public_half(key)
    if own_key is None:
        raise UsageError(
            "NoPublicHalf",
            what=f"the public half of the key at {setting or 'ssh.key in fleet.yaml'} is not known: {reason}",
            hint="Write it into a .pub file beside the private key: ssh-keygen -y -f KEY > KEY.pub",
            host=host,
        )
    return format_public_key(own_key)


def format_public_key(data: bytes) -> str:
    """Format a public key as in a .pub file. data: in the form of RFC 4253, which begins with the type."""
    kind = data[4 : 4 + int.from_bytes(data[:4])].decode("ascii", "replace")
    return f"{kind} {b64encode(data).decode()}"


def fingerprint(data: bytes) -> str:
    """Return the fingerprint of a public key, as `ssh-keygen -l` prints it."""
    return "SHA256:" + b64encode(sha256(data).digest()).decode().rstrip("=")


def _advise_option(option: str, key: SecretRef, own_key: bytes) -> str:
    """Return the option to advise, with the .pub file next to the private key if that is its public key."""
    pub_file = _pub_file_path(key)
    if pub_file is None or _read_pub_file(pub_file) != own_key:
        return option
    name, _, setting = option.partition(" ")
    return visible(f"{name} {shlex.quote(f'{setting}=@{pub_file}' if setting else str(pub_file))}")


def parse_public_key(line: str) -> bytes:
    """Return the public key of a line, in the form of RFC 4253; empty if it has none."""
    try:
        return a2b_base64(line.split()[1])
    except (IndexError, Error):
        return b""


def _pub_file_path(key: SecretRef) -> Path | None:
    try:
        return Path(f"{key.target}.pub").expanduser() if key.scheme == "file" else None
    except RuntimeError:
        return None


def _read_pub_file(file: Path) -> bytes | None:
    try:
        with file.open("rb") as opened:
            return parse_public_key(opened.read(_MAX_KEY_BYTES).decode("utf-8")) or None
    except (OSError, UnicodeDecodeError):
        return None


def _public_half(key: SecretRef) -> tuple[bytes | None, str]:
    """Return the public key of a private key, or None and the reason."""
    try:
        text, reason = key.resolve(), ""
    except UsageError as unreadable:
        text, reason = None, unreadable.what
    public_key = None
    if text:
        match = _OPENSSH.search(text.reveal())
        public_key = _parse_openssh(match[1]) if match else _parse_pem(text.reveal())
    pub_file = _pub_file_path(key)
    if public_key is None and pub_file:
        public_key = _read_pub_file(pub_file)
    return (
        public_key,
        reason or "its public half cannot be read without its passphrase, and there is no .pub file beside it",
    )


def _parse_openssh(text: str) -> bytes | None:
    """Read the public key of an OpenSSH private key. By PROTOCOL.key of OpenSSH it follows the names of the cipher and
    of the key derivation, the options of that, and the number of keys.
    """
    try:
        data = a2b_base64(text)
    except Error:
        return None
    if not data.startswith(_MAGIC):
        return None
    data_left = data[len(_MAGIC) :]
    for _ in range(3):
        data_left = data_left[4 + int.from_bytes(data_left[:4]) :]
    length = int.from_bytes(data_left[4:8])
    return data_left[8 : 8 + length] if 0 < length <= len(data_left) - 8 else None


def _parse_pem(text: str) -> bytes | None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        public = load_pem_private_key(text.encode(), None).public_key()
        return parse_public_key(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())
    except (TypeError, ValueError, UnsupportedAlgorithm):  # encrypted, of another kind, or no key at all
        return None
