"""The user's request of a path, parsed once where the command line, a plan file or a journal is read."""

from dataclasses import replace
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.plan import PlanRequest
from winhost.paths.playbook import Playbook, parse_playbook


@dataclass(frozen=True)
class PathRequest:
    """A plan request with its playbook and settings as objects. document: the same as plans and journals hold it."""

    document: PlanRequest
    playbook: Playbook

    @property
    def path(self) -> str:
        return self.document.path

    def with_options(self, **values: Any) -> "PathRequest":
        """Replace fields of PlanRequest; the playbook stays."""
        return replace(self, document=replace(self.document, **values))

    def with_playbook(self, playbook: Playbook) -> "PathRequest":
        return PathRequest(replace(self.document, playbook=playbook.content), playbook)


def parse_request(document: PlanRequest) -> PathRequest:
    """The request of a plan or journal. Raises WrongPlaybook."""
    return PathRequest(document, parse_playbook(document.playbook))
