"""The decisions of the path of a Linux of its own: what it needs so that containers there get its GPUs."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

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


class ListOf:
    """The list of the same name of a part of the decisions; empty where there is no such part."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, decisions: object, owner: type) -> tuple[Any, ...]:
        part = getattr(decisions, self._part)
        return () if part is None else tuple(getattr(part, self._name))


class ContainersInside:
    """The decisions about containers that a path's playbook may refer to. They raise MissingFact until that Linux can
    be read.
    """

    @property
    def inside(self) -> LinuxDecisions | None:
        """The decisions of the Linux with the containers; None where none are wanted. Raises MissingFact."""
        raise NotImplementedError

    engines, units, docker_settings = ListOf("inside"), ListOf("inside"), ListOf("inside")
    sources, packages_inside = ListOf("inside"), ListOf("inside")
