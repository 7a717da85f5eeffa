"""BitLocker on the host's volumes."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("BitLocker", title="BitLocker", order=250, key=("volume",)))
class BitLocker(State):
    """A volume by its mount point. protection: on, off or unknown."""

    protection: str
    volume_type: str
