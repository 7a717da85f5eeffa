"""The base class of planners, which plan a path for one host and one request."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from winhost.compat.assess import judge
from winhost.core.answers import Id
from winhost.core.steps import DesiredResource
from winhost.model.plan import Deferred, Unchecked
from winhost.model.reason import Caution, PathVerdict
from winhost.paths.playbook import PathRequest
from winhost.resources.host import HostFacts

if TYPE_CHECKING:
    from pydantic import BaseModel

S = TypeVar("S", bound="BaseModel")


class PathPlanner(Generic[S]):
    """Plans a path from its settings and the verdict of its rules. Each path adds its `decisions`, and may override the
    other methods.
    """

    settings_type: ClassVar["type[BaseModel]"]

    def __init__(self, facts: HostFacts, request: PathRequest) -> None:
        settings = request.playbook.parsed_settings
        assert isinstance(settings, self.settings_type)
        self._settings = cast("S", settings)
        self._facts = facts
        self._request = request.document
        self._resources = request.playbook.resources

    @cached_property
    def verdict(self) -> PathVerdict:
        """The verdict on exactly this request. Raises MissingFact, UsageError."""
        return judge(self._facts, self._request.path)

    @property
    def decisions(self) -> object:
        """The decisions that its playbook may refer to. Their properties raise MissingFact and Refusal."""
        raise NotImplementedError

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """Cautions about a request that is not refused."""
        return ()

    @property
    def choices(self) -> str | None:
        """Options of `winhost plan` with which it would not be refused. Raises MissingFact."""
        return None

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """Check desired values against the host, whatever their source. Raises Refusal."""

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """Return the consents that the verdict asks for, by the resources whose steps need them."""
        return {}

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        """Return the values of the request that only a later stage can check. deferred: the resources of later
        stages.
        """
        return ()
