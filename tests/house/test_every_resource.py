"""Every resource type of Linux that can be set is killed, gone on with and rolled back on a real Debian."""

from tests.linux.every_resource import EVERY
from winhost.resources.registry import LINUX


def test_each_has_its_case_on_a_real_debian() -> None:
    assert set(EVERY) == {name for name, declared in LINUX.items() if declared.sets}
