"""Disks of a Linux, as lsblk has them."""

from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS


@resource(ResourceType("LinuxDisk", title="disks in Linux", order=26, key=("disk",), requires=ACCESS))
class LinuxDisk(State):
    """disk: its name now, as `nvme0n1`; by_id: its names in /dev/disk/by-id, which stay; table: gpt, dos or null.

    mounted: where it or what is on it is mounted (`[SWAP]`); holders: of what is on it, such as volumes and arrays.
    """

    size: Bytes
    serial: str | None
    model: str | None
    by_id: tuple[str, ...]
    table: str | None
    filesystem: str | None
    mounted: tuple[str, ...]
    holders: tuple[str, ...]
    read_only: bool
