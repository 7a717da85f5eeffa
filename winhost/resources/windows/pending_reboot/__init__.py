"""A pending restart of Windows."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("PendingReboot", title="whether a restart is pending", order=240))
class PendingReboot(State):
    """The reasons why Windows waits for a restart; empty when it does not."""

    reasons: tuple[str, ...]
