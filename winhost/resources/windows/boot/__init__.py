"""The running boot: what a restart changes, and whether the host is ready after one."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("Boot", title="the last start", order=30))
class Boot(State):
    """boot_id is opaque: compare for inequality only, because clocks are set and time zones change.

    logon_ready: services for logon are up; servicing: Windows is still finishing updates or features.
    """

    boot_id: str
    logon_ready: bool
    servicing: bool
