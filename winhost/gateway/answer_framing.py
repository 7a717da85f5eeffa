"""Find the beginning and end of an engine's answer, as strictly as those of requests. If an engine and the gateway
disagreed about the end of an answer, the rest of it would go to the next client on the same connection.
"""

import re

from .engine_control import EngineFault
from .strict_http import CHUNK, CHUNK_LINE_BYTES, HEAD_BYTES, Refused, body_length, parse_headers

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t -~\x80-\xff]*)?")
_MAX_BODY_BYTES = 1 << 50
_CRLF = b"\r\n"
LAST_CHUNK = b"0\r\n\r\n"
# The size lines of chunks that were parsed before, by the length of the whole chunk. Nearly all chunks of streams come
# one at a time, and are recognised by these.
KNOWN_CHUNK_LINES: dict[int, bytes] = {}
_MAX_KNOWN_CHUNK = 4_096


def encode_chunk(part: bytes) -> bytes:
    """Encode a part of a body as a chunk. part: not empty, because an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(part), part)


class AnswerFraming:
    """The framing of one answer. status: 0 before the head was received; headers: by name in lower case; length: of the
    body, if the head states it; complete: all of the body was received; keep_alive: another answer may follow on this
    connection; between_chunks: no byte of the next chunk was received.
    """

    __slots__ = (
        *("status", "headers", "length", "complete", "keep_alive", "between_chunks"),
        *("_chunked", "_until_close", "_incomplete", "_remaining", "_after_chunk"),
    )

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.length: int | None = None
        self.complete = self.keep_alive = False
        self._chunked = self._until_close = False
        self._incomplete = b""  # an incomplete head, or an incomplete line between chunks
        self._remaining = 0  # bytes of the body, or of this chunk
        self._after_chunk = False  # the line end after a chunk is still to come
        self.between_chunks = False

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the body in this data. Raises EngineFault."""
        if not self.status:
            data = self._read_head(self._incomplete + data)
            if not self.status:
                return b""
        if self.complete:
            self.keep_alive = self.keep_alive and not data  # the engine sends more than it announced
            return b""
        if self._chunked:
            size_line = KNOWN_CHUNK_LINES.get(len(data)) if self.between_chunks else None
            if size_line and data.startswith(size_line) and data.endswith(_CRLF):
                return data[len(size_line) : -2]
            return self._read_chunks(self._incomplete + data)
        if self._until_close:
            return data
        part = data[: self._remaining]
        self._remaining -= len(part)
        self.complete = not self._remaining
        self.keep_alive = self.keep_alive and len(part) == len(data)
        return part

    def whole_chunk_bytes(self, data: bytes) -> int:
        """Return the number of body bytes in data that consists of whole chunks, so that it can be relayed as it is.
        Return 0 for other data, which has to be fed.
        """
        if not self.between_chunks:
            return 0
        offset = size = 0
        while offset < len(data):
            end = data.find(_CRLF, offset, offset + CHUNK_LINE_BYTES)
            if end < 0 or not CHUNK.fullmatch(data, offset, end):
                return 0
            length = int(data[offset:end], 16)
            offset = end + length + 4
            if not length or data[offset - 2 : offset] != _CRLF:
                return 0
            size += length
        if len(data) == end + size + 4 <= _MAX_KNOWN_CHUNK:
            KNOWN_CHUNK_LINES[len(data)] = data[: end + 2]
        return size

    def handle_eof(self) -> None:
        """Note that the engine sends no more. Raises EngineFault if the answer is incomplete."""
        if self.status and self._until_close:
            self.complete = True
        if not self.complete:
            raise EngineFault("closed")

    def _read_head(self, data: bytes) -> bytes:
        """Parse the head, and return the data after it."""
        end = data.find(b"\r\n\r\n")
        if max(end, 0) > HEAD_BYTES or (end < 0 and len(data) > HEAD_BYTES):
            raise EngineFault("head")
        if end < 0:
            self._incomplete = data
            return b""
        first, *lines = data[:end].split(_CRLF)
        match = _STATUS.fullmatch(first)
        if match is None or match[2] < b"200":  # no request of the gateway asks for 100 or 101
            raise EngineFault("status")
        try:
            headers = parse_headers(lines)
            length = body_length(headers, match[1], _MAX_BODY_BYTES)
        except Refused as error:
            raise EngineFault(error.code) from None
        self._incomplete, self.status = b"", int(match[2])
        self.headers = {name.decode("ascii"): value.decode("latin-1") for name, value in headers.items()}
        self._chunked = self.between_chunks = length is None and self.status != 204
        self._until_close = not (self._chunked or self.status == 204 or b"content-length" in headers)
        self.keep_alive = match[1] == b"1" and b"close" not in headers.get(b"connection", b"").lower()
        if not (self._chunked or self._until_close):
            self.length = self._remaining = 0 if self.status == 204 else length or 0
            self.complete = not self._remaining
        return data[end + 4 :]

    def _read_chunks(self, data: bytes) -> bytes:
        parts, offset = [], 0
        while True:
            if part := data[offset : offset + self._remaining]:
                parts.append(part)
                offset += len(part)
                self._remaining -= len(part)
                self._after_chunk = not self._remaining
            if self._after_chunk and self._is_line_end(data, offset):
                offset, self._after_chunk = offset + 2, False
            if self._remaining or self._after_chunk or not (line := self._read_size_line(data, offset)):
                break
            offset += line
        self._incomplete = data[offset:]
        self.between_chunks = not (self._remaining or self._incomplete or self._after_chunk or self.complete)
        if self.complete:
            self.keep_alive = self.keep_alive and not self._incomplete
        return b"".join(parts)

    def _read_size_line(self, data: bytes, offset: int) -> int:
        """Parse the line with the size of the next chunk, and return its length; 0 if it is incomplete, or the body has
        ended.
        """
        end = data.find(_CRLF, offset, offset + CHUNK_LINE_BYTES)
        if self.complete or (end < 0 and len(data) < offset + CHUNK_LINE_BYTES):
            return 0
        if end < 0 or not CHUNK.fullmatch(data, offset, end):
            raise EngineFault("chunk")
        size = int(data[offset:end], 16)
        if not size and not self._is_line_end(data, end + 2):  # a trailer would begin there
            return 0
        self._remaining, self.complete = size, not size
        return end + 2 + 2 * self.complete - offset

    @staticmethod
    def _is_line_end(data: bytes, offset: int) -> bool:
        """Tell whether a line ends here; False if its end was not received yet. Raises EngineFault."""
        end = data[offset : offset + 2]
        if not _CRLF.startswith(end):
            raise EngineFault("chunk")
        return end == _CRLF
