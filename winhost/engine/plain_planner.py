"""Planners of paths on which there is nothing to weigh: settings decide, and rules say what is in the way."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from winhost.compat.assess import judge
from winhost.core.answers import Id, MissingFact, identity
from winhost.core.steps import DesiredResource
from winhost.model.plan import Deferred, Unchecked
from winhost.model.reason import Caution, PathVerdict
from winhost.paths.dual_boot_decisions import DualBootDecisions
from winhost.paths.dual_boot_settings import DualBootSettings
from winhost.paths.linux_decisions import LinuxDecisions
from winhost.paths.linux_settings import LinuxSettings
from winhost.paths.playbook import PathRequest
from winhost.resources.host import HostFacts
from winhost.resources.shared import RUNNING
from winhost.resources.windows.running_system import RunningSystem

if TYPE_CHECKING:
    from pydantic import BaseModel


S = TypeVar("S", bound="BaseModel")


class PlainPlanner(Generic[S]):
    """One request for one host. A path adds its `decisions`."""

    settings_type: ClassVar["type[BaseModel]"]

    def __init__(self, facts: HostFacts, request: PathRequest) -> None:
        self._facts = facts
        self._path = request.path
        settings = request.playbook.parsed_settings
        assert isinstance(settings, self.settings_type)
        self._settings = cast("S", settings)

    @cached_property
    def verdict(self) -> PathVerdict:
        return judge(self._facts, self._path)

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return ()

    @property
    def choices(self) -> str | None:
        return None

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """Nothing that the resources' own checks do not say."""

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        return {}

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        return ()


class LinuxPlanner(PlainPlanner[LinuxSettings]):
    """One request for one Linux."""

    settings_type = LinuxSettings

    @cached_property
    def decisions(self) -> LinuxDecisions:
        return LinuxDecisions(self._facts, self._settings)

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        """The version of the toolkit: only apt can tell whether it is available, once it knows the source."""
        waits = next((each for each in deferred if each.resource == "DebianPackage"), None)
        return (Unchecked("toolkit", self._settings.toolkit, waits.until, (waits.resource,)),) if waits else ()


class DualBootPlanner(PlainPlanner[DualBootSettings]):
    """One request for one host."""

    settings_type = DualBootSettings

    @cached_property
    def decisions(self) -> DualBootDecisions:
        return DualBootDecisions(self._facts, self._settings)

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """The risks of the start that installs: a partition is formatted, and this computer opens a port for its
        settings.
        """
        if self._settings.system is None or self._is_installed:
            return {}
        return {identity(RUNNING, {}): ("network", "data")}

    @property
    def _is_installed(self) -> bool:
        try:
            return self._facts.the(RunningSystem).linux is not None
        except MissingFact:
            return False
