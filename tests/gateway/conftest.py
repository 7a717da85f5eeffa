"""Fixtures of a gateway, run by the Python of these tests. `make real` also runs it by the oldest and newest
installed ones.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway.running import Gateway, gateway, settings_for
from tests.processes import python_of

MINORS = range(10, 40)


@pytest.fixture(
    scope="session", params=["ours", *(pytest.param(each, marks=pytest.mark.real) for each in ("oldest", "newest"))]
)
def python(request: pytest.FixtureRequest) -> str:
    """The Python of these tests, or the oldest or newest `python3.N` on the PATH that can run a gateway."""
    if request.param == "ours":
        return sys.executable
    order = MINORS if request.param == "oldest" else reversed(MINORS)
    return next((found for minor in order if (found := python_of(minor))), sys.executable)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, because the path of a Unix socket has up to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def door(python: str) -> Iterator[Gateway]:
    """A gateway with limits that tests can reach."""
    limits = {"body_bytes": 1_000_000, "hold": 3, "receive": 2, "requests": 8, "waiting": 2, "drain": 5, "silence": 2}
    with tempfile.TemporaryDirectory(prefix="door-") as name:
        folder = Path(name)
        with gateway(folder, settings_for(folder, limits=limits), python) as found:
            yield found


@pytest.fixture
def own_door(python: str, short: Path) -> Callable[..., "Iterator[Gateway]"]:
    """A gateway for one test."""

    def made(engine_up: bool = True, **limits: int) -> Iterator[Gateway]:
        settings = settings_for(short, limits={"hold": 5, "drain": 5, **limits})
        return gateway(short, settings, python, engine_up)  # type: ignore[return-value]  # a context

    return made
