"""The container engines of a Linux."""

from winhost.resources.base import NOT_TOLD, ResourceType, State, resource
from winhost.resources.shared import ACCESS


@resource(
    ResourceType("ContainerEngine", title="container engines in Linux", order=24, key=("engine",), requires=ACCESS)
)
class ContainerEngine(State):
    """Those that are installed: docker, podman, nvidia-ctk. socket: where it is asked, null where nobody listens.

    snap: it came as a snap, which has settings and files of its own.
    """

    version: str
    socket: str | None
    snap: bool = NOT_TOLD
