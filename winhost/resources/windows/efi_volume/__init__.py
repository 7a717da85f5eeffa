"""EFI system partitions: how much is free on them."""

from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("EfiVolume", title="EFI system partitions", order=76, key=("partition",)))
class EfiVolume(State):
    """The volume of an EFI system partition, by the partition's GUID."""

    free: Bytes
    file_system: str
