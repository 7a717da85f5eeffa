"""From words to the files that they mean: files themselves, and folders that one command wrote for another."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winhost.model.errors import UsageFault, visible

_SEPARATORS = tuple(filter(None, (os.sep, os.altsep)))


@dataclass(eq=False)
class NothingOfTheKind(UsageFault):
    """A folder without a file of the kind that a command reads."""

    folder: str
    kind: str

    @property
    def what(self) -> str:
        return f"there are no {self.kind} in {visible(self.folder)}"

    @property
    def hint(self) -> str:
        return "winhost detect HOST -o FOLDER writes facts into a folder, winhost plan HOST... -o FOLDER/ plans."


@dataclass(eq=False)
class SeveralFiles(UsageFault):
    """A folder with several files, for a command that takes one."""

    folder: str
    files: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"this command takes one file, and there are {len(self.files)} in {visible(self.folder)}"

    @property
    def hint(self) -> str:
        return f"Name one of: {', '.join(map(visible, self.files))}"


def files_of(places: Iterable[Path], kind: type[Any]) -> list[Path]:
    """Facts files or plans; of a folder those that lie in it, by name. Raises NothingOfTheKind."""
    found: list[Path] = []
    for place in places:
        inside = _inside(place, kind) if place.is_dir() else [place]
        if not inside:
            raise NothingOfTheKind(str(place), f"{kind.__name__.lower().removesuffix('s')}s")
        found += inside
    return found


def the_file(place: Path, kind: type[Any]) -> Path:
    """The one that is meant, for commands that take one. Raises NothingOfTheKind, SeveralFiles."""
    files = files_of([place], kind)
    if len(files) > 1:
        raise SeveralFiles(str(place), tuple(map(str, files)))
    return files[0]


def holds(place: Path, kind: type[Any]) -> bool:
    """Whether a file is of this kind, or a folder has one that is."""
    from winhost.model.documents import is_document

    return bool(_inside(place, kind)) if place.is_dir() else place.is_file() and is_document(place, kind)


def _inside(folder: Path, kind: type[Any]) -> list[Path]:
    from winhost.model.documents import is_document

    return [file for file in sorted(folder.glob("*.json")) if is_document(file, kind)]


def hosts_and_files(words: Sequence[str], kind: type[Any]) -> tuple[list[str], list[Path]]:
    """Words that stand for hosts, and the files meant by the others: those that end in .json or are files, and folders
    that hold such files or are written as a path. Raises NothingOfTheKind.
    """
    places = [word for word in words if _is_place(word, kind)]
    return [word for word in words if word not in places], files_of(map(Path, places), kind)


def _is_place(word: str, kind: type[Any]) -> bool:
    path = Path(word)
    if word.endswith(".json") or path.is_file():
        return True
    return path.is_dir() and (any(mark in word for mark in _SEPARATORS) or bool(_inside(path, kind)))
