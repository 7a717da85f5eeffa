"""A throw-away certificate for this machine's loopback names, made again for each endpoint."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import field

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from winhost.core.dataclass import dataclass

_LIFETIME = datetime.timedelta(days=7)
_CLOCK_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Certificate:
    """Self-signed, so that the certificate itself is what a client trusts. Both in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_certificate() -> Certificate:
    """Make a certificate for localhost and 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    signed = _describe(key.public_key()).sign(key, hashes.SHA256())
    return Certificate(
        certificate=signed.public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _describe(key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "winhost lab")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
    identifier = x509.SubjectKeyIdentifier.from_public_key(key)
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        # Python 3.13 checks strictly (RFC 5280): a trust anchor has these four.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_signs_and_serves(), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )


def _signs_and_serves() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
