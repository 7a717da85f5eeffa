"""The limit to which the volume of Windows can shrink, and what holds its end."""

from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("ResizeLimit", title="how far the Windows volume can shrink", order=74, key=("partition",)))
class ResizeLimit(State):
    """The limits of the partition that Windows runs from, by its GUID.

    smallest, largest: what Windows says its size could be now. It is optimistic: a shrink may still stop early. free:
    bytes free on the volume. health: of the volume. holders: what on it cannot be moved while Windows runs: page-file,
    hibernation-file, shadow-copies, wsl-disks (unverified: told by the process of its VM, wherever its disks are).
    last_held_by: the file at which the last analysis of Windows stopped.
    """

    smallest: Bytes
    largest: Bytes
    free: Bytes
    health: str
    holders: tuple[str, ...]
    last_held_by: str | None
