"""HTTP/1.1, read strictly before aiohttp reads it: what two parsers could read in two ways is refused.

aiohttp gets a head that was written anew from what was understood, with the few headers that matter, and large chunks
without extensions. So neither what its versions let through nor how a client cuts a body makes a difference.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

HEAD_BYTES = 16_384
CHUNK_LINE_BYTES = 10  # eight digits and the end of the line
JOINED_BYTES = 16_384
# Each chunk costs time, whatever its size: beyond the first of a body, they have this many bytes on average.
FREE_CHUNKS, SMALL_BYTES = 1_000, 64
REFUSED = "Winhost-Refused"  # no client's header is passed on by this name

_LINE = re.compile(rb"([A-Z]{1,16}) (/[!\"$-~]*) HTTP/1\.([01])")  # no fragment, no absolute URL
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_HOST = re.compile(rb"[A-Za-z0-9._:\[\]-]{1,255}")
_LENGTH = re.compile(rb"[0-9]{1,15}")
CHUNK = re.compile(rb"[0-9A-Fa-f]{1,8}")
_METHODS = {b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"}
_PASSED = (b"host", b"accept", b"authorization", b"content-type", b"content-length", b"transfer-encoding", b"expect")
_FORWARDED = b"x-forwarded-for"  # the only one that may be there more than once and is read
# Two of them could be read as the first, the last, or both together.
_ONCE = (*_PASSED, b"content-encoding", b"connection", b"upgrade", b"x-api-key")


class Refused(Exception):
    """code: what is wrong with the request; status: what the client is answered."""

    def __init__(self, code: str, status: int = 400) -> None:
        super().__init__(code)
        self.code, self.status = code, status

    def request(self) -> bytes:
        """What aiohttp gets in the request's place, so that the answer comes after those of earlier requests."""
        head = f"GET / HTTP/1.1\r\nHost: -\r\n{REFUSED}: {self.status} {self.code}\r\nConnection: close\r\n\r\n"
        return head.encode("ascii")


@dataclass(frozen=True)
class Head:
    """text: as it is passed on; length: of the body, None where it comes in chunks; forwarded: its `X-Forwarded-For`,
    joined where there are several.
    """

    text: bytes
    length: int | None
    forwarded: bytes | None = None


def parse_head(lines: list[bytes], body_limit: int) -> Head:
    """lines: without their ends. Raises Refused."""
    line = _LINE.fullmatch(lines[0])
    if line is None:
        raise Refused("request-line")
    method, target, minor = line.groups()
    if method not in _METHODS:
        raise Refused("method", 501)
    headers = headers_in(lines[1:])
    _check_host(headers.get(b"host"), needed=minor == b"1")
    length = body_length(headers, minor, body_limit)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Refused("content-encoding", 415)
    passed = [name + b": " + headers[name] for name in _PASSED if name in headers]
    if b"close" in headers.get(b"connection", b"").lower():
        passed.append(b"connection: close")
    text = b"\r\n".join([method + b" " + target + b" HTTP/1." + minor, *passed, b"", b""])
    return Head(text, length, headers.get(_FORWARDED))


def headers_in(lines: list[bytes]) -> dict[bytes, bytes]:
    """Of a request or an answer, by names in lower case. Raises Refused."""
    found: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Refused("header")  # also a space before the colon, and a line that goes on with the next one
        name = name.lower()
        if name in found and name in _ONCE:
            raise Refused(f"two-{name.decode('ascii')}")
        before = found[name] + b"," if name == _FORWARDED and name in found else b""
        found[name] = before + value.strip(b" \t")
    return found


def _check_host(host: bytes | None, needed: bool) -> None:
    if host is None and needed:
        raise Refused("no-host")
    if host is not None and not _HOST.fullmatch(host):
        raise Refused("host")


def body_length(headers: dict[bytes, bytes], minor: bytes, limit: int) -> int | None:
    """None where it comes in chunks. Raises Refused."""
    coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise Refused("length-and-chunks")
        if coding.lower() != b"chunked" or minor == b"0":
            raise Refused("transfer-encoding")
        return None
    if length is None:
        return 0
    if not _LENGTH.fullmatch(length):
        raise Refused("content-length")
    if int(length) > limit:
        raise Refused("too-large", 413)
    return int(length)


