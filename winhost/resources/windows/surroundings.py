"""What stands around the GPUs and can forbid or disturb a change."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("PendingReboot"))
class PendingReboot(State):
    """Why Windows waits for a restart; empty when it does not."""

    reasons: tuple[str, ...]


@resource(ResourceType("BitLocker", key=("volume",)))
class BitLocker(State):
    """A volume by its mount point. protection: on, off or unknown."""

    protection: str
    volume_type: str


@resource(ResourceType("ClusterService"))
class ClusterService(State):
    """Failover clustering on this host: absent, stopped or running."""

    state: str


@resource(ResourceType("DeviceAssignmentPolicy"))
class DeviceAssignmentPolicy(State):
    """Registry policy on device assignment; null where not set. Only ever read: changing it is the owner's decision."""

    require_secure: int | None
    require_supported: int | None
