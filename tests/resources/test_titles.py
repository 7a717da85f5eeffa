"""Each resource is called by something that people say, in winhost as in the scripts that run without it."""

import json

from winhost.bundle.bundle_files import linux_sources
from winhost.resources.registry import LINUX, RESOURCE_TYPES, title_of


def test_every_resource_has_a_title_of_its_own() -> None:
    titles = [title_of(name) for name in RESOURCE_TYPES]
    assert len(set(titles)) == len(titles)
    assert not set(titles) & {"", *RESOURCE_TYPES} - {"BitLocker"}


def test_what_runs_in_linux_calls_nothing_by_the_distro_that_it_is_in() -> None:
    titles = [each["title"] for each in json.loads(linux_sources()["resources.json"]).values()]
    assert (len(set(titles)), [title for title in titles if "distro" in title]) == (len(LINUX), [])
