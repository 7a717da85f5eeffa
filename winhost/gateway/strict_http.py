"""Read HTTP/1.1 strictly: refuse whatever two parsers could read in two ways.

Of a client's head, an engine gets only values in `Head`; of the body it gets the bytes. So the way in which a client
writes its headers or divides its body into chunks makes no difference to an engine.
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
_FORWARDED = b"x-forwarded-for"  # the only header that is read and may occur more than once
# Headers that may occur once. Of two, a parser may use the first, the last, or both together.
_SINGLE_HEADERS = frozenset(
    b"host accept authorization content-type content-length transfer-encoding expect content-encoding connection"
    b" upgrade x-api-key".split()
)


class Refused(Exception):
    """A request is refused. code: what is wrong with it; status: the status of the answer."""

    def __init__(self, code: str, status: int = 400) -> None:
        super().__init__(code)
        self.code, self.status = code, status


class Head(NamedTuple):
    """The head of a request. minor: the minor version of HTTP/1.x; length: of the body, None if it comes in chunks;
    keep_alive: the client allows another request on the connection; expects: it waits for `100 Continue` before it
    sends the body; forwarded: `X-Forwarded-For`, joined if there are several; request_id: `X-Request-Id`, empty if
    there is no valid one.
    """

    method: str
    target: str
    minor: int
    length: int | None
    keep_alive: bool
    authorization: str
    content_type: str
    expects: bool
    forwarded: bytes | None
    request_id: str = ""


def parse_head(lines: list[bytes], body_limit: int) -> Head:
    """Parse the lines of a head, without their ends. Raises Refused."""
    line = _LINE.fullmatch(lines[0])
    if line is None:
        raise Refused("request-line")
    method, target, minor = line.groups()
    if method not in _METHODS:
        raise Refused("method", 501)
    headers = parse_headers(lines[1:])
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
        id_.decode("ascii") if _REQUEST_ID.fullmatch(id_ := headers.get(b"x-request-id", b"")) else "",
    )


def parse_headers(lines: list[bytes]) -> dict[bytes, bytes]:
    """Parse the headers of a request or an answer. Return values by name in lower case. Raises Refused."""
    found: dict[bytes, bytes] = {}
    for line in lines:
        if not _HEADER.fullmatch(line):
            raise Refused("header")  # this also refuses a space before the colon, and a folded line
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in found and name in _SINGLE_HEADERS:
            raise Refused(f"two-{name.decode('ascii')}")
        value = value.strip(b" \t")
        found[name] = found[name] + b"," + value if name == _FORWARDED and name in found else value
    return found


def body_length(headers: dict[bytes, bytes], minor: bytes, limit: int) -> int | None:
    """Return the length of the body in bytes; None for a chunked body. Raises Refused."""
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

    on_forwarded: called with the `X-Forwarded-For` of each head, may raise Refused; in_head: an incomplete head was
    received; in_body: the body of the last head is incomplete.
    """

    def __init__(self, body_limit: int) -> None:
        self._limit = body_limit
        self._unread = bytearray()
        # A bound method would be a reference of the object to itself.
        self._parse_next: Callable[[Framing], Head | bytes | None] = Framing._parse_head
        self._remaining = self._body_bytes = self._chunk_count = 0
        self._joined = bytearray()
        self._after_chunk = False
        self.on_forwarded: Callable[[bytes | None], None] | None = None

    @property
    def in_head(self) -> bool:
        return self._parse_next is Framing._parse_head and bool(self._unread)

    @property
    def in_body(self) -> bool:
        return self._parse_next is not Framing._parse_head

    def feed(self, data: bytes) -> Iterator[Head | bytes]:
        """Yield each head, and then the parts of its body until `in_body` is false. The last part may be empty. Raises
        Refused; then the connection can only be closed.
        """
        self._unread += data
        while (found := self._parse_next(self)) is not None:
            if found or not self.in_body:
                yield found

    def _parse_head(self) -> Head | None:
        end = self._unread.find(b"\r\n\r\n")
        head = bytes(self._unread if end < 0 else self._unread[:end])
        if len(head) > HEAD_BYTES:
            raise Refused("head-too-large", 431)
        without_ends = head.replace(b"\r\n", b"")
        if b"\n" in without_ends or b"\r" in without_ends.removesuffix(b"\r" if end < 0 else b"") or b"\0" in head:
            raise Refused("line-ends")
        if end < 0:
            return None
        parsed = parse_head(head.split(b"\r\n"), self._limit)
        if self.on_forwarded:
            self.on_forwarded(parsed.forwarded)
        del self._unread[: end + 4]
        self._remaining, self._body_bytes, self._chunk_count = parsed.length or 0, 0, 0
        if parsed.length is None:
            self._parse_next, self._after_chunk = Framing._parse_chunks, False
        elif parsed.length:
            self._parse_next = Framing._parse_plain_body
        return parsed

    def _parse_plain_body(self) -> bytes | None:
        part = bytes(self._unread[: self._remaining])
        del self._unread[: len(part)]
        self._remaining -= len(part)
        if not self._remaining:
            self._parse_next = Framing._parse_head
        return part or None

    def _parse_chunks(self) -> bytes | None:
        """Return the body in parts of `JOINED_BYTES`, however small its chunks are. The last part may be smaller."""
        unread, offset = self._unread, 0
        while self._parse_next is Framing._parse_chunks:
            part = unread[offset : offset + self._remaining]
            self._joined += part
            self._remaining -= len(part)
            offset += len(part)
            line = None if self._remaining else self._find_size_line(offset)
            if line is None:
                break
            self._start_chunk(line)
            offset += len(line) + 2 + 2 * self._after_chunk
            self._after_chunk = True
        del unread[:offset]
        return self._take_joined()

    def _find_size_line(self, offset: int) -> bytearray | None:
        """Return the line with the size of the next chunk; None if it is incomplete. Raises Refused."""
        begin = offset + 2 * self._after_chunk
        if len(self._unread) >= begin and bytes(self._unread[offset:begin]) not in (b"\r\n", b""):
            raise Refused("chunk")
        end = self._unread.find(b"\r\n", begin, begin + CHUNK_LINE_BYTES)
        if end < 0 and len(self._unread) >= begin + CHUNK_LINE_BYTES:
            raise Refused("chunk")
        return None if end < 0 else self._unread[begin:end]

    def _start_chunk(self, line: bytearray) -> None:
        if not CHUNK.fullmatch(line):
            raise Refused("chunk")  # an extension, a sign, a space
        self._remaining = int(line, 16)
        self._body_bytes += self._remaining
        self._chunk_count += 1
        if self._body_bytes > self._limit:
            raise Refused("too-large", 413)
        if self._remaining == 0:
            self._parse_next = Framing._parse_last_line
        elif self._chunk_count > FREE_CHUNKS and self._body_bytes < self._chunk_count * SMALL_BYTES:
            raise Refused("small-chunks")

    def _take_joined(self) -> bytes | None:
        """Return the bytes that fill whole parts; None if there are none and the body has not ended."""
        ended = self._parse_next is not Framing._parse_chunks
        size = len(self._joined) if ended else len(self._joined) - len(self._joined) % JOINED_BYTES
        part = bytes(self._joined[:size])
        del self._joined[:size]
        return part if part or ended else None

    def _parse_last_line(self) -> bytes | None:
        if len(self._unread) < 2:
            return None
        if self._unread[:2] != b"\r\n":
            raise Refused("chunk")  # a trailer
        del self._unread[:2]
        self._parse_next = Framing._parse_head
        return b""
