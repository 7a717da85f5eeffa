"""A seed as a guest gets it, with a key of its own."""

import io
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address, ip_interface
from typing import Any

import pycdlib
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.cases import FASTEST
from winhost.images.seed import GuestAddress, GuestSeed, fill_template, seed_template


@cache
def key_pair() -> tuple[str, str]:
    """Private and public, as OpenSSH writes them."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private.decode(), key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


PRIVATE, PUBLIC = key_pair()
INSTANCE = "8d1f3c52-6a2e-4b7d-9c41-0e5f7a6b2d10"
STATIC = GuestAddress(
    ip_interface("192.0.2.10/24"), ip_address("192.0.2.1"), (ip_address("192.0.2.53"), ip_address("2001:db8::53"))
)


def seed(**changed: Any) -> GuestSeed:
    good: dict[str, Any] = {
        "hostname": "gpu-01-linux",
        "admin": "admin",
        "admin_keys": (f"{PUBLIC} me@there",),
        "mac": "00155D0102AF",
        "address": STATIC,
    }
    return GuestSeed(**good | changed)


def seed_iso(made: GuestSeed) -> bytes:
    """The CD as a host fills it in."""
    return fill_template(seed_template(made), INSTANCE, PRIVATE, PUBLIC)


@dataclass(frozen=True)
class Read:
    """What stands on a CD: the label, and files by their names with Joliet and with Rock Ridge, which are the same."""

    label: str
    files: dict[str, bytes]

    def yaml(self, name: str) -> Any:
        return yaml.load(self.files[name], FASTEST)


def read(image: bytes) -> Read:
    iso = pycdlib.PyCdlib()
    iso.open_fp(io.BytesIO(image))
    kinds = [_files(iso, kind) for kind in ("joliet_path", "rr_path")]
    assert kinds[0] == kinds[1]
    return Read(iso.pvd.volume_identifier.decode().rstrip(), kinds[0])


def _files(iso: pycdlib.PyCdlib, kind: str) -> dict[str, bytes]:
    found = {}
    for _, folders, names in iso.walk(**{kind: "/"}):
        assert folders == []
        for name in names:
            content = io.BytesIO()
            iso.get_file_from_iso_fp(content, **{kind: f"/{name}"})
            found[name] = content.getvalue()
    return found
