"""The files that are begun first are files that there are."""

from pathlib import Path

from tests.workers import LONG

ROOT = Path(__file__).parents[2]


def test_every_file_that_is_begun_first_is_there() -> None:
    assert [name for name in LONG if name not in ("the Debian", "the tree") and not (ROOT / name).is_file()] == []
