"""Find the beginning and end of an engine's answer, as strictly as with requests: if engine and gateway disagreed about
the end of an answer, the rest of it would become the answer to another client on the same connection.
"""

import re

from .engine_control import EngineFault
from .strict_http import CHUNK, CHUNK_LINE_BYTES, HEAD_BYTES, Refused, body_length, headers_in

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t -~\x80-\xff]*)?")
_LONGEST = 1 << 50
_END = b"\r\n"
LAST_CHUNK = b"0\r\n\r\n"
# The size lines of single chunks that were read strictly before, by the length of the whole chunk. Nearly all chunks of
# streams come alone, and are recognised by these.
CHUNKS: dict[int, bytes] = {}
_LONGEST_CHUNK = 4_096


def in_chunk(part: bytes) -> bytes:
    """Frame a part of a body as a chunk. part: not empty, because an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(part), part)


class AnswerFraming:
    """The framing of one answer. status: 0 before the head has come; headers: by names in lower case; length: of the
    body, if the head states it; ended: all of the body has come; kept: another answer may follow on this connection;
    between: nothing of the next chunk has come.
    """

    __slots__ = (
        *("status", "headers", "length", "ended", "kept", "between"),
        *("_chunked", "_until_close", "_rest", "_left", "_after_chunk"),
    )

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.length: int | None = None
        self.ended = self.kept = False
        self._chunked = self._until_close = False
        self._rest = b""  # an incomplete head, or an incomplete line between chunks
        self._left = 0  # bytes of the body, or of this chunk
        self._after_chunk = False  # the line end after a chunk is still to come
        self.between = False

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body in this data. Raises EngineFault."""
        if not self.status:
            data = self._head(self._rest + data)
            if not self.status:
                return b""
        if self.ended:
            self.kept = self.kept and not data  # nobody asked for that
            return b""
        if self._chunked:
            begins = CHUNKS.get(len(data)) if self.between else None
            if begins and data.startswith(begins) and data.endswith(_END):
                return data[len(begins) : -2]
            return self._chunks(self._rest + data)
        if self._until_close:
            return data
        taken = data[: self._left]
        self._left -= len(taken)
        self.ended = not self._left
        self.kept = self.kept and len(taken) == len(data)
        return taken

    def whole_chunks(self, data: bytes) -> int:
        """The number of body bytes in this data, if it consists of whole chunks and can be passed on as it is. 0: it
        does not, and has to be fed.
        """
        if not self.between:
            return 0
        at = size = 0
        while at < len(data):
            end = data.find(_END, at, at + CHUNK_LINE_BYTES)
            if end < 0 or not CHUNK.fullmatch(data, at, end):
                return 0
            length = int(data[at:end], 16)
            at = end + length + 4
            if not length or data[at - 2 : at] != _END:
                return 0
            size += length
        if len(data) == end + size + 4 <= _LONGEST_CHUNK:
            CHUNKS[len(data)] = data[: end + 2]
        return size

    def closed(self) -> None:
        """Note that the engine sends no more. Raises EngineFault if the answer has not ended."""
        if self.status and self._until_close:
            self.ended = True
        if not self.ended:
            raise EngineFault("closed")

    def _head(self, data: bytes) -> bytes:
        """Read the head, and return what comes after it."""
        end = data.find(b"\r\n\r\n")
        if max(end, 0) > HEAD_BYTES or (end < 0 and len(data) > HEAD_BYTES):
            raise EngineFault("head")
        if end < 0:
            self._rest = data
            return b""
        first, *lines = data[:end].split(_END)
        found = _STATUS.fullmatch(first)
        if found is None or found[2] < b"200":  # nobody asked for 100 or 101
            raise EngineFault("status")
        try:
            headers = headers_in(lines)
            length = body_length(headers, found[1], _LONGEST)
        except Refused as error:
            raise EngineFault(error.code) from None
        self._rest, self.status = b"", int(found[2])
        self.headers = {name.decode("ascii"): value.decode("latin-1") for name, value in headers.items()}
        self._chunked = self.between = length is None and self.status != 204
        self._until_close = not (self._chunked or self.status == 204 or b"content-length" in headers)
        self.kept = found[1] == b"1" and b"close" not in headers.get(b"connection", b"").lower()
        if not (self._chunked or self._until_close):
            self.length = self._left = 0 if self.status == 204 else length or 0
            self.ended = not self._left
        return data[end + 4 :]

    def _chunks(self, data: bytes) -> bytes:
        parts, at = [], 0
        while True:
            if part := data[at : at + self._left]:
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                self._after_chunk = not self._left
            if self._after_chunk and self._ends(data, at):
                at, self._after_chunk = at + 2, False
            if self._left or self._after_chunk or not (line := self._line(data, at)):
                break
            at += line
        self._rest = data[at:]
        self.between = not (self._left or self._rest or self._after_chunk or self.ended)
        if self.ended:
            self.kept = self.kept and not self._rest
        return b"".join(parts)

    def _line(self, data: bytes, at: int) -> int:
        """The length of the line with the size of the next chunk; 0 if it has not come, or the body has ended."""
        end = data.find(_END, at, at + CHUNK_LINE_BYTES)
        if self.ended or (end < 0 and len(data) < at + CHUNK_LINE_BYTES):
            return 0
        if end < 0 or not CHUNK.fullmatch(data, at, end):
            raise EngineFault("chunk")
        size = int(data[at:end], 16)
        if not size and not self._ends(data, end + 2):  # a trailer would begin there
            return 0
        self._left, self.ended = size, not size
        return end + 2 + 2 * self.ended - at

    @staticmethod
    def _ends(data: bytes, at: int) -> bool:
        """Tell whether a line ends here; False if that has not come yet. Raises EngineFault."""
        found = data[at : at + 2]
        if not _END.startswith(found):
            raise EngineFault("chunk")
        return found == _END
