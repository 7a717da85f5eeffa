"""Storage controllers: what stands between disks and other systems."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("StorageController", title="storage controllers", order=68, key=("instance",)))
class StorageController(State):
    """A controller by its instance id. service: the driver that it has, which is the same word in every language.

    mode: standard (AHCI and NVMe, by the drivers of Windows), raid (RST, VMD, RAID of AMD, hardware RAID: what Linux
    sees of its disks is not what Windows sees), virtual (of a hypervisor or of software) or other.
    """

    name: str
    service: str | None
    mode: str
