"""The decisions of the path of a Linux of its own: what it needs so that containers there get its GPUs."""

from collections.abc import Mapping
from functools import cached_property

from winhost.core.answers import Json
from winhost.paths.distro_containers import TOOLKIT, Repository
from winhost.paths.linux_driver import DriverChoice, has_fabric_manager, wanted_driver
from winhost.paths.linux_engine import ChosenEngine
from winhost.paths.linux_settings import NO_TOOLKIT, LinuxSettings
from winhost.resources.host import HostFacts
from winhost.resources.linux.packages import AptPackages

FABRIC_MANAGER = "nvidia-fabricmanager.service"


class LinuxDecisions:
    """Pure functions of the facts and the settings. Raise MissingFact, Refusal."""

    def __init__(self, facts: HostFacts, settings: LinuxSettings) -> None:
        self._facts, self._settings = facts, settings

    @cached_property
    def drivers(self) -> tuple[DriverChoice, ...]:
        """The driver to install; empty where the running one came from another source. Raises UsageError: NoDriver."""
        chosen = wanted_driver(self._facts)
        return (chosen,) if chosen else ()

    @cached_property
    def _engine(self) -> ChosenEngine:
        return ChosenEngine(self._facts, self._settings.engine)

    @property
    def engines(self) -> tuple[Mapping[str, str], ...]:
        return self._engine.packages

    @property
    def units(self) -> tuple[Mapping[str, str], ...]:
        """The units of the engine, and of the fabric manager, which Ubuntu's package leaves disabled."""
        return (*self._engine.units, *(({"name": FABRIC_MANAGER},) if self._has_fabric_manager else ()))

    @property
    def _has_fabric_manager(self) -> bool:
        listed = any(has_fabric_manager(each.key["packages"]) for each in self._facts.all(AptPackages))
        return listed and any(has_fabric_manager(each.packages) for each in self.drivers)

    @property
    def docker_settings(self) -> tuple[Mapping[str, Json], ...]:
        return self._engine.settings

    @property
    def sources(self) -> tuple[Repository, ...]:
        return (TOOLKIT,) if self._has_toolkit else ()

    @property
    def _has_toolkit(self) -> bool:
        return self._settings.toolkit != NO_TOOLKIT

    @property
    def specs(self) -> tuple[Mapping[str, str], ...]:
        return ({"title": "The GPUs, for containers"},) if self._has_toolkit else ()

    @property
    def packages_inside(self) -> tuple[Mapping[str, str], ...]:
        version, title = self._settings.toolkit, "NVIDIA Container Toolkit"
        packages = {"name": "nvidia-container-toolkit", "version": version, "title": title}
        return (packages,) if self._has_toolkit else ()


class ContainersInside:
    """The decisions about containers that a path's playbook may refer to; all are empty where no containers are wanted.
    They raise MissingFact until that Linux can be read.
    """

    @property
    def inside(self) -> LinuxDecisions | None:
        """The decisions of the Linux with the containers; None where none are wanted. Raises MissingFact."""
        raise NotImplementedError

    @property
    def engines(self) -> tuple[Mapping[str, str], ...]:
        return self.inside.engines if self.inside else ()

    @property
    def units(self) -> tuple[Mapping[str, str], ...]:
        return self.inside.units if self.inside else ()

    @property
    def docker_settings(self) -> tuple[Mapping[str, Json], ...]:
        return self.inside.docker_settings if self.inside else ()

    @property
    def sources(self) -> tuple[Repository, ...]:
        return self.inside.sources if self.inside else ()

    @property
    def packages_inside(self) -> tuple[Mapping[str, str], ...]:
        return self.inside.packages_inside if self.inside else ()
