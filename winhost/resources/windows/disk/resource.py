"""Disks."""

from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("Disk", title="disks", order=70, key=("disk",)))
class Disk(State):
    """A disk by its unique id. `size` in bytes; `style`: GPT, MBR or RAW.

    guid: of its GPT, the one name that Linux has for it, too; a copy of a disk has the same. number: of Windows, which
    may be another after a restart. sector: a logical one, in bytes. offline: Windows leaves it alone, as it does with
    the second of two disks with one GUID. health: healthy, warning, unhealthy or unknown.
    """

    model: str
    bus: str
    size: Bytes
    style: str
    boot: bool
    system: bool
    guid: str | None
    number: int
    sector: int
    offline: bool
    read_only: bool
    health: str
