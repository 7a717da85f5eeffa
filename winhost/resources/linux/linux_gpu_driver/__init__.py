"""The GPU driver of a Linux; in WSL, whether somebody installed one of its own."""

from winhost.resources.base import NOT_TOLD, ResourceType, State, resource
from winhost.resources.shared import ACCESS


@resource(ResourceType("LinuxGpuDriver", title="GPU drivers in Linux", order=20, requires=ACCESS))
class LinuxGpuDriver(State):
    """packages: installed ones that bring a Linux GPU driver; libraries: each libcuda that is not WSL's.

    wsl_libcuda: the driver of Windows is mounted (/usr/lib/wsl/lib). loaded: the version of NVIDIA's kernel module that
    runs, null where none does; kind: open or proprietary, null likewise; signer: who signed the module on disk, null
    where nobody did or there is none; installed: the version of that one, which may be another.
    """

    packages: tuple[str, ...]
    libraries: tuple[str, ...]
    wsl_libcuda: bool
    loaded: str | None = NOT_TOLD
    kind: str | None = NOT_TOLD
    installed: str | None = NOT_TOLD
    signer: str | None = NOT_TOLD
