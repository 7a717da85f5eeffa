"""Disks that a playbook would have formatted and that are not empty: refused as soon as facts show it."""

from collections.abc import Iterable
from contextlib import suppress

from winhost.core.answers import MissingFact
from winhost.core.steps import DesiredResource
from winhost.model.errors import visible
from winhost.model.reason import Refusal
from winhost.resources.host import HostFacts
from winhost.resources.linux.files import DataDisk


def refuse_full(facts: HostFacts, desired: Iterable[DesiredResource]) -> None:
    """Right before it formats, the host looks again at what facts do not show. Raises Refusal."""
    for each in desired:
        if each.resource == DataDisk.resource_type.name:
            with suppress(MissingFact):
                _refuse(facts.of(DataDisk, each.key), each)


def _refuse(found: DataDisk | None, each: DesiredResource) -> None:
    if found is None or all(getattr(found, name) == value for name, value in each.desired.items()):
        return
    if found.holds:
        raise Refusal(
            "disk.not-empty",
            visible(f"{each.title}: {found.disk} is not empty: {'; '.join(found.holds)}."),
            "Name another disk. What is surely nobody's, empty yourself: wipefs --all, then blkdiscard.",
        )
