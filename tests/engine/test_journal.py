"""A journal is believed only as it was written."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winhost.engine.journal import Damaged, Journal, read_journal

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(min_value=-(2**53), max_value=2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def written(path: Path, lines: int = 4) -> list[bytes]:
    journal = Journal(path)
    for number in range(lines):
        journal.write("begin", step={"id": str(number), "title": 'quotes " \u2019 and\nlines \u202e'})
    return path.read_bytes().splitlines(keepends=True)


@given(fields=st.lists(PLAIN, min_size=1, max_size=4))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, fields: list[object]) -> None:
    path = tmp_path_factory.mktemp("journal") / "j.jsonl"
    journal = Journal(path)
    for value in fields:
        journal.write("begin", value=value)
    assert [entry["value"] for entry in read_journal(path)] == fields


def test_a_torn_last_line_is_tolerated_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    lines = written(path)
    for cut in range(len(lines[-1])):
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
        assert len(read_journal(path)) == 3
    Journal(path).write("end", noun="VmMmio")
    assert [entry["event"] for entry in read_journal(path)] == ["begin", "begin", "begin", "end"]


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda lines: [lines[0], lines[1].replace(b'"1"', b'"7"'), *lines[2:]], 3),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [lines[0], lines[1][:20] + b"\n", *lines[2:]], 2),
        (lambda lines: [lines[0].replace(b":", b": ", 1), *lines[1:]], 1),
        (lambda lines: [*lines[:3], lines[3][:-1] + b"x\n"], 4),
        (lambda lines: [*lines, b"[]\n"], 5),
    ],
    ids=["value", "removed", "swapped", "cut in the middle", "reformatted", "tail", "added"],
)
def test_an_edited_journal_is_refused_at_its_line(tmp_path: Path, edit: object, line: int) -> None:
    path = tmp_path / "j.jsonl"
    assert callable(edit)
    path.write_bytes(b"".join(edit(written(path))))
    with pytest.raises(Damaged) as damaged:
        read_journal(path)
    assert damaged.value.line == line
    assert damaged.value.exit_code == 2


def test_each_line_is_on_disk_before_the_next_thing_happens(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    seen: list[tuple[str, int]] = []

    def around(when: str, entry: object) -> None:
        seen.append((when, path.read_bytes().count(b"\n") if path.exists() else 0))

    journal = Journal(path, around)
    journal.write("begin")
    journal.write("end")
    assert seen == [("before", 0), ("after", 1), ("before", 1), ("after", 2)]
    assert json.loads(path.read_text().splitlines()[0])["n"] == 1
