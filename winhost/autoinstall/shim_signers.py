"""The signers of a program for UEFI: the certificates in all of its WIN_CERTIFICATEs.

A shim may be signed twice, by the CA of 2011 and by that of 2023, and firmware may know only one of them. Some tools
show only the first signature.
"""

import struct
from collections.abc import Iterable, Iterator

from winhost.model.errors import RefusedError

_PKCS7 = 2  # WIN_CERT_TYPE_PKCS_SIGNED_DATA
_MAGIC = {0x10B: 128, 0x20B: 144}  # of PE32 and PE32+: where their fifth data directory is


class NotSigned(ValueError):
    """The signers of a program cannot be found. The message says why."""


def signers(program: bytes) -> frozenset[str]:
    """Return the common names of all issuers and subjects in its signatures. Raises NotSigned."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import pkcs7

    found: set[str] = set()
    for blob in _blobs(program):
        try:
            certificates = pkcs7.load_der_pkcs7_certificates(blob)
        except ValueError as error:
            raise NotSigned(f"a signature cannot be read: {error}") from None
        names = (name for one in certificates for name in (one.subject, one.issuer))
        found |= {str(part.value) for name in names for part in name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)}
    if not found:
        raise NotSigned("it bears no signature")
    return frozenset(found)


def _blobs(program: bytes) -> Iterator[bytes]:
    """Each WIN_CERTIFICATE that is a PKCS #7; they stand one after the other, on multiples of 8 bytes."""
    try:
        (header,) = struct.unpack_from("<I", program, 60)
        signature, magic = program[header : header + 4], struct.unpack_from("<H", program, header + 24)[0]
        if program[:2] != b"MZ" or signature != b"PE\0\0" or magic not in _MAGIC:
            raise NotSigned("it is no program for UEFI")
        at, size = struct.unpack_from("<II", program, header + 24 + _MAGIC[magic])
        end = min(at + size, len(program)) if at else 0
        while at + 8 <= end:
            length, _, kind = struct.unpack_from("<IHH", program, at)
            if length < 8 or at + length > end:
                raise NotSigned("its table of signatures is damaged")
            if kind == _PKCS7:
                blob = program[at + 8 : at + length]
                if len(blob) > 4 and blob[0] == 0x30 and blob[1] & 0x80:  # DER states its length, before the padding
                    count = blob[1] & 0x7F
                    blob = blob[: 2 + count + int.from_bytes(blob[2 : 2 + count], "big")]
                yield blob
            at += (length + 7) // 8 * 8
    except struct.error:
        raise NotSigned("it is no whole program for UEFI") from None


def check_starts(shim: bytes, authorities: Iterable[str], secure_boot: bool) -> frozenset[str]:
    """Return the authorities that the firmware and the shim have in common. Raises RefusedError (ShimRefused)."""
    try:
        found = signers(shim)
    except NotSigned as why:
        if secure_boot:
            raise _refused(f"the loader of these media cannot be started: {why}") from None
        return frozenset()
    known = frozenset(authorities)
    common = frozenset(found & known)
    if secure_boot and not common:
        raise _refused(
            f"the firmware knows none of those who signed the loader of these media: {', '.join(sorted(found))}"
        )
    return common


def _refused(what: str) -> RefusedError:
    hint = "In the firmware's setup, allow the third-party UEFI CA of Microsoft, or take media of a later point release"
    return RefusedError("ShimRefused", what=what, meaning="With Secure Boot on, they would not start.", hint=hint)
