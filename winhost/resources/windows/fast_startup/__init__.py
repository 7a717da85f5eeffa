"""Fast Startup and hibernation."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import FLAG


@resource(
    ResourceType(
        "FastStartup",
        title="Fast Startup and hibernation",
        order=78,
        sets={"hibernation": FLAG, "fast_startup": FLAG},
        after=("KeyEscrow",),  # before that nothing at all is changed for another system
    )
)
class FastStartup(State):
    """Either leaves the volumes of Windows in use while it is off, and another system must not touch them then.

    hibernation: there is a hibernation file; without it there is no Fast Startup, whatever fast_startup says.
    """

    hibernation: bool
    fast_startup: bool
