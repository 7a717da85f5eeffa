"""The decisions of the path of a Linux of its own: what containers there need to get its GPUs."""

from collections.abc import Mapping

from winhost.paths.distro_packages import TOOLKIT, Repository
from winhost.paths.linux_settings import LinuxSettings


class LinuxDecisions:
    """Pure functions of the settings."""

    def __init__(self, settings: LinuxSettings) -> None:
        self._settings = settings

    @property
    def sources(self) -> tuple[Repository, ...]:
        return (TOOLKIT,)

    @property
    def packages_inside(self) -> tuple[Mapping[str, str], ...]:
        version, title = self._settings.toolkit, "NVIDIA Container Toolkit"
        return ({"name": "nvidia-container-toolkit", "version": version, "title": title},)
