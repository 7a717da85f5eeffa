"""Each resource is called by something that people say, in winhost as in the scripts that run without it."""

from winhost.bundle import linux_run
from winhost.resources.registry import LINUX, RESOURCE_TYPES, titled


def test_every_resource_has_a_title_of_its_own() -> None:
    titles = [titled(name) for name in RESOURCE_TYPES]
    assert len(set(titles)) == len(titles)
    assert not set(titles) & {"", *RESOURCE_TYPES} - {"BitLocker"}


def test_what_runs_in_linux_has_a_word_for_all_that_it_reads() -> None:
    changed = {name for name, resource in LINUX.items() if resource.sets}
    assert set(linux_run.TITLES) == changed | {"LinuxSystem"}
