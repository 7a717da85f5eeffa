"""Disks."""

from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("Disk", title="disks", order=70, key=("disk",)))
class Disk(State):
    """A disk by its unique id. `size` in bytes; `style`: GPT, MBR or RAW."""

    model: str
    bus: str
    size: Bytes
    style: str
    boot: bool
    system: bool
