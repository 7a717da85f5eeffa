"""Ctrl-C at any line of the journal of `winhost up` or `down`: the same command goes on, and `down` goes back."""

import os
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


@pytest.mark.costly
def test_up_goes_on_after_ctrl_c_and_down_goes_back(straight: Straight) -> None:
    def check(moment: Moment) -> None:
        here = stopped(straight, "there", moment)
        gives_up = straight.copy(here)
        straight.resume(here)
        straight.roll_back(here)
        straight.roll_back(gives_up)

    at_each(straight.moments["there"], check)


@pytest.mark.costly
def test_down_goes_on_after_ctrl_c(straight: Straight) -> None:
    at_each(straight.moments["back"], lambda moment: straight.roll_back(stopped(straight, "back", moment)))
