"""Public keys: whole ones are taken as they are, all others are refused with what is wrong and what to do."""

from base64 import b64encode
from functools import cache

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, SECP521R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.rows import each_row
from winhost.paths.setting_values import public_key
from winhost.resources.registry import WINDOWS

MAKERS = {
    "ssh-ed25519": Ed25519PrivateKey.generate,
    "ssh-rsa": lambda: generate_rsa(65537, 2048),
    "ecdsa-sha2-nistp256": lambda: generate_private_key(SECP256R1()),
    "ecdsa-sha2-nistp384": lambda: generate_private_key(SECP384R1()),
    "ecdsa-sha2-nistp521": lambda: generate_private_key(SECP521R1()),
}


@cache
def line(kind: str) -> str:
    """Return the content of a .pub file, without the name."""
    made = MAKERS[kind]().public_key()
    return made.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


@each_row("name", ["", " me@desk-01", " a.b:c"])
@each_row("kind", MAKERS)
def test_a_whole_key_is_taken_and_the_resource_takes_it(kind: str, name: str) -> None:
    assert public_key(line(kind) + name) == line(kind) + name
    assert WINDOWS["WslAccess"].check_values({"authorized": [line(kind) + name]}) is None


@each_row("cut", [1, 4, 8, 40])
@each_row("kind", MAKERS)
def test_a_key_that_lost_its_end_is_refused(kind: str, cut: int) -> None:
    with pytest.raises(ValueError, match=rf"this is no whole {kind} key.*ssh-keygen -t ed25519; the \.pub file"):
        public_key(line(kind).rstrip("=")[:-cut])


@pytest.mark.parametrize("kind", MAKERS)
def test_a_key_under_the_name_of_another_is_refused(kind: str) -> None:
    other = next(name for name in MAKERS if name != kind)
    with pytest.raises(ValueError, match="that of another type"):
        public_key(f"{other} {line(kind).split(' ')[1]}")


def field(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


SHORT = [
    ("ssh-ed25519", [b"x" * 31]),
    ("ssh-ed25519", [b"x" * 32, b"more"]),
    ("ssh-rsa", [b"\1\0\1"]),
    ("ssh-rsa", [b"\1\0\1", b""]),
    ("ecdsa-sha2-nistp256", [b"nistp384", b"x" * 65]),
    ("ecdsa-sha2-nistp256", [b"nistp256", b"x" * 64]),
    ("ecdsa-sha2-nistp999", [b"nistp999", b"x" * 65]),
]


@pytest.mark.parametrize(("kind", "fields"), SHORT)
def test_a_key_without_the_parts_of_its_type_is_refused(kind: str, fields: list[bytes]) -> None:
    text = b64encode(b"".join(map(field, [kind.encode(), *fields]))).decode()
    with pytest.raises(ValueError, match="not the parts of such a key"):
        public_key(f"{kind} {text}")


@pytest.mark.parametrize("text", ["xx", "AAAA", "AAAAAAAA", "A+/="])
def test_a_text_that_is_no_key_at_all_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is no whole ssh-rsa key"):
        public_key(f"ssh-rsa {text}")


@pytest.mark.parametrize("kind", ["OPENSSH ", "RSA ", "EC ", "ENCRYPTED ", ""])
def test_a_private_key_is_refused_and_not_repeated(kind: str) -> None:
    with pytest.raises(ValueError, match="this is a private key") as caught:
        public_key(f"-----BEGIN {kind}PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END {kind}PRIVATE KEY-----")
    assert "b3Blbn" not in str(caught.value)
