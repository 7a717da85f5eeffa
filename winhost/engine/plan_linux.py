"""Planning a Linux of its own: what is decided is in its settings, and what is in the way its rules say."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from winhost.compat.assess import judge
from winhost.core.answers import Id
from winhost.core.steps import DesiredResource
from winhost.model.plan import Deferred, Unchecked
from winhost.model.reason import PathVerdict
from winhost.model.refusal import Caution
from winhost.paths.linux_decisions import LinuxDecisions
from winhost.paths.linux_settings import LinuxSettings
from winhost.paths.path_request import PathRequest
from winhost.resources.host import HostFacts


class LinuxPlanner:
    """One request for one Linux."""

    def __init__(self, facts: HostFacts, request: PathRequest) -> None:
        self._facts = facts
        self._path = request.path
        settings = request.playbook.parsed_settings
        assert isinstance(settings, LinuxSettings)
        self._settings = settings

    @cached_property
    def verdict(self) -> PathVerdict:
        return judge(self._facts, self._path)

    @cached_property
    def decisions(self) -> LinuxDecisions:
        return LinuxDecisions(self._facts, self._settings)

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
        """Whether that version is to be had, only apt can tell, once it knows the source."""
        waits = next((each for each in deferred if each.resource == "DebianPackage"), None)
        return (Unchecked("toolkit", self._settings.toolkit, waits.until, (waits.resource,)),) if waits else ()
