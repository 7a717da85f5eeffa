"""Proxies that may name the client they connect for, by the PROXY protocol (v1 or v2) or by `X-Forwarded-For`.

Only the addresses in the settings are believed, and only in the one way that the settings choose: a client could write
the other one itself. https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt
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
_V1_BYTES = 107
_SHORTEST = 15  # PROXY UNKNOWN
_V2_HEAD = 16
_V2_MORE = 520  # 536 in all, which the specification guarantees to a sender
_LOCAL, _PROXY = 0x20, 0x21
_V2_SOURCES = {0x11: (4, 12), 0x21: (16, 36)}  # TCP over IPv4, IPv6: bytes of the client's address, and of all four


class WrongHeader(ValueError):
    """The proxy did not begin with a header of the PROXY protocol."""


@dataclass(frozen=True)
class TrustedProxies:
    """The proxies that are believed. protocol: each of their connections begins with a header of the PROXY protocol,
    and `X-Forwarded-For` is ignored.
    """

    networks: "tuple[Network, ...]" = ()
    protocol: bool = False

    def has(self, address: str) -> bool:
        """Tell whether this is the address of such a proxy. address: empty if there is none."""
        return bool(address and self.networks) and any(ipaddress.ip_address(address) in each for each in self.networks)

    def client_of(self, forwarded: "bytes | None") -> str:
        """The client's address; empty if the proxy asks for itself. forwarded: all of `X-Forwarded-For`, to which each
        proxy appends its client. What the client wrote itself comes before that, and is ignored. Raises Refused.
        """
        address = ""
        for written in reversed((forwarded or b"").split(b",")) if forwarded is not None else ():
            address = _address(written.strip(b" \t"))
            if not self.has(address):
                break
        return address


class ProxyHeader:
    """A header of the PROXY protocol while it arrives. What follows, TLS or HTTP, must not be read with it."""

    def __init__(self) -> None:
        self._read = bytearray()

    def feed(self, data: "bytes | bytearray") -> None:
        self._read += data

    def missing(self) -> int:
        """The least number of bytes still to come; 0 if the header is complete. Raises WrongHeader."""
        read = self._read
        if not any(read[: len(each)] == each[: len(read)] for each in (_SIGNATURE, b"PROXY ")):
            raise WrongHeader("it does not begin as one")
        if len(read) < _SHORTEST:
            return _SHORTEST - len(read)
        return self._missing_of_v2() if read.startswith(_SIGNATURE) else self._missing_of_v1()

    def _missing_of_v1(self) -> int:
        end = self._read.find(b"\n")
        if end >= 0:
            return 0
        missing = 1 if self._read.endswith(b"\r") else 2
        if len(self._read) + missing > _V1_BYTES:
            raise WrongHeader(f"it has more than {_V1_BYTES} bytes")
        return missing

    def _missing_of_v2(self) -> int:
        if len(self._read) < _V2_HEAD:
            return _V2_HEAD - len(self._read)
        more = int.from_bytes(self._read[14:16], "big")
        if more > _V2_MORE:
            raise WrongHeader(f"it has more than {_V2_HEAD + _V2_MORE} bytes")
        return _V2_HEAD + more - len(self._read)

    def client(self) -> str:
        """The client that the proxy connects for, once the header is complete. Empty: the proxy connects for itself, or
        does not know. Raises WrongHeader.
        """
        read = bytes(self._read)
        try:
            return self._client_of_v2(read) if read.startswith(_SIGNATURE) else self._client_of_v1(read)
        except Refused:
            raise WrongHeader("it has no valid address") from None

    def _client_of_v1(self, read: bytes) -> str:
        if _V1_UNKNOWN.fullmatch(read):
            return ""
        found = _V1.fullmatch(read)
        if (
            found is None
            or any((b":" in each) is not (found[1] == b"6") for each in found.group(2, 3))
            or any(int(each) > 65_535 or each != b"%d" % int(each) for each in found.group(4, 5))
        ):
            raise WrongHeader("it does not follow version 1")
        _address(found[3])
        return _address(found[2])

    def _client_of_v2(self, read: bytes) -> str:
        command, family = read[12], read[13]
        if command == _LOCAL or (command == _PROXY and family == 0):
            return ""
        size, least = _V2_SOURCES.get(family, (0, 0))
        if command != _PROXY or not size or len(read) - _V2_HEAD < least:
            raise WrongHeader("it does not follow version 2, or is not for TCP over IP")
        return _plain(ipaddress.ip_address(read[_V2_HEAD : _V2_HEAD + size]))


def _address(written: bytes) -> str:
    """Parse an address. Raises Refused."""
    text = written.decode("latin-1")
    try:
        if _ADDRESS.fullmatch(text):
            return _plain(ipaddress.ip_address(text))
    except ValueError:
        pass
    raise Refused("forwarded-for")


def _plain(address: "ipaddress.IPv4Address | ipaddress.IPv6Address") -> str:
    """One spelling for each client, however its proxy writes the address."""
    return str(getattr(address, "ipv4_mapped", None) or address)
