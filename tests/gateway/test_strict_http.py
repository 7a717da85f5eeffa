"""Strict parsing of HTTP, and its refusals."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.gateway.running import KEY
from tests.rows import each_row
from winhost.gateway.strict_http import FREE_CHUNKS, JOINED_BYTES, Framing, Head, Refused

DATA = Path(__file__).parents[1] / "data/gateway"
CASES: list[dict[str, Any]] = read_cases(DATA / "requests.yaml")
LIMIT = 100_000


def sent(case: dict[str, Any]) -> bytes:
    return str(case["send"]).replace("KEY", f"Authorization: Bearer {KEY}").encode("latin-1")


def parts_of(*sent: bytes) -> list[Head | bytes]:
    framing = Framing(LIMIT)
    return [found for each in sent for found in framing.feed(each)]


def read(parts: list[bytes]) -> tuple[list[tuple[Head, bytes, bool]], str | None]:
    """Parse requests. Return each head with its body and whether that is complete, and the code of a refusal."""
    framing = Framing(LIMIT)
    requests: list[tuple[Head, bytes, bool]] = []
    try:
        for part in parts:
            for found in framing.feed(part):
                head, body, _ = (found, b"", False) if isinstance(found, Head) else requests.pop()
                body += b"" if isinstance(found, Head) else found
                requests.append((head, body, not framing.in_body))
    except Refused as refused:
        return requests, refused.code
    return requests, None


def written(requests: list[tuple[Head, bytes, bool]]) -> bytes:
    """Write the complete requests again in plain HTTP."""
    return b"".join(
        f"{head.method} {head.target} HTTP/1.{head.minor}\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
        for head, body, whole in requests
        if whole
    )


@each_row("case", CASES, ids=lambda case: case["name"])
def test_a_request_is_passed_on_or_refused(case: dict[str, Any]) -> None:
    assert read([sent(case)])[1] == case.get("refused")


@given(st.data())
def test_it_makes_no_difference_in_which_pieces_a_request_comes(data: st.DataObject) -> None:
    whole = sent(data.draw(st.sampled_from(CASES)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    requests, refused = read(pieces)
    at_once = read([whole])
    assert refused == at_once[1]
    assert requests == at_once[0] or refused  # of what is refused, more may have come before it was


_PIECES = st.sampled_from(
    [b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"a", b"0", b"5", b"GET / HTTP/1.1\r\n", b"POST /v1 HTTP/1.1\r\n",
     b"Host: a\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n\r\n", b"5\r\nhello\r\n",
     b"0\r\n\r\n", b"\x00", b"\xff", b"hello", b";x"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=12).map(b"".join))
def test_what_is_read_is_the_same_however_it_was_written(data: bytes) -> None:
    requests, _ = read([data])
    again, refused = read([written(requests)])
    assert refused is None
    assert [(head.method, head.target, body) for head, body, _ in again] == [
        (head.method, head.target, body) for head, body, whole in requests if whole
    ]


def test_a_head_without_end_is_refused() -> None:
    assert read([b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 20_000])[1] == "head-too-large"


def test_of_a_head_only_what_is_needed_is_kept() -> None:
    head = b"POST /v1 HTTP/1.1\r\nHost: a\r\nCookie: a=b\r\nX-Forwarded-For: 1.2.3.4\r\nExpect: 100-Continue\r\n"
    head += (
        b"Content-Type: Application/JSON ; charset=utf-8\r\nAuthorization: Bearer \xff\r\nConnection: a, Close\r\n\r\n"
    )
    assert parts_of(head) == [Head("POST", "/v1", 1, 0, False, "Bearer \udcff", "application/json", True, b"1.2.3.4")]


CHUNKED = b"POST /v1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_body_in_small_chunks_is_passed_on_in_large_parts() -> None:
    chunks = (b"40\r\n" + b"x" * 64 + b"\r\n") * 1_024
    parts = parts_of(CHUNKED, *(chunks[at : at + 100] for at in range(0, len(chunks), 100)), b"0\r\n\r\n")
    assert [len(each) for each in parts[1:]] == [JOINED_BYTES] * 4 + [0]


def test_very_small_chunks_are_refused_after_a_tolerance() -> None:
    one = b"1\r\nx\r\n"
    assert read([CHUNKED + one * FREE_CHUNKS + b"0\r\n\r\n"])[1] is None
    assert read([CHUNKED + one * (FREE_CHUNKS + 1)])[1] == "small-chunks"
