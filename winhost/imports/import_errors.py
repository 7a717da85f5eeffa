"""What can be wrong with files that are brought in."""

from collections.abc import Sequence
from dataclasses import dataclass

from winhost.model.errors import UsageError, visible


@dataclass(eq=False)
class NotReadable(UsageError):
    """A file that is of no kind we read, or of one that we read and broken. `why` goes on after its name."""

    file: str
    why: str
    do: str | None = None

    @property
    def what(self) -> str:
        return f"{visible(self.file)} {visible(self.why)}"

    @property
    def hint(self) -> str | None:
        return self.do


@dataclass(eq=False)
class Contradiction(UsageError):
    """Two files say different things, each as surely as the other."""

    fact: str
    first: tuple[str, str]
    second: tuple[str, str]

    @property
    def what(self) -> str:
        told = (f"{visible(value)} ({visible(file)})" for file, value in (self.first, self.second))
        return f"two files differ in {visible(self.fact)}: {', '.join(told)}"

    @property
    def meaning(self) -> str:
        return "They are of different machines, or the machine changed between them."

    @property
    def hint(self) -> str:
        return "Import files of one machine and one time, or leave one of these out."


@dataclass(eq=False)
class CardsDoNotMatch(UsageError):
    """Two files list cards that cannot be matched to each other."""

    card: str
    first: tuple[str, int]
    second: tuple[str, int]

    @property
    def what(self) -> str:
        (one, few), (other, many) = self.first, self.second
        return f"{visible(one)} lists {few} of {visible(self.card)}, {visible(other)} lists {many}"

    @property
    def meaning(self) -> str:
        return (
            "They are of different machines, or one of them does not show every card, and nothing says which is which."
        )

    @property
    def hint(self) -> str:
        return "Leave one of the two files out, or add one that lists every card: lspci -vv -nn."


@dataclass(eq=False)
class Nameless(UsageError):
    """No file tells the machine's name."""

    files: Sequence[str]

    @property
    def what(self) -> str:
        return f"no machine is named in {visible(', '.join(self.files))}"

    @property
    def hint(self) -> str:
        return "Name it with --host NAME."
