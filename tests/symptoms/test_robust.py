"""Whatever bytes come, in whatever pieces, the answer comes and is the same; and a long log takes no more memory."""

import tracemalloc
from io import BytesIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from winhost.symptoms import scan as pasted
from winhost.symptoms.codes import normalize_single_code, spellings
from winhost.symptoms.diagnosis import MAX_EXCERPT, diagnose
from winhost.symptoms.scan import MAX_CODES, NEAR_CHARACTERS, Hit, pieces, rank_hits, scan
from winhost.symptoms.table import symptoms

KNOWN = "Error code: Wsl/Service/CreateInstance/CreateVm/HCS/0x80070569"
LINE = (
    "2026-11-20T10:11:12Z (EngineCore pid=412) INFO [loggers.py:236] Engine 000: Avg prompt throughput: 12.4 0x7f3a\n"
)


@given(st.binary(max_size=3000))
@example(b"\xff\xfe\x00")
@example(b"\x1b[" * 500)
@example("İ0x80070569İ".encode())
def test_any_bytes_get_an_answer(data: bytes) -> None:
    answer = diagnose(pieces(BytesIO(data)), "log")
    assert len(answer.unknown_codes) <= MAX_CODES
    assert all(len(found.observed) <= MAX_EXCERPT + 2 for found in answer.found)


@given(st.lists(st.integers(0, 2 * NEAR_CHARACTERS), max_size=4), st.sampled_from(["\n", " ", "x\n", "İ\n"]))
def test_a_symptom_is_found_wherever_a_piece_ends(gaps: list[int], filler: str) -> None:
    text = (KNOWN + "\n").join([filler * gap + "\n" for gap in gaps] or [""])
    whole = scan([text])
    cut = scan(text[start : start + 997] for start in range(0, len(text), 997))
    told = {name: (hit.line, hit.count, hit.text) for name, hit in whole.hits.items()}
    assert {name: (hit.line, hit.count, hit.text) for name, hit in cut.hits.items()} == told
    assert sum(hit.count for hit in rank_hits(whole.hits.values())) == max(0, len(gaps) - 1)
    assert cut.lines == whole.lines


@given(st.integers(0x80000000, 0xFFFFFFFF))
def test_a_code_alone_is_read_in_each_spelling(code: int) -> None:
    assert {normalize_single_code(text) for text in (*spellings(code), f"{code:X}")} >= {f"0x{code:08X}"}


@pytest.mark.costly
@pytest.mark.parametrize("line", ["x", LINE, KNOWN + "\n"])
def test_a_longer_log_takes_no_more_memory(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pasted, "PIECE", 1 << 14)
    diagnose(pieces(BytesIO(b"")), "log")  # what is made once
    most = [peak(line * (times * pasted.PIECE // len(line))) for times in (8, 24)]
    assert most[1] < 1.5 * most[0] + 4 * pasted.PIECE


def peak(text: str) -> int:
    """Bytes at most while it is read."""
    stream = BytesIO(text.encode())
    tracemalloc.start()
    diagnose(pieces(stream), "log")
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return used


@pytest.mark.real
def test_a_hundred_megabytes_are_read_to_their_end() -> None:
    stream = BytesIO((LINE.encode() * 10_000 + b"\n") * (100_000_000 // (10_000 * len(LINE))))
    assert diagnose(pieces(stream), "log").found == ()


def test_no_problem_of_a_log_is_compared_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hits = [Hit(symptom, line, "") for line, symptom in enumerate(symptoms().values())]
    monkeypatch.setattr(Hit, "__eq__", lambda *_: pytest.fail("two problems are compared"))
    assert rank_hits(hits)
