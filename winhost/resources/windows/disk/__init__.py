"""Disks."""

from winhost.model.units import Bytes
from winhost.resources.base import NOT_TOLD, ResourceType, State, resource


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
    guid: str | None = NOT_TOLD
    number: int = NOT_TOLD
    sector: int = NOT_TOLD
    offline: bool = NOT_TOLD
    read_only: bool = NOT_TOLD
    health: str = NOT_TOLD
