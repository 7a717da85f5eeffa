"""Disks."""

from winhost.model.units import Bytes
from winhost.resources.base import ADDED_SINCE, ResourceType, State, resource


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
    guid: str | None = ADDED_SINCE
    number: int = ADDED_SINCE
    sector: int = ADDED_SINCE
    offline: bool = ADDED_SINCE
    read_only: bool = ADDED_SINCE
    health: str = ADDED_SINCE
