"""An engine's answer is parsed in the same way however it is divided, and invalid HTTP ends it."""

import pytest

from tests.rows import each_row
from winhost.gateway.answer_framing import AnswerFraming
from winhost.gateway.engine_control import EngineFault

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
# name: the answer, its body, whether it has ended, whether the connection may be used again
READ: dict[str, tuple[bytes, bytes, bool, bool]] = {
    "chunks": (CHUNKED + b"3\r\none\r\nA\r\n0123456789\r\n0\r\n\r\n", b"one0123456789", True, True),
    "no chunk": (CHUNKED + b"0\r\n\r\n", b"", True, True),
    "cut chunk": (CHUNKED + b"5\r\none", b"one", False, True),
    "no last chunk": (CHUNKED + b"3\r\none\r\n", b"one", False, True),
    "half of the end": (CHUNKED + b"3\r\none\r\n0\r\n\r", b"one", False, True),
    "more after chunks": (CHUNKED + b"0\r\n\r\nHTTP/1.1 200 OK\r\n", b"", True, False),
    "length": (HEAD + b"Content-Length: 3\r\n\r\none", b"one", True, True),
    "more than the length": (HEAD + b"Content-Length: 3\r\n\r\nones", b"one", True, False),
    "less than the length": (HEAD + b"Content-Length: 4\r\n\r\none", b"one", False, True),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True, True),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", b"", True, True),
    "said to close": (HEAD + b"Connection: keep-alive, Close\r\nContent-Length: 3\r\n\r\none", b"one", True, False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\none", b"one", True, False),
    "until it closes": (HEAD + b"\r\none", b"one", False, True),
}
NOT_HTTP = {
    "no status": b"200 OK\r\n\r\n",
    "HTTP/2": b"HTTP/2 200 OK\r\n\r\n",
    "an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "a control byte": HEAD + b"Retry-After: a\x01b\r\n\r\n",
    "a bare line end": HEAD + b"Retry-After: a\nX: b\r\n\r\n",
    "a folded header": HEAD + b" more\r\n\r\n",
    "a space before the colon": HEAD + b"Content-Length : 3\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n",
    "a signed length": HEAD + b"Content-Length: +3\r\n\r\n",
    "length and chunks": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "another coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "chunks in HTTP/1.0": CHUNKED.replace(b"/1.1", b"/1.0"),
    "a long head": HEAD + b"X: " + b"x" * 20_000,
    "an extension": CHUNKED + b"3;a=b\r\none\r\n",
    "a sign": CHUNKED + b"+3\r\none\r\n",
    "a size without an end": CHUNKED + b"3" * 20,
    "a longer chunk": CHUNKED + b"3\r\nones\r\n",
    "a trailer": CHUNKED + b"0\r\nX: y\r\n\r\n",
}


def read(answer: bytes, size: int) -> tuple[AnswerFraming, bytes]:
    framing = AnswerFraming()
    return framing, b"".join(framing.feed(answer[at : at + size]) for at in range(0, len(answer), size))


@each_row("name", READ)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_it_is_read_alike_however_it_is_cut(size: int, name: str) -> None:
    answer, body, ended, keep_alive = READ[name]
    framing, found = read(answer, size)
    assert (found, framing.complete, framing.keep_alive) == (body, ended, keep_alive)


@each_row("name", NOT_HTTP)
@pytest.mark.parametrize("size", [1, 3, 1000, 30_000])
def test_what_is_not_http_ends_it(size: int, name: str) -> None:
    with pytest.raises(EngineFault):
        read(NOT_HTTP[name], size)


@each_row("name", READ)
def test_an_answer_ends_with_its_connection_only_where_nothing_else_says_its_end(name: str) -> None:
    answer, _, ended, _ = READ[name]
    framing, _ = read(answer, 1000)
    if ended or name == "until it closes":
        framing.handle_eof()
        assert framing.complete
    else:
        with pytest.raises(EngineFault):
            framing.handle_eof()


@each_row(
    ("data", "size"),
    [
        (b"3\r\none\r\n", 3),
        (b"3\r\none\r\n4\r\nmore\r\n", 7),
        (b"3\r\none", 0),
        (b"3\r\none\r", 0),
        (b"3\r\none\r\n4\r\nmo", 0),
        (b"3\r\nones\r\n", 0),
        (b"03;a=b\r\none\r\n", 0),
        (b" 3\r\none\r\n", 0),
        (b"-3\r\none\r\n", 0),
        (b"000000003\r\none\r\n", 0),
        (b"3\r\none\r\n0\r\n\r\n", 0),
        (b"0\r\n\r\n", 0),
        (b"ffffffff\r\none\r\n", 0),
    ],
)
def test_only_whole_chunks_pass_as_they_are(data: bytes, size: int) -> None:
    assert read(CHUNKED, 1000)[0].whole_chunk_bytes(data) == size
    assert read(CHUNKED + b"1\r\nx\r\n", 1000)[0].whole_chunk_bytes(data) == size
    for begun in (b"", HEAD, CHUNKED + b"9\r\n", CHUNKED + b"1\r\nx", CHUNKED + b"1\r\nx\r", CHUNKED + b"3"):
        assert read(begun, 1000)[0].whole_chunk_bytes(data) == 0
    assert read(HEAD + b"\r\n", 1000)[0].whole_chunk_bytes(data) == 0
