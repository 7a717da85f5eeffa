"""Read HTTP/1.1 strictly: refuse whatever two parsers could read in two ways.

Engines get nothing of a client's head beyond the values in `Head`, and nothing of the body but its bytes. So the way a
client writes its headers or cuts its body into chunks makes no difference to an engine.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

HEAD_BYTES = 16_384
CHUNK_LINE_BYTES = 10  # eight digits and the end of the line
JOINED_BYTES = 16_384
# Each chunk costs time, whatever its size. Beyond the free ones, the chunks of a body must have this average size.
FREE_CHUNKS, SMALL_BYTES = 1_000, 64

_LINE = re.compile(rb"([A-Z]{1,16}) (/[!\"$-~]*) HTTP/1\.([01])")  # no fragment, no absolute URL
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")
_HOST = re.compile(rb"[A-Za-z0-9._:\[\]-]{1,255}")
_LENGTH = re.compile(rb"[0-9]{1,15}")
CHUNK = re.compile(rb"[0-9A-Fa-f]{1,8}")
# vLLM makes the id a part of its own ids, and its connectors read addresses of other engines from those
# (`___prefill_addr_HOST:PORT`). So the id has no colon and no two underscores in a row.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9](?:[A-Za-z0-9.-]|_(?!_)){0,63}")
_METHODS = {b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"}
_FORWARDED = b"x-forwarded-for"  # the only one that may be there more than once and is read
# Two of them could be read as the first, the last, or both together.
_ONCE = frozenset(
    b"host accept authorization content-type content-length transfer-encoding expect content-encoding connection"
    b" upgrade x-api-key".split()
)


class Refused(Exception):
    """A request is refused. code: what is wrong with it; status: the status of the answer."""

    def __init__(self, code: str, status: int = 400) -> None:
        super().__init__(code)
        self.code, self.status = code, status


class Head(NamedTuple):
    """The head of a request. minor: of the version, HTTP/1.0 or HTTP/1.1; length: of the body; None if it comes in
    chunks; kept: the connection may stay after the answer; expects: the client sends the body when it is told to;
    forwarded: `X-Forwarded-For`, joined if there are several; request_id: `X-Request-Id`, empty if there is none that
    may be used.
    """

    method: str
    target: str
    minor: int
    length: int | None
    kept: bool
    authorization: str
    content_type: str
    expects: bool
    forwarded: bytes | None
    request_id: str = ""


def parse_head(lines: list[bytes], body_limit: int) -> Head:
    """lines: without their ends. Raises Refused."""
    line = _LINE.fullmatch(lines[0])
    if line is None:
        raise Refused("request-line")
    method, target, minor = line.groups()
    if method not in _METHODS:
        raise Refused("method", 501)
    headers = headers_in(lines[1:])
    host = headers.get(b"host")
    if host is None and minor == b"1":
        raise Refused("no-host")
    if host is not None and not _HOST.fullmatch(host):
        raise Refused("host")
    length = body_length(headers, minor, body_limit)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Refused("content-encoding", 415)
    return Head(
        method.decode("ascii"),
        target.decode("ascii"),
        int(minor),
        length,
        minor == b"1" and b"close" not in headers.get(b"connection", b"").lower(),
        headers.get(b"authorization", b"").decode("utf-8", "surrogateescape"),
        headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1"),
        minor == b"1" and headers.get(b"expect", b"").lower() == b"100-continue",
        headers.get(_FORWARDED),
        given.decode("ascii") if _REQUEST_ID.fullmatch(given := headers.get(b"x-request-id", b"")) else "",
    )


def headers_in(lines: list[bytes]) -> dict[bytes, bytes]:
    """Parse the headers of a request or an answer, by names in lower case. Raises Refused."""
    found: dict[bytes, bytes] = {}
    for line in lines:
        if not _HEADER.fullmatch(line):
            raise Refused("header")  # this also refuses a space before the colon, and a folded line
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in found and name in _ONCE:
            raise Refused(f"two-{name.decode('ascii')}")
        value = value.strip(b" \t")
        found[name] = found[name] + b"," + value if name == _FORWARDED and name in found else value
    return found


def body_length(headers: dict[bytes, bytes], minor: bytes, limit: int) -> int | None:
    """The length of the body in bytes; None for a chunked body. Raises Refused."""
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
    """Find the beginning and end of each request of one connection.

    forwarded: called with the `X-Forwarded-For` of each head, may raise Refused; in_head: a head has begun and not
    ended; in_body: a body has.
    """

    def __init__(self, body_limit: int) -> None:
        self._limit = body_limit
        self._rest = bytearray()
        self._read: Callable[[Framing], Head | bytes | None] = Framing._head  # no bound method: it would hold itself
        self._left = self._body = self._count = 0
        self._joined = bytearray()
        self._after_chunk = False
        self.forwarded: Callable[[bytes | None], None] | None = None

    @property
    def in_head(self) -> bool:
        return self._read is Framing._head and bool(self._rest)

    @property
    def in_body(self) -> bool:
        return self._read is not Framing._head

    def feed(self, data: bytes) -> Iterator[Head | bytes]:
        """Yield heads, and after each one the parts of its body, until `in_body` is false; the last part may be empty.
        Raises Refused; then the connection can only be closed.
        """
        self._rest += data
        while (found := self._read(self)) is not None:
            if found or not self.in_body:
                yield found

    def _head(self) -> Head | None:
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
        self._left, self._body, self._count = parsed.length or 0, 0, 0
        if parsed.length is None:
            self._read, self._after_chunk = Framing._chunks, False
        elif parsed.length:
            self._read = Framing._plain_body
        return parsed

    def _plain_body(self) -> bytes | None:
        taken = bytes(self._rest[: self._left])
        del self._rest[: len(taken)]
        self._left -= len(taken)
        if not self._left:
            self._read = Framing._head
        return taken or None

    def _chunks(self) -> bytes | None:
        """Return the body in parts of `JOINED_BYTES`, however small its chunks are. The last part may be smaller."""
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
        """The line with the size of the next chunk, after the end of the last one; None if it has not come yet."""
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
        """Return the bytes that are ready; None if there are none and the body has not ended."""
        ended = self._read is not Framing._chunks
        ready = len(self._joined) if ended else len(self._joined) - len(self._joined) % JOINED_BYTES
        passed = bytes(self._joined[:ready])
        del self._joined[:ready]
        return passed if passed or ended else None

    def _last_line(self) -> bytes | None:
        if len(self._rest) < 2:
            return None
        if self._rest[:2] != b"\r\n":
            raise Refused("chunk")  # a trailer
        del self._rest[:2]
        self._read = Framing._head
        return b""
