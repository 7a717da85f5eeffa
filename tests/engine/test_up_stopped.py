"""Ctrl-C at any line of the journal of `winhost up` or `down`: the same command goes on, and `down` goes back."""

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.crash import Choice, Moment, Straight, Way, at_each, nothing
from tests.engine.crash_cases import CASES

pytestmark = [
    pytest.mark.timeout(7200),  # as test_crashes.py has it
    pytest.mark.skipif(os.name != "posix", reason="os.kill with SIGINT ends a process of Windows"),
]


@pytest.fixture(scope="module", params=[name for name in CASES if name.startswith("up and down")])
def straight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Straight]:
    name, options = request.param, request.config.option
    folder = tmp_path_factory.mktemp("stopped")
    with CASES[name].make(folder / "world") as here:
        yield Straight(CASES[name], folder / "copies", here, Choice(options.costly, f"{options.costly_seed} {name}"))


def stopped(straight: Straight, way: Way, moment: Moment) -> Any:
    """The world that is left by a command that hears Ctrl-C at this moment."""
    here = straight.copy(straight.starts[way])
    left = iter(range(moment.number, -1, -1))

    def interrupt(when: str, entry: Any) -> None:
        if next(left, None) == 0:
            os.kill(os.getpid(), signal.SIGINT)

    here.around = interrupt
    words = ("up", "--on", here.host, *here.words) if way == "there" else ("down", here.host)
    assert here.typed(*words) in (0, 1), "the last step may be in flight"
    assert next(left, None) is None, "nobody pressed Ctrl-C"
    here.around = nothing
    return here


# Times, and the hashes that chain the lines of a journal with their times.
OF_ITS_TIME = re.compile(r'\d{4}-\d\d-\d\dT[\d:.+]*|\.\d{8}-\d{6}(?:-\d+)?|"(?:previous|hash)":"\w*"')


def left_by(straight: Straight, here: Any) -> str:
    """What a command left on disk and on the host, without the times in it. A step ends before a command stops, so that
    most moments of one leave the same, and what goes on from there is tried once.
    """
    journals = sorted((here.store.folder / "runs").glob("*.jsonl"))
    return OF_ITS_TIME.sub("", "".join(each.read_text("utf-8") for each in journals)) + repr(straight.case.state(here))


@pytest.mark.costly
def test_up_goes_on_after_ctrl_c_and_down_goes_back(straight: Straight) -> None:
    tried = set[str]()

    def check(moment: Moment) -> None:
        here = stopped(straight, "there", moment)
        if (left := left_by(straight, here)) in tried:
            return
        tried.add(left)
        gives_up = straight.copy(here)
        straight.resume(here)
        straight.roll_back(here)
        straight.roll_back(gives_up)

    at_each(straight.moments["there"], check)


@pytest.mark.costly
def test_down_goes_on_after_ctrl_c(straight: Straight) -> None:
    tried = set[str]()

    def check(moment: Moment) -> None:
        here = stopped(straight, "back", moment)
        if (left := left_by(straight, here)) not in tried:
            tried.add(left)
            straight.roll_back(here)

    at_each(straight.moments["back"], check)
