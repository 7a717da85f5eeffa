"""The questions that planning asks of a path, for one host and one request."""

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
    """Answers for a path on which settings decide, and rules say what is in the way. Each path adds its `decisions`,
    and what else it weighs.
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
        """The verdict on exactly what is asked for. Raises MissingFact, UsageError."""
        return judge(self._facts, self._request.path)

    @property
    def decisions(self) -> object:
        """The decisions that its playbook may refer to. Their properties raise MissingFact and Refusal."""
        raise NotImplementedError

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """The cautions about the request itself, where nothing speaks against it."""
        return ()

    @property
    def choices(self) -> str | None:
        """Options of `winhost plan` with which it would not be refused. Raises MissingFact."""
        return None

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """Check desired values against the host, whoever wrote them and where. Raises Refusal."""

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """Consents that its verdict asks for, by the resources whose steps they are asked for."""
        return {}

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        """The values of the request that only a later stage can check, which plans this."""
        return ()