class Framing:
    """Where requests of one connection begin and end. `feed` gives what is passed on.

    forwarded: is told the `X-Forwarded-For` of each head, and may raise Refused;
    heads: how many were passed on; in_head: whether a head has begun and not ended; in_body: likewise for a body.
    """

    def __init__(self, body_limit: int) -> None:
        self._limit = body_limit
        self._rest = bytearray()
        self._read = Framing._head  # no bound method: it would hold what holds it
        self._left = self._body = self._count = 0
        self._joined = bytearray()
        self._after_chunk = False
        self.forwarded: Callable[[bytes | None], None] | None = None
        self.heads = 0

    @property
    def in_head(self) -> bool:
        return self._read is Framing._head and bool(self._rest)

    @property
    def in_body(self) -> bool:
        return self._read is not Framing._head

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises Refused, after which the connection is of no more use."""
        self._rest += data
        while (passed := self._read(self)) is not None:
            if passed:
                yield passed

    def _head(self) -> bytes | None:
        end = self._rest.find(b"\r\n\r\n")
        head = bytes(self._rest if end < 0 else self._rest[:end])
        if len(head) > HEAD_BYTES:
            raise Refused("head-too-large", 431)
        without_ends = head.replace(b"\r\n", b"")
        if b"\n" in without_ends or b"\r" in without_ends.removesuffix(b"\r" if end < 0 else b"") or b"\0" in head:
            raise Refused("line-ends")
        if end < 0:
            return None
        parsed = parse_head(head.split(b"\r\n"), self._limit)
        if self.forwarded:
            self.forwarded(parsed.forwarded)
        del self._rest[: end + 4]
        self.heads += 1
        self._left, self._body, self._count = parsed.length or 0, 0, 0
        if parsed.length is None:
            self._read, self._after_chunk = Framing._chunks, False
        elif parsed.length:
            self._read = Framing._plain_body
        return parsed.text

    def _plain_body(self) -> bytes | None:
        taken = bytes(self._rest[: self._left])
        del self._rest[: len(taken)]
        self._left -= len(taken)
        if not self._left:
            self._read = Framing._head
        return taken or None

    def _chunks(self) -> bytes | None:
        """Chunks of `JOINED_BYTES`, the last one smaller, however small those are that came."""
        rest, at = self._rest, 0
        while self._read is Framing._chunks:
            part = rest[at : at + self._left]
            self._joined += part
            self._left -= len(part)
            at += len(part)
            found = None if self._left else self._chunk_line(at)
            if found is None:
                break
            self._begin_chunk(found)
            at += len(found) + 2 + 2 * self._after_chunk
            self._after_chunk = True
        del rest[:at]
        return self._joined_so_far()

    def _chunk_line(self, at: int) -> bytearray | None:
        """The line with the size of a chunk, before which the one before it ends; None where it has not come yet."""
        begin = at + 2 * self._after_chunk
        if len(self._rest) >= begin and bytes(self._rest[at:begin]) not in (b"\r\n", b""):
            raise Refused("chunk")
        end = self._rest.find(b"\r\n", begin, begin + CHUNK_LINE_BYTES)
        if end < 0 and len(self._rest) >= begin + CHUNK_LINE_BYTES:
            raise Refused("chunk")
        return None if end < 0 else self._rest[begin:end]

    def _begin_chunk(self, line: bytearray) -> None:
        if not CHUNK.fullmatch(line):
            raise Refused("chunk")  # an extension, a sign, a space
        self._left = int(line, 16)
        self._body += self._left
        self._count += 1
        if self._body > self._limit:
            raise Refused("too-large", 413)
        if self._left == 0:
            self._read = Framing._last_line
        elif self._count > FREE_CHUNKS and self._body < self._count * SMALL_BYTES:
            raise Refused("small-chunks")

    def _joined_so_far(self) -> bytes | None:
        """None where nothing is ready and the body has not ended."""
        joined, ended = self._joined, self._read is not Framing._chunks
        ready = len(joined) if ended else len(joined) - len(joined) % JOINED_BYTES
        cut = [bytes(joined[at : min(at + JOINED_BYTES, ready)]) for at in range(0, ready, JOINED_BYTES)]
        del joined[:ready]
        passed = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in cut)
        return passed if passed or ended else None

    def _last_line(self) -> bytes | None:
        if len(self._rest) < 2:
            return None
        if self._rest[:2] != b"\r\n":
            raise Refused("chunk")  # a trailer
        del self._rest[:2]
        self._read = Framing._head
        return b"0\r\n\r\n"
