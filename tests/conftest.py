"""What all tests share."""

from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

DEBIAN = ("test_debian.py", "test_way_in.py", "test_wsl.py", "test_wsl_job.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays in one process; those that share the one Debian, too: apart they would only wait for each other."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # it brings no types
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return "the Debian" if file.removeprefix("tests/linux/") in DEBIAN else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
