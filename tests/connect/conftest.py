"""Hosts to connect to."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.connect.served import RememberingHost, Served, lab_of
from winhost.lab.hostfile import find
from winhost.model.fleet import load_fleet

Serve = Callable[..., Served]

INSTALLED = "server2025-role-installed"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serves a host of a host file: over HTTP, where NTLM seals the messages, or with `tls`."""
    with ExitStack() as running:

        def start(file: str = INSTALLED, *, tls: bool = False) -> Served:
            lab, clock = lab_of(find(file), tmp_path / f"lab-of-{file}", tls=tls)
            running.enter_context(lab)
            running.callback(clock.release_all)
            (target,) = load_fleet(lab.fleet_file).hosts
            host = lab.hosts[target.name]
            assert isinstance(host, RememberingHost)
            return Served(host, lab.endpoints[target.name], target, clock)

        yield start


@pytest.fixture
def served(serve: Serve) -> Served:
    """Hyper-V is there, both VMs run."""
    return serve()
