"""What a Linux machine is."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS


@resource(ResourceType("LinuxSystem", title="the Linux in the distro", order=10, requires=ACCESS))
class LinuxSystem(State):
    """id, version: as in os-release (`ubuntu`, `24.04`); kernel: its release; architecture: the output of `uname -m`.

    wsl_networking: the output of `wslinfo --networking-mode`, null where this is no WSL; systemd: it runs as init.
    """

    id: str
    version: str | None
    kernel: str
    architecture: str
    wsl: bool
    wsl_networking: str | None
    systemd: bool
