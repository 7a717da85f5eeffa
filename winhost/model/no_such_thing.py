"""The error for a name that nothing on the host has, or several things have."""

from collections.abc import Mapping
from dataclasses import dataclass

from winhost.model.errors import UsageError, did_you_mean, visible


def listed(known: Mapping[str, str]) -> str:
    """Key and name of each, one a line."""
    return "\n".join(f"  {key}  {visible(name)}" for key, name in known.items())


@dataclass(eq=False)
class NoSuchThing(UsageError):
    """A card, VM or network adapter that the host does not have, or a name that several share."""

    host: str
    kind: str
    asked: str
    known: Mapping[str, str]
    several: bool = False

    @property
    def what(self) -> str:
        asked = visible(self.asked)
        if self.several:
            return f"{self.host} has several {self.kind}s called '{asked}'"
        return f"{self.host} has no {self.kind} '{asked}'{did_you_mean(self.asked, self.known.values())}"

    @property
    def hint(self) -> str | None:
        return (
            f"Name one of these, by its first column where names repeat:\n{listed(self.known)}" if self.known else None
        )
