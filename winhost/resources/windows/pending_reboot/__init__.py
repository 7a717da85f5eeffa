"""Whether a restart is pending."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("PendingReboot", title="whether a restart is pending", order=240))
class PendingReboot(State):
    """Why Windows waits for a restart; empty when it does not."""

    reasons: tuple[str, ...]
