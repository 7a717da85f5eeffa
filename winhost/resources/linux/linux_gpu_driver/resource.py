"""Whether somebody gave the Linux a GPU driver of its own."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS


@resource(ResourceType("LinuxGpuDriver", title="GPU drivers in Linux", order=20, requires=ACCESS))
class LinuxGpuDriver(State):
    """packages: installed ones that bring a Linux GPU driver; libraries: each libcuda that is not WSL's.

    wsl_libcuda: the driver of Windows is mounted (/usr/lib/wsl/lib).
    """

    packages: tuple[str, ...]
    libraries: tuple[str, ...]
    wsl_libcuda: bool
