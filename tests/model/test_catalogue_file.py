"""Our data is parsed once for each content, and a cache that is of no use changes nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from winhost.model import catalogue_file
from winhost.model.catalogue_file import load_catalogue
from winhost.model.shipped import shipped

HOUSE = Path(catalogue_file.__file__).parents[1]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINHOST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "catalogues"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.yaml"
    path.write_text("a: {seen: 2026-11-27, list: [1, 'two', null]}\n")
    return path


DATA = {"a": {"seen": "2026-11-27", "list": [1, "two", None]}}


def no_parser(*_: Any, **__: Any) -> None:
    raise AssertionError("the file was parsed again")


def test_it_is_parsed_once_for_each_content(file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_catalogue(file) == DATA
    with monkeypatch.context() as patch:
        patch.setattr(yaml, "load", no_parser)
        assert load_catalogue(file) == DATA
    file.write_text("a: other\n")
    assert load_catalogue(file) == {"a": "other"}
    assert len([*kept.iterdir()]) == 2


def test_what_was_cut_short_is_parsed_again(file: Path, kept: Path) -> None:
    load_catalogue(file)
    (found,) = kept.iterdir()
    found.write_text(found.read_text()[:9])
    assert load_catalogue(file) == DATA
    assert json.loads(found.read_text()) == DATA


def test_a_cache_that_cannot_be_written_costs_time_alone(file: Path, kept: Path) -> None:
    kept.parent.write_text("no folder")
    assert load_catalogue(file) == load_catalogue(file) == DATA


def test_what_could_not_be_kept_leaves_nothing(file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "replace", full)
    assert load_catalogue(file) == DATA
    assert [*kept.iterdir()] == []


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
def test_the_cache_is_its_owners_alone(file: Path, kept: Path) -> None:
    load_catalogue(file)
    assert kept.stat().st_mode & 0o077 == 0
    assert {each.stat().st_mode & 0o077 for each in kept.iterdir()} == {0}


def test_every_file_of_ours_can_be_kept_and_means_the_same(kept: Path) -> None:
    files = [*HOUSE.glob("knowledge/**/*.yaml"), *HOUSE.glob("hardware/*.yaml"), *HOUSE.glob("symptoms/known/*.yaml")]
    files += [*HOUSE.glob("compat/*.yaml"), *HOUSE.glob("paths/*.yaml"), *shipped("playbooks").glob("*.yaml")]
    assert len(files) > 30
    parsed = [load_catalogue(each) for each in files]
    assert [each.name for each in files if not _is_kept(each, kept)] == []
    assert [load_catalogue(each) for each in files] == parsed


def _is_kept(file: Path, kept: Path) -> bool:
    before = {*kept.iterdir()}
    load_catalogue(file)
    return {*kept.iterdir()} == before


def test_a_key_that_stands_twice_is_refused(tmp_path: Path, kept: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("a: 1\nrows:\n  one: &base {x: 1}\n  two:\n    <<: *base\n    x: 2\n")
    assert load_catalogue(file)["rows"]["two"] == {"x": 2}
    file.write_text("a: 1\nrows:\n  one: 1\n  two: 2\n  one: 3\n")
    with pytest.raises(ValueError, match="line 3: one mapping has twice: one"):
        load_catalogue(file)
