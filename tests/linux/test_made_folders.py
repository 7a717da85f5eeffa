"""Folders that winhost makes for its files, and that go with the last of these."""

import os
import sys
from pathlib import Path

import pytest

from winhost.agent.linux_files import CREATED_ATTRIBUTE, move, put, remove

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attributes of folders are Linux's")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    try:
        os.setxattr(tmp_path, "user.test", b"1")
    except OSError:
        pytest.skip("this file system keeps no attributes")
    return tmp_path


def test_those_that_it_made_go_with_the_last_file_and_no_other(here: Path) -> None:
    (here / "theirs").mkdir()
    one, two = here / "theirs/a/b/one", here / "theirs/a/two"
    put(str(one), "1")
    put(str(two), "2")
    remove(str(one))
    assert sorted(each.name for each in (here / "theirs").rglob("*")) == ["a", "two"]
    remove(str(two))
    assert [*here.iterdir()] == [here / "theirs"], "it was there before, and stays empty"


def test_one_with_something_of_others_in_it_stays(here: Path) -> None:
    file = here / "a/b/one"
    put(str(file), "1")
    (here / "a/theirs").touch()
    remove(str(file))
    assert [*(here / "a").iterdir()] == [here / "a/theirs"]


def test_one_that_was_there_before_stays_within_those_that_it_made(here: Path) -> None:
    put(str(here / "a/one"), "1")
    (here / "a/theirs").mkdir()
    put(str(here / "a/theirs/c/two"), "2")
    remove(str(here / "a/theirs/c/two"))
    remove(str(here / "a/one"))
    assert [*here.rglob("*")] == [here / "a", here / "a/theirs"]


def test_a_file_that_moves_takes_its_folder_along(here: Path) -> None:
    put(str(here / "parts/one"), "1")
    move(str(here / "parts/one"), str(here / "whole/one"))
    assert [*here.iterdir()] == [here / "whole"]
    remove(str(here / "whole/one"))
    assert [*here.iterdir()] == []


def test_a_removal_that_was_killed_halfway_is_ended_by_the_next(here: Path) -> None:
    put(str(here / "a/b/one"), "1")
    (here / "a/b/one").unlink()
    (here / "a/b").rmdir()
    remove(str(here / "a/b/one"))
    assert [*here.iterdir()] == []


def test_without_attributes_they_stay_as_they_are(here: Path) -> None:
    put(str(here / "a/one"), "1")
    os.removexattr(here / "a", CREATED_ATTRIBUTE)
    remove(str(here / "a/one"))
    assert [*here.iterdir()] == [here / "a"]
