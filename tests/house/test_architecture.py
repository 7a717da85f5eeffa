"""docs/architecture.md is true: who imports whom, and which files a reader walks through."""

import re
from itertools import pairwise

import pytest

from tests.house.test_imports import MAY_IMPORT
from tests.house.tree import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
ROW = re.compile(r"^\| `([\w/.]+)` \| ([^|]*) \| ?([^|]*?) ?\|$", re.MULTILINE)
# As many files as each walk takes; a longer one has lost its way.
MOST = {
    "From a GPU's location path to Add-VMAssignableDevice": 13,
    "From BARs to Set-VM, and back": 17,
    "From `--set network=nat` to .wslconfig": 13,
    "From `--api-key alice=env:KEY` to a request that is let in": 8,
    "From a model in workload.yaml to `vllm serve`": 7,
}


def section(title: str) -> str:
    return re.split(r"^#+ ", PAGE.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def legs(title: str) -> list[list[tuple[str, str, str]]]:
    """The tables of a walk: file, what happens, the name that this file and the next one share."""
    tables = re.split(r"\n(?=\| file \|)", section(title))
    return [rows for table in tables if (rows := ROW.findall(table))]


def test_the_rooms_are_those_that_tests_hold() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \| ([^|]*) \|$", section("Which room may import which"), re.MULTILINE)
    told = {room: set(re.findall(r"`([\w/]+)`", rooms)) for room, rooms in rows}
    assert told == {room: set(rooms) for room, rooms in MAY_IMPORT.items() if room != "__main__"}


def test_every_walk_is_bounded() -> None:
    walks = re.findall(r"^### (.+)$", PAGE.partition("## Five walks")[2], re.MULTILINE)
    assert walks == list(MOST)


@pytest.mark.parametrize("title", MOST)
def test_a_walk_is_short_and_hands_each_thing_on_by_its_name(title: str) -> None:
    for leg in legs(title):
        for (file, _, name), (following, _, _) in pairwise(leg):
            word = re.compile(rf"(?<![\w-]){re.escape(name.strip('`'))}(?![\w-])")
            for each in (file, following):
                assert word.search((ROOT / each).read_text("utf-8")), f"{each} does not know {name}"
    files = {file for leg in legs(title) for file, _, _ in leg}
    assert len(files) <= MOST[title]
