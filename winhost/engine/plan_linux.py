"""Planning a Linux of its own: what is decided is in its settings, and what is in the way its rules say."""

from collections.abc import Iterable
from functools import cached_property

from winhost.engine.plain_planner import PlainPlanner
from winhost.model.plan import Deferred, Unchecked
from winhost.paths.linux_decisions import LinuxDecisions
from winhost.paths.linux_settings import LinuxSettings


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
