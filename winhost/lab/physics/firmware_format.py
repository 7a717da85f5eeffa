"""The bytes of firmware variables, as UEFI lays them down: boot entries, and lists of signatures."""

import struct
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from winhost.model.once import once

_X509 = UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
_SHA256 = UUID("c1c41626-504c-4092-aca9-41f936934328")
_OWNER = UUID("77fa9abd-0359-4d32-bd60-28f4e78f784b").bytes_le
_END = b"\x7f\xff\x04\x00"
_BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


def numbers(order: Iterable[str]) -> bytes:
    """BootOrder, BootNext or BootCurrent."""
    return b"".join(struct.pack("<H", int(entry, 16)) for entry in order)


def load_option(entry: Mapping[str, Any], optional: bytes = b"") -> bytes:
    """A Boot#### variable."""
    path = b""
    if entry["partition"] is not None:
        path += (
            b"\x04\x01" + struct.pack("<HIQQ", 42, 1, 2048, 532480) + UUID(entry["partition"]).bytes_le + b"\x02\x02"
        )
    if entry["path"] is not None:
        name = _text(entry["path"])
        path += b"\x04\x04" + struct.pack("<H", 4 + len(name)) + name
    path += _END
    return struct.pack("<IH", int(entry["active"]), len(path)) + _text(entry["description"]) + path + optional


def read_load_option(entry: str, option: bytes) -> dict[str, Any]:
    """The entry that a Boot#### variable of this form tells of."""
    end = 6
    while option[end : end + 2] != b"\0\0":
        end += 2
    found: dict[str, Any] = {"entry": entry, "description": option[6:end].decode("utf-16-le"), "active": option[0] == 1}
    found |= {"partition": None, "path": None}
    path = option[end + 2 :]
    while path[:2] != b"\x7f\xff":
        length = struct.unpack_from("<H", path, 2)[0]
        if path[:2] == b"\x04\x01":
            found["partition"] = str(UUID(bytes_le=path[24:40]))
        else:
            found["path"] = path[4:length].decode("utf-16-le").rstrip("\0")
        path = path[length:]
    return found


def _text(text: str) -> bytes:
    return text.encode("utf-16-le") + b"\x00\x00"


def authorities(names: Iterable[str]) -> bytes:
    """`db` with certificates of these names."""
    return b"".join(_list(_X509, [_certificate(name)]) for name in names)


def revoked(count: int) -> bytes:
    """`dbx` with as many hashes of programs."""
    return _list(_SHA256, [number.to_bytes(32, "big") for number in range(count)]) if count else b""


def _list(kind: UUID, each: list[bytes]) -> bytes:
    size = 16 + len(each[0])
    body = b"".join(_OWNER + data for data in each)
    return kind.bytes_le + struct.pack("<III", 28 + len(body), 0, size) + body


@once
def _certificate(name: str) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Microsoft Corporation"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    unsigned = x509.CertificateBuilder(subject, subject, key.public_key(), 1, _BEGIN, _BEGIN.replace(year=2039))
    return unsigned.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
