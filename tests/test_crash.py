"""The command that kills and counts."""

import pytest
from click.testing import CliRunner

from tests.crash import killed, main
from tests.engine.crash import Straight


@pytest.mark.costly
def test_it_counts_kills_and_what_ends_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--kills", "3", "--only", "linux unit of one's own"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout.count(": 3 kills, 5 ways on or back, 0 differences")) == (0, 1)

    def otherwise(straight: Straight, here: object) -> None:
        raise AssertionError("it is not as made")

    monkeypatch.setattr(Straight, "resume", otherwise)
    _, count, _ = killed("linux unit of one's own", 3, 1)
    assert (count.kills, len(count.differences)) == (3, 2)
