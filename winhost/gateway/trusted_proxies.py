"""Proxies that may name the client they connect for, by the PROXY protocol (v1 or v2) or by `X-Forwarded-For`.

Only proxies whose addresses are in the settings are trusted, and only by the one method that the settings choose: a
client could write the header of the other one itself.
https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt
"""

import ipaddress
import re
from dataclasses import dataclass

from .strict_http import Refused

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")  # no zone
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_V1 = re.compile(rb"PROXY TCP([46]) ([0-9A-Fa-f.:]+) ([0-9A-Fa-f.:]+) ([0-9]{1,5}) ([0-9]{1,5})\r\n")
_V1_UNKNOWN = re.compile(rb"PROXY UNKNOWN(?: [ -~]*)?\r\n")
_V1_MAX_BYTES = 107
_MIN_BYTES = 15  # PROXY UNKNOWN
_V2_HEAD = 16
_V2_MAX_LENGTH = 520  # 536 in all, which the specification guarantees to a sender
_LOCAL, _PROXY = 0x20, 0x21
_V2_SOURCES = {0x11: (4, 12), 0x21: (16, 36)}  # TCP over IPv4, IPv6: bytes of the client's address, and of all four


class WrongHeader(ValueError):
    """The proxy did not begin with a header of the PROXY protocol."""


@dataclass(frozen=True)
class TrustedProxies:
    """The trusted proxies. protocol: each of their connections begins with a header of the PROXY protocol, and
    `X-Forwarded-For` is ignored.
    """

    networks: "tuple[Network, ...]" = ()
    protocol: bool = False

    def is_trusted(self, address: str) -> bool:
        """Tell whether this is the address of a trusted proxy. address: empty for a Unix socket."""
        return bool(address and self.networks) and any(ipaddress.ip_address(address) in each for each in self.networks)

    def find_client(self, forwarded: "bytes | None") -> str:
        """Return the client's address; empty if the proxy is the client. forwarded: the value of `X-Forwarded-For`, to
        which each proxy appends its client. Addresses before these come from the client and are ignored. Raises
        Refused.
        """
        address = ""
        for written in reversed((forwarded or b"").split(b",")) if forwarded is not None else ():
            address = _parse_address(written.strip(b" \t"))
            if not self.is_trusted(address):
                break
        return address


class ProxyHeader:
    """A header of the PROXY protocol while it arrives. The bytes after it, TLS or HTTP, must not be read with it."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: "bytes | bytearray") -> None:
        self._received += data

    def missing_bytes(self) -> int:
        """Return the number of bytes that are missing at least; 0 if the header is complete. Raises WrongHeader."""
        received = self._received
        if not any(received[: len(each)] == each[: len(received)] for each in (_SIGNATURE, b"PROXY ")):
            raise WrongHeader("it does not begin as one")
        if len(received) < _MIN_BYTES:
            return _MIN_BYTES - len(received)
        return self._missing_bytes_v2() if received.startswith(_SIGNATURE) else self._missing_bytes_v1()

    def _missing_bytes_v1(self) -> int:
        end = self._received.find(b"\n")
        if end >= 0:
            return 0
        missing = 1 if self._received.endswith(b"\r") else 2
        if len(self._received) + missing > _V1_MAX_BYTES:
            raise WrongHeader(f"it has more than {_V1_MAX_BYTES} bytes")
        return missing

    def _missing_bytes_v2(self) -> int:
        if len(self._received) < _V2_HEAD:
            return _V2_HEAD - len(self._received)
        length = int.from_bytes(self._received[14:16], "big")
        if length > _V2_MAX_LENGTH:
            raise WrongHeader(f"it has more than {_V2_HEAD + _V2_MAX_LENGTH} bytes")
        return _V2_HEAD + length - len(self._received)

    def client(self) -> str:
        """Return the address of the client that a complete header names; empty if the proxy connects for itself, or
        does not know its client. Raises WrongHeader.
        """
        received = bytes(self._received)
        try:
            return self._parse_v2(received) if received.startswith(_SIGNATURE) else self._parse_v1(received)
        except Refused:
            raise WrongHeader("it has no valid address") from None

    def _parse_v1(self, received: bytes) -> str:
        if _V1_UNKNOWN.fullmatch(received):
            return ""
        match = _V1.fullmatch(received)
        if (
            match is None
            or any((b":" in each) is not (match[1] == b"6") for each in match.group(2, 3))
            or any(int(each) > 65_535 or each != b"%d" % int(each) for each in match.group(4, 5))
        ):
            raise WrongHeader("it does not follow version 1")
        _parse_address(match[3])
        return _parse_address(match[2])

    def _parse_v2(self, received: bytes) -> str:
        command, family = received[12], received[13]
        if command == _LOCAL or (command == _PROXY and family == 0):
            return ""
        size, min_length = _V2_SOURCES.get(family, (0, 0))
        if command != _PROXY or not size or len(received) - _V2_HEAD < min_length:
            raise WrongHeader("it does not follow version 2, or is not for TCP over IP")
        return _normalize(ipaddress.ip_address(received[_V2_HEAD : _V2_HEAD + size]))


def _parse_address(written: bytes) -> str:
    """Parse an address. Raises Refused."""
    text = written.decode("latin-1")
    try:
        if _ADDRESS.fullmatch(text):
            return _normalize(ipaddress.ip_address(text))
    except ValueError:
        pass
    raise Refused("forwarded-for")


def _normalize(address: "ipaddress.IPv4Address | ipaddress.IPv6Address") -> str:
    """Write an address in one way, also an IPv4 address that is mapped into IPv6."""
    return str(getattr(address, "ipv4_mapped", None) or address)
