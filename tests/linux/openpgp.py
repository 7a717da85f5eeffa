"""Fingerprints of public keys, read without gpg."""

import base64
import binascii
import re
from hashlib import sha1


def fingerprint(armoured: str) -> str:
    """Return the fingerprint, in upper case, of the primary key in an armoured public key of version 4 (RFC 4880,
    12.2). Raises ValueError.
    """
    inside = re.search(r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:\S.*\n)*\r?\n([^-]*)", armoured)
    if inside is None:
        raise ValueError("it is no armoured public key")
    body = re.sub(r"^=.*", "", inside[1], flags=re.MULTILINE)  # the check sum
    try:
        data = base64.b64decode("".join(body.split()), validate=True)
    except binascii.Error:
        raise ValueError("it is no armoured public key") from None
    key = _first_packet(data)
    if not key or key[0] != 4:
        raise ValueError("it is no public key of version 4")
    # SHA-1 is what this version of fingerprints is made of; to meet a given one is still out of reach.
    digest = sha1(b"\x99" + len(key).to_bytes(2, "big") + key, usedforsecurity=False)
    return digest.hexdigest().upper()


_PUBLIC_KEY = 6


def _first_packet(data: bytes) -> bytes:
    """Return the body of the first packet, which is the primary key (RFC 4880, 4.2)."""
    header = data[0] if data else 0
    if header & 0x40:
        tag, start, size = header & 0x3F, *_new_length(data)
    else:
        octets = 1 << (header & 3)
        tag, start, size = (header & 0x3F) >> 2, 1 + octets, int.from_bytes(data[1 : 1 + octets], "big")
    body = data[start : start + size]
    if not header & 0x80 or tag != _PUBLIC_KEY or len(body) != size:
        raise ValueError("it does not begin with a public key")
    return body


def _new_length(data: bytes) -> tuple[int, int]:
    first = data[1] if len(data) > 1 else 0
    if first < 192:
        return 2, first
    if first < 224:
        return 3, ((first - 192) << 8) + int.from_bytes(data[2:3], "big") + 192
    return 6, int.from_bytes(data[2:6], "big")
