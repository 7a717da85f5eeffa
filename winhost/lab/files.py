"""Files of a simulated Windows host: only those that anybody asks for."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from winhost.lab.errors import own_error


def _same(path: str) -> str:
    return path.rstrip("\\").casefold()


@dataclass
class Files:
    """By path, whose case does not matter. links: paths that lead elsewhere; foreign: folders of somebody else."""

    links: set[str] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)
    _there: dict[str, tuple[str, bytes, str]] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        """All of its bytes, or None where there is none."""
        found = self._there.get(_same(path))
        return None if found is None else found[1]

    def owner(self, path: str) -> str | None:
        """The SID of its owner; empty for whoever wrote it."""
        found = self._there.get(_same(path))
        return None if found is None else found[2]

    def write(self, path: str, content: bytes, owner: str = "") -> None:
        self._there[_same(path)] = (path, content, owner)

    def remove(self, path: str) -> None:
        """Whether or not it is there."""
        self._there.pop(_same(path), None)

    def is_foreign(self, path: str) -> bool:
        """Whether somebody else made this folder."""
        return _same(path) in self.foreign

    def make_folder(self, path: str) -> None:
        """For administrators alone; it is there as soon as something is in it. Raises CmdletError."""
        if self.is_foreign(path):
            why = "and others may write there: look at what it holds and remove it."
            raise own_error("NotOurs", "SecurityError", f"winhost did not make {path}, {why}")

    def below(self, folder: str) -> Iterator[str]:
        """The paths of all files in a folder and its folders."""
        inside = _same(folder) + "\\"
        return iter([path for same, (path, _, _) in self._there.items() if same.startswith(inside)])

    def remove_folder(self, folder: str) -> None:
        """With all that is in it, whether or not it is there."""
        for path in self.below(folder):
            self.remove(path)
