"""What a Linux machine is, and whether somebody gave it a GPU driver of its own."""

from winhost.resources.base import ResourceType, Rests, State, resource

ACCESS = "WslAccess"  # until the way in is up, nothing here can be read
DISTRO = Rests("WslDistro", disks=True)  # what all of it lies in
# Enabled since: what it runs with, nobody tells.
UNITS = Rests("SystemdUnit", at=("enabled", "enabled"), since=())
PACKAGES = Rests("DebianPackage", unless=("version", (None,)), since=())
SPEC = Rests("CdiSpec", unless=("present", (False,)), since=())


@resource(ResourceType("LinuxSystem", requires=ACCESS))
class LinuxSystem(State):
    """id, version: as in os-release (`ubuntu`, `24.04`); kernel: its release; architecture: as `uname -m` says.

    wsl_networking: what `wslinfo --networking-mode` says, null where this is no WSL; systemd: it runs as init.
    """

    id: str
    version: str | None
    kernel: str
    architecture: str
    wsl: bool
    wsl_networking: str | None
    systemd: bool


@resource(ResourceType("LinuxGpuDriver", requires=ACCESS))
class LinuxGpuDriver(State):
    """packages: installed ones that bring a Linux GPU driver; libraries: each libcuda that is not WSL's.

    wsl_libcuda: the driver of Windows is mounted (/usr/lib/wsl/lib).
    """

    packages: tuple[str, ...]
    libraries: tuple[str, ...]
    wsl_libcuda: bool
