"""Fixtures of Linux machines with an agent."""

import sys
from collections.abc import Iterator

import pytest

from tests.cli.conftest import line
from tests.linux.debian import Debian, NoDebian
from tests.linux.distro import STAGED, Distro
from tests.linux.sandbox import NoSandbox, Sandbox
from tests.linux.wsl import Wsl
from winhost.connect.agent import Agent

# run.py of a bundle can only be imported where it is to run.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_by_hand*.py"]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    try:
        made = Sandbox(tmp_path_factory.mktemp("sandbox") / "written")
    except NoSandbox as why:
        pytest.skip(f"the agent runs for real only in a sandbox: {why}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def agent(sandbox: Sandbox) -> Iterator[Agent]:
    asked = sandbox.agent()
    yield asked
    asked.close()


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Debian]:
    try:
        made = Debian(pytestconfig.cache.mkdir("debian") / "base", tmp_path_factory.mktemp("debian"))
    except NoDebian as why:
        pytest.skip(f"no Debian with systemd can be made here: {why}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def asked(debian: Debian) -> Iterator[Agent]:
    """The agent of the Debian, reached through its sshd."""
    made = debian.agent()
    yield made
    made.close()


@pytest.fixture(scope="module")
def wsl(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Wsl]:
    """A WSL with one image and no distro."""
    folder = tmp_path_factory.mktemp("wsl")
    try:
        image = Distro(pytestconfig.cache.mkdir("debian") / "base", folder)
    except NoDebian as why:
        pytest.skip(f"no Debian with systemd can be made here: {why}")
    with Wsl(folder, {STAGED: image}) as running:
        yield running


__all__ = ["line"]  # a fixture of the command line's tests
