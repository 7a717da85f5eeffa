"""Planning Ubuntu beside Windows: what Windows does for it, and the proofs before that."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from winhost.compat.assess import judge
from winhost.core.answers import Id
from winhost.core.steps import DesiredResource
from winhost.model.plan import Deferred, Unchecked
from winhost.model.reason import PathVerdict
from winhost.model.refusal import Caution
from winhost.paths.dual_boot_decisions import DualBootDecisions
from winhost.paths.dual_boot_settings import DualBootSettings
from winhost.paths.path_request import PathRequest
from winhost.resources.host import HostFacts


class DualBootPlanner:
    """One request for one host."""

    def __init__(self, facts: HostFacts, request: PathRequest) -> None:
        self._facts = facts
        self._path = request.path
        settings = request.playbook.parsed_settings
        assert isinstance(settings, DualBootSettings)
        self._settings = settings

    @cached_property
    def verdict(self) -> PathVerdict:
        return judge(self._facts, self._path)

    @cached_property
    def decisions(self) -> DualBootDecisions:
        return DualBootDecisions(self._facts, self._settings)

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
