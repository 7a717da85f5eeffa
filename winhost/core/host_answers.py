"""A host's answers at one time, with what is declared of its resources: all that a decision is made from."""

from collections.abc import Iterable, Mapping

from .answers import NOT_THERE, Id, Json, Key, MissingFact, Record, Unavailable, Unknown, identity
from .dataclass import dataclass
from .rules import ResourceRules


@dataclass(frozen=True)
class HostAnswers:
    """answers: by resource."""

    answers: Mapping[str, tuple[Record, ...] | Unknown | Unavailable]
    rules: Mapping[str, ResourceRules]

    def answer(self, resource: str) -> tuple[Record, ...] | Unknown | Unavailable:
        """Answers need not hold every resource: what they lack was not read."""
        return self.answers.get(resource, NOT_THERE)

    def state_of(self, resource: str, key: Key) -> Mapping[str, Json] | None:
        """The state as the host answered it, or that of something not yet created; None where there is no such thing.
        Raises MissingFact.
        """
        found = self.answer(resource)
        if isinstance(found, (Unknown, Unavailable)):
            raise MissingFact(resource, found)
        return next((record.state for record in found if dict(record.key) == dict(key)), self.rules[resource].absent)

    def unlisted(self, ids: Iterable[Id]) -> tuple[Id, ...]:
        """The resources to read by name. A Linux has more files, packages and settings than it lists; where a type
        lists all its instances, `absent` says what a missing one is.
        """
        return tuple(sorted(id_ for id_ in set(ids) if self._is_unlisted(*id_)))

    def _is_unlisted(self, resource: str, key: tuple[tuple[str, str], ...]) -> bool:
        found = self.answers.get(resource)
        if not isinstance(found, tuple) or self.rules[resource].absent is not None:
            return False
        return (resource, key) not in {identity(resource, record.key) for record in found}
