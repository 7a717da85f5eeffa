"""A planner of a path on which there is nothing to weigh: its settings decide, and its rules say what is in the way."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from winhost.compat.assess import judge
from winhost.core.answers import Id
from winhost.core.steps import DesiredResource
from winhost.model.plan import Deferred, Unchecked
from winhost.model.reason import PathVerdict
from winhost.model.refusal import Caution
from winhost.paths.path_request import PathRequest
from winhost.resources.host import HostFacts

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
