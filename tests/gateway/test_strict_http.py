"""What the gateway reads of HTTP before aiohttp does."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.gateway.running import KEY
from tests.rows import each_row
from winhost.gateway.strict_http import FREE_CHUNKS, Framing, Refused

DATA = Path(__file__).parents[1] / "data/gateway"
CASES: list[dict[str, Any]] = read_cases(DATA / "requests.yaml")
LIMIT = 100_000


def sent(case: dict[str, Any]) -> bytes:
    return str(case["send"]).replace("KEY", f"Authorization: Bearer {KEY}").encode("latin-1")


def read(parts: list[bytes]) -> tuple[bytes, str | None]:
    """What is passed on, and the code of the refusal."""
    framing, passed = Framing(LIMIT), b""
    try:
        for part in parts:
            for each in framing.feed(part):
                passed += each
    except Refused as refused:
        return passed, refused.code
    return passed, None


@each_row("case", CASES, ids=lambda case: case["name"])
def test_a_request_is_passed_on_or_refused(case: dict[str, Any]) -> None:
    assert read([sent(case)])[1] == case.get("refused")


@given(st.data())
def test_it_makes_no_difference_in_which_pieces_a_request_comes(data: st.DataObject) -> None:
    whole = sent(data.draw(st.sampled_from(CASES)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    passed, refused = read(pieces)
    at_once = read([whole])
    assert refused == at_once[1]
    assert passed == at_once[0] or refused  # of what is refused, more may have come before it was


_PIECES = st.sampled_from(
    [b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"a", b"0", b"5", b"GET / HTTP/1.1\r\n", b"POST /v1 HTTP/1.1\r\n",
     b"Host: a\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n\r\n", b"5\r\nhello\r\n",
     b"0\r\n\r\n", b"\x00", b"\xff", b"hello", b";x"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=12).map(b"".join))
def test_nothing_that_is_passed_on_can_be_read_in_another_way(data: bytes) -> None:
    """Whatever comes: once passed on, reading it again refuses nothing and changes nothing."""
    passed, _ = read([data])
    assert read([passed]) == (passed, None)


def test_a_head_without_end_is_refused() -> None:
    assert read([b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 20_000])[1] == "head-too-large"


def test_only_known_headers_are_passed_on() -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\nCookie: a=b\r\nX-Forwarded-For: 1.2.3.4\r\nAccept: */*\r\n\r\n"
    assert read([head])[0] == b"GET / HTTP/1.1\r\nhost: a\r\naccept: */*\r\n\r\n"


CHUNKED = b"POST /v1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_body_in_small_chunks_is_passed_on_in_large_ones() -> None:
    body = b"40\r\n" + b"x" * 64 + b"\r\n"
    parts = [*Framing(LIMIT).feed(CHUNKED + body * 1_024 + b"0\r\n\r\n")]
    assert len(parts) <= 4
    assert parts[1].count(b"4000\r\n") == 4


def test_very_small_chunks_are_refused_after_a_tolerance() -> None:
    one = b"1\r\nx\r\n"
    assert read([CHUNKED + one * FREE_CHUNKS + b"0\r\n\r\n"])[1] is None
    assert read([CHUNKED + one * (FREE_CHUNKS + 1)])[1] == "small-chunks"
