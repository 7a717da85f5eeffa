"""A gateway, with the aiohttp of these tests, or in `make real` with the oldest that it knows."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway.running import Gateway, gateway, settings_for
from tests.house.tree import HOUSE
from tests.processes import PATIENCE_S

OLDEST = ["aiohttp==3.8.4"]  # Debian 12
LOCKED = ["--require-hashes", "--requirement", str(HOUSE / "serving/gateway-requirements.txt")]


def python_with(minor: int) -> str | None:
    """Where it is; a shim of pyenv may be there for one that is not."""
    found = shutil.which(f"python3.{minor}")
    return (
        found
        if found and subprocess.run([found, "-c", ""], capture_output=True, timeout=PATIENCE_S).returncode == 0
        else None
    )


@pytest.fixture(
    scope="session",
    params=["newest", *(pytest.param(each, marks=pytest.mark.real) for each in ("oldest", "locked"))],
)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with an aiohttp: of these tests, the oldest that there may be, or what `--gateway-wheels` brings, by the
    oldest Python that is here.
    """
    if request.param == "newest":
        return sys.executable
    older = (request.param == "locked" and python_with(10)) or python_with(11)
    if older is None:
        pytest.skip(f"no python3.11, and {OLDEST[0]} has no wheel for later ones")
    folder = tmp_path_factory.mktemp(request.param)
    found = str(folder / "bin/python")
    wanted = OLDEST if request.param == "oldest" else LOCKED
    pip = [found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    subprocess.run([older, "-m", "venv", str(folder)], check=True, timeout=PATIENCE_S)
    subprocess.run(pip, check=True, timeout=PATIENCE_S)
    return found


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: that of a Unix socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def door(python: str) -> Iterator[Gateway]:
    """With limits that tests can reach."""
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
