"""A file is written as a whole or not at all, and through no link."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from winhost.model.files import TooLarge, read_within, write_whole


def test_a_file_that_fails_in_the_middle_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    write_whole(file, ["old"])

    def pieces() -> Iterator[str]:
        yield "half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(file, pieces())
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(os.name != "posix", reason="links and rights as POSIX has them")
def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "link"
    for there in (False, True):
        if there:
            elsewhere.write_text("mine")
        link.unlink(missing_ok=True)
        link.symlink_to(elsewhere)
        with pytest.raises(OSError, match="symbolic link") as refused:
            write_whole(link, ["x"])
        assert refused.value.filename == str(link)
        assert elsewhere.exists() is there
    assert elsewhere.read_text() == "mine"


@pytest.mark.skipif(os.name != "posix", reason="links and rights as POSIX has them")
def test_who_may_open_a_file_stays_and_a_new_one_is_as_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    before = os.umask(0)
    try:
        write_whole(file, ["x"], mode=0o600)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.chmod(0o640)
        write_whole(file, [b"y"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        file.chmod(0o777)
        write_whole(file, [b"z"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o755  # a script still runs, and nobody else writes it
        write_whole(file, ["secret"], mode=0o600)
        assert stat.S_IMODE(file.stat().st_mode) == 0o700
        write_whole(tmp_path / "new.json", ["x"], mode=0o666)
        assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == 0o644
    finally:
        os.umask(before)
    assert file.read_text() == "secret"


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="this system has no such device")
def test_what_is_no_file_is_written_to_as_it_is(tmp_path: Path) -> None:
    write_whole(Path("/dev/null"), ["x"])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, ["through"])
    assert os.read(reader, 100) == b"through"
    os.close(reader)


def test_no_more_is_read_than_a_kind_of_file_can_have(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1024)
    assert len(read_within(file, 1024)) == 1024
    with pytest.raises(TooLarge, match="is larger than 1,023 bytes"):
        read_within(file, 1023)
