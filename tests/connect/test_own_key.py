"""A public key that is given belongs to the private key that fleet.yaml names, or it is refused by fingerprints."""

import traceback
from base64 import b64decode
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from paramiko import PKey  # type: ignore[import-untyped]  # it brings no types

from tests.rows import each_row
from winhost.connect.own_key import check_public_keys
from winhost.model.errors import UsageError
from winhost.model.fleet import Ssh
from winhost.model.secrets import SecretRef

AT = "hosts.gpu-01.ssh.key (fleet.yaml:18)"
KINDS = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "ecdsa 256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ecdsa 521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
}
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBQmLs1Q0m2Y8gRZ0nT9vJwqK4cE7hX5uPdFbVt6SyaA desk"
PLAIN, LOCKED = NoEncryption(), BestAvailableEncryption(b"a pass phrase")
OPENSSH, PEM, PKCS8 = PrivateFormat.OpenSSH, PrivateFormat.TraditionalOpenSSL, PrivateFormat.PKCS8


@cache
def pair(
    kind: str = "ed25519", form: PrivateFormat = OPENSSH, lock: KeySerializationEncryption = PLAIN
) -> tuple[str, str]:
    """A private key as text, and its public half as a line."""
    key = KINDS[kind]()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return key.private_bytes(Encoding.PEM, form, lock).decode(), public


def check(key: str, *given: str) -> str | None:
    return check_public_keys(
        "gpu-01", Ssh(key=SecretRef.parse(key), written_at={"key": AT}), dict.fromkeys(given, "--ssh-key")
    )


def written(file: Path, text: str, mode: int = 0o600) -> str:
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)
    return f"file:{file}"


READ: dict[str, tuple[str, PrivateFormat, KeySerializationEncryption]] = {
    **{f"{kind}, OpenSSH": (kind, OPENSSH, PLAIN) for kind in KINDS},
    **{f"{kind}, OpenSSH, encrypted": (kind, OPENSSH, LOCKED) for kind in ("ed25519", "rsa")},
    **{f"{kind}, PEM": (kind, PEM, PLAIN) for kind in ("ecdsa 256", "rsa")},
    **{f"{kind}, PKCS 8": (kind, PKCS8, PLAIN) for kind in ("ed25519", "rsa")},
}


@pytest.mark.costly
@each_row(("kind", "form", "lock"), READ.values(), ids=READ.keys())
def test_it_is_one_of_those_given_or_refused(
    kind: str, form: PrivateFormat, lock: KeySerializationEncryption, tmp_path: Path
) -> None:
    private, public = pair(kind, form, lock)
    key = written(tmp_path / "id", private)
    assert check(key, f"{public} me@here") is None
    assert check(key, OTHER, public) is None, "of several one is enough"
    with pytest.raises(UsageError) as caught:
        check(key, OTHER)
    assert caught.value.code == "OtherKey"
    told = f"{caught.value.what} {caught.value.meaning} {caught.value.hint}"
    for each in (fingerprint_of(public), fingerprint_of(OTHER), "--ssh-key", AT):
        assert each in told
    shown = told + "".join(traceback.format_exception(caught.value))
    assert not [line for line in private.splitlines()[1:-1] if line in shown]


def fingerprint_of(line: str) -> str:
    kind, data = line.split(" ")[:2]
    return str(PKey.from_type_string(kind, b64decode(data)).fingerprint)


def test_the_pub_file_beside_it_is_named_if_it_is_its_own(tmp_path: Path) -> None:
    private, public = pair()
    key = written(tmp_path / "id", private)
    for beside, named in ((f"{public} me\n", True), (f"{OTHER}\n", False)):
        (tmp_path / "id.pub").write_text(beside, encoding="utf-8")
        with pytest.raises(UsageError) as caught:
            check(key, OTHER)
        assert (f"--ssh-key {tmp_path / 'id.pub'}" in str(caught.value.hint)) is named


def locked(tmp_path: Path) -> str:
    return written(tmp_path / "id", pair("rsa", PKCS8, LOCKED)[0])


BESIDE: dict[str, Callable[[Path], str]] = {
    "encrypted, in PEM": locked,
    "no file": lambda tmp_path: f"file:{tmp_path / 'id'}",
    "open to others": lambda tmp_path: written(tmp_path / "id", pair()[0], 0o644),
    "of another kind": lambda tmp_path: written(tmp_path / "id", "PuTTY-User-Key-File-3: ssh-ed25519\n"),
}


@each_row("made", BESIDE.values(), ids=BESIDE.keys())
def test_what_cannot_be_read_is_known_by_the_pub_file_beside_it(made: Callable[[Path], str], tmp_path: Path) -> None:
    key, (_, public) = made(tmp_path), pair("ecdsa 521")
    told = check(key, OTHER)
    assert told is not None
    assert "was not compared" in told
    assert AT in told
    (tmp_path / "id.pub").write_text(public, encoding="utf-8")
    assert check(key, public) is None
    with pytest.raises(UsageError):
        check(key, OTHER)


def test_of_a_variable_it_is_compared_and_no_keyring_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = pair()
    monkeypatch.setenv("WINHOST_TEST_KEY", private)
    assert check("env:WINHOST_TEST_KEY", public) is None
    with pytest.raises(UsageError):
        check("env:WINHOST_TEST_KEY", OTHER)
    monkeypatch.delenv("WINHOST_TEST_KEY")
    assert "the environment variable is not set" in str(check("env:WINHOST_TEST_KEY", OTHER))
    monkeypatch.setattr("winhost.model.secrets.import_module", lambda name: pytest.fail(f"asked {name}"))
    assert "keyring is not asked" in str(check("keyring:winhost/me", OTHER))


@each_row("text", ["", "!!!!", "b3BlbnNzaC1rZXktdjEA", "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAA"])
def test_a_damaged_key_is_not_compared(text: str, tmp_path: Path) -> None:
    key = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{text}\n-----END OPENSSH PRIVATE KEY-----\n"
    assert "was not compared" in str(check(written(tmp_path / "id", key), OTHER))
