"""The running boot of a Linux: what a restart changes, and whether it is ready after one."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS


@resource(ResourceType("LinuxBoot", title="the last start of the Linux", order=11, requires=ACCESS))
class LinuxBoot(State):
    """boot_id: the kernel's, another one after each start; ready: systemd has started what starts with the machine.

    It is asked to restart where it is a machine of its own. A distro of WSL is not: it starts with Windows.
    """

    boot_id: str
    ready: bool
