"""A journal is believed only as it was written."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from winhost.engine.journal import Journal, read_journal

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
    Journal(path).write("end", resource="VmMmio")
    assert [entry["event"] for entry in read_journal(path)] == ["begin", "begin", "begin", "end"]


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda lines: [lines[0], lines[1].replace(b'"1"', b'"7"'), *lines[2:]], 2),
        (lambda lines: [*lines[:3], lines[3].replace(b'"3"', b'"7"')], 4),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [lines[0], lines[1][:20] + b"\n", *lines[2:]], 2),
        (lambda lines: [lines[0].replace(b":", b": ", 1), *lines[1:]], 1),
        (lambda lines: [*lines[:3], lines[3][:-1] + b"x\n"], 4),
        (lambda lines: [*lines, b"[]\n"], 5),
    ],
    ids=["value", "value of the last", "removed", "swapped", "cut in the middle", "reformatted", "tail", "added"],
)
def test_an_edited_journal_is_refused_at_its_line(tmp_path: Path, edit: object, line: int) -> None:
    path = tmp_path / "j.jsonl"
    assert callable(edit)
    path.write_bytes(b"".join(edit(written(path))))
    with raises("Damaged") as damaged:
        read_journal(path)
    assert f":{line}: the journal is damaged: " in damaged.value.what
    assert damaged.value.exit_code == 2


def test_a_line_of_another_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    written(path, 2)
    journal = Journal(path)
    journal.entries.insert(0, journal.entries[0])
    journal.write("end")
    with raises("Damaged") as damaged:
        read_journal(path)
    assert ":3: the journal is damaged: " in damaged.value.what


def test_a_journal_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(json.dumps({"schema": "winhost.bundle-journal/3", "lines": "of another kind"}) + "\n")
    with raises("ForeignJournal", match="winhost.bundle-journal/3"):
        read_journal(path)


@pytest.mark.parametrize("text", [b"", b'{"n":1,"at":"20'], ids=["empty", "torn"])
def test_a_journal_without_a_whole_line_has_no_entries(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(text)
    assert read_journal(path) == []


@pytest.mark.parametrize("text", [b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'"\\ud800"\n', b"7\n"])
def test_what_is_no_journal_is_damaged(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(text)
    with raises("Damaged"):
        read_journal(path)
    (tmp_path / "folder.jsonl").mkdir()
    with raises("Damaged"):
        read_journal(tmp_path / "folder.jsonl")


def test_a_disk_that_takes_a_part_gets_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr("os.write", lambda descriptor, line: write(descriptor, line[:7]))
    written(tmp_path / "j.jsonl")
    assert len(read_journal(tmp_path / "j.jsonl")) == 4


def test_a_line_that_does_not_fit_on_the_disk_is_not_there_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j.jsonl"
    whole = b"".join(written(path))
    journal, write, room = Journal(path), os.write, [30]

    def full(descriptor: int, line: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(descriptor, line[: room[0]])
        room[0] -= taken
        return taken

    with monkeypatch.context() as patched:
        patched.setattr("os.write", full)
        with pytest.raises(OSError, match="No space"):
            journal.write("end")
    assert path.read_bytes() == whole
    journal.write("end")
    assert len(read_journal(path)) == 5


def test_a_line_is_on_the_disk_and_not_only_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.jsonl"
    synced: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            synced.append(path.stat().st_size)

    monkeypatch.setattr("os.fsync", watched)
    journal = Journal(path)
    for number in range(1, 4):
        journal.write("begin")
        assert synced[number - 1 :] == [path.stat().st_size]


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
