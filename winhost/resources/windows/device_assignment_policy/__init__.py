"""Policies for device assignment."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("DeviceAssignmentPolicy", title="policies for device assignment", order=400))
class DeviceAssignmentPolicy(State):
    """Registry policy on device assignment; null where not set. Only ever read: changing it is the owner's decision."""

    require_secure: int | None
    require_supported: int | None
