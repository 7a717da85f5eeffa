"""What a host answered at one time, with what is declared of its resources: all that a decision is made from."""

from collections.abc import Mapping
from dataclasses import dataclass

from .answers import NOT_THERE, Json, Key, MissingFact, Record, Unavailable, Unknown
from .rules import ResourceRules


@dataclass(frozen=True)
class HostAnswers:
    """answers: by resource."""

    answers: Mapping[str, tuple[Record, ...] | Unknown | Unavailable]
    rules: Mapping[str, ResourceRules]

    def answer(self, resource: str) -> tuple[Record, ...] | Unknown | Unavailable:
        """An older winhost does not read every resource: what its answers lack was not read."""
        return self.answers.get(resource, NOT_THERE)

    def state_of(self, resource: str, key: Key) -> Mapping[str, Json] | None:
        """As the host told it, or of what can yet be made; None where there is no such. Raises MissingFact."""
        found = self.answer(resource)
        if isinstance(found, (Unknown, Unavailable)):
            raise MissingFact(resource, found)
        return next((record.state for record in found if dict(record.key) == dict(key)), self.rules[resource].absent)
