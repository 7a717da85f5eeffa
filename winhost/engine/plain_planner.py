"""Planners of the paths `linux` and `dual-boot`, which need little beside their settings and rules."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from winhost.core.answers import Id, identity, if_known
from winhost.engine.path_planner import PathPlanner
from winhost.model.plan import Deferred, Unchecked
from winhost.paths.dual_boot import DualBootDecisions, DualBootSettings
from winhost.paths.linux import LinuxDecisions, LinuxSettings
from winhost.resources.shared import RUNNING
from winhost.resources.windows.boot_entries import RunningSystem


class LinuxPlanner(PathPlanner[LinuxSettings]):
    """Plans the path `linux`."""

    settings_type = LinuxSettings

    @cached_property
    def decisions(self) -> LinuxDecisions:
        return LinuxDecisions(self._facts, self._settings)

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        """Return the version of the toolkit, which apt can check only once its package source is added."""
        waits = next((each for each in deferred if each.resource == "DebianPackage"), None)
        return (Unchecked("toolkit", self._settings.toolkit, waits.until, (waits.resource,)),) if waits else ()


class DualBootPlanner(PathPlanner[DualBootSettings]):
    """Plans the path `dual-boot`."""

    settings_type = DualBootSettings

    @cached_property
    def decisions(self) -> DualBootDecisions:
        return DualBootDecisions(self._facts, self._settings)

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """Return the risks of the restart that installs Ubuntu: a partition is formatted, and this computer opens a
        port to serve the installer's settings.
        """
        installed = if_known(lambda: self._facts.the(RunningSystem).linux)
        if self._settings.system is None or installed is not None:
            return {}
        return {identity(RUNNING, {}): ("network", "data")}
