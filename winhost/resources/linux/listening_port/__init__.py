"""The processes of a Linux that listen for connections."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS


@resource(
    ResourceType("ListeningPort", title="listening ports in Linux", order=28, key=("address", "port"), requires=ACCESS)
)
class ListeningPort(State):
    """TCP. processes: their names, as the kernel has them; none where another user's cannot be seen."""

    processes: tuple[str, ...]
    everywhere: bool
