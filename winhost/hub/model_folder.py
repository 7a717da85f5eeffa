"""A model in a folder of this machine, read as one on a hub is. Its files have hashes in place of a revision."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.hub.hub_repository import not_listed
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import near_name, sha256_of
from winhost.model.units import Bytes, MiB
from winhost.web.asking import parsed

_DRIVE = re.compile(r"([A-Za-z]):[/\\]")
_MOST: Bytes = 16 * MiB
_MOST_FILES = 10_000


def _no_folder(path: str, why: str) -> UsageError:
    return UsageError(
        "NoModelFolder",
        what=f"{visible(path[:200])}: {why}",
        hint="Name the folder that has config.json and the safetensors of the model, or a model as ORG/NAME",
    )


@dataclass(frozen=True)
class ModelFolder:
    """model: its absolute path; the rest as a `HubRepository` has it."""

    model: str
    revision: str = ""
    token: None = None

    @classmethod
    def at_path(cls, path: str) -> "ModelFolder":
        """Raises UsageError (NoModelFolder)."""
        try:
            folder = Path(path).expanduser().resolve()
            there, file = folder.is_dir(), folder.exists()
        except (OSError, RuntimeError, ValueError) as error:
            raise _no_folder(path, f"cannot be read: {visible(str(error)[:200])}") from error
        if not there:
            why = "is a file, and no folder" if file else f"there is no such folder{near_name(folder)}"
            raise _no_folder(path, why)
        return cls(str(folder))

    @property
    def page(self) -> str:
        """The folder, for people."""
        return self.model

    @property
    def path(self) -> Path:
        return Path(self.model)

    def current(self) -> tuple["ModelFolder", dict[str, Any]]:
        return self, {}

    def sizes(self) -> dict[str, Bytes]:
        """Files by path below the folder, without hidden ones and folders of hubs' own records."""
        try:
            found = dict(self._sizes())
        except OSError as error:
            raise self._unreadable(error) from error
        return dict(sorted(found.items()))

    def _sizes(self) -> Iterator[tuple[str, Bytes]]:
        for count, path in enumerate(self.path.rglob("*")):
            inner = path.relative_to(self.path)
            if count >= _MOST_FILES:
                raise not_listed(self.model, f"has more than {_MOST_FILES:,} files", "Name the folder of one model")
            if any(part.startswith(".") for part in inner.parts):
                continue
            name = inner.as_posix()
            if path.is_symlink():
                hint = "Copy the files themselves into a folder of their own, as cp -rL does"
                raise not_listed(self.model, f"{visible(name)} is a link", hint)
            if path.is_dir():
                continue
            if not name.isprintable():
                raise not_listed(self.model, f"{visible(name)} is no name of a file", "Do not use this model")
            yield name, path.stat().st_size

    def document(self, path: str, most: Bytes = _MOST) -> dict[str, Any]:
        """A file that is an object in JSON."""
        data = self.part(path, 0, most + 1)
        if len(data) > most:
            raise not_listed(self.model, f"{path} has more than {most // MiB} MiB", "Do not use this model")
        try:
            found = parsed(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise not_listed(self.model, f"{path} is no object in JSON", "Do not use this model")
        return found

    def part(self, path: str, begin: int, end: int) -> bytes:
        """Bytes of a file, from `begin` to before `end`; fewer where it ends before."""
        try:
            with (self.path / path).open("rb") as file:
                file.seek(begin)
                return file.read(end - begin)
        except OSError as error:
            raise self._unreadable(error) from error

    def listed(self) -> list[str]:
        """`sha256:HASH SIZE PATH` of each file, as `ModelFiles` has them. Reads all of them."""
        lines = []
        for name, size in self.sizes().items():
            try:
                lines.append(f"sha256:{sha256_of(self.path / name)} {size} {name}")
            except OSError as error:
                raise self._unreadable(error) from error
        if not lines:
            raise not_listed(self.model, "has no files", "Name the folder of a model")
        return sorted(lines)

    def _unreadable(self, error: OSError) -> WinhostError:
        return not_listed(self.model, f"cannot be read: {visible(str(error.strerror or error))}", "Can you read it?")


def folder_files(model: str) -> dict[str, Json]:
    """The desired state of `ModelFiles` for a folder: its files by their hashes, and where they lie for the Linux that
    serves. Raises WinhostError (NotListed).
    """
    folder = ModelFolder.at_path(model)
    source = seen_from_linux(folder.model)
    if not source.startswith("/"):
        hint = "Copy it to a drive of this machine, such as C:"
        raise not_listed(folder.model, "is a share of a network, which WSL does not see", hint)
    return {"source": source, "revision": None, "files": folder.listed(), "token": None}


def seen_from_linux(path: str) -> str:
    """A drive of Windows is below /mnt in the distro of WSL beside it; other paths are the same on this Linux."""
    drive = _DRIVE.match(path)
    if drive is None:
        return path
    return f"/mnt/{drive[1].lower()}/" + path[3:].replace("\\", "/")
