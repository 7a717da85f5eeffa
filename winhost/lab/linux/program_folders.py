"""Folders of a simulated Linux that hold a program of winhost's."""

import re
from collections.abc import Iterator, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux

_FOLDER = r"/opt/winhost/gateway(?:-plain-http)?-[0-9a-f]{16}/gateway"


class ProgramFolders:
    """folders: the texts of their files by their names, by their paths."""

    def __init__(self, linux: Linux) -> None:
        found = linux.machine.instances("LinuxFolder")
        self.folders: dict[str, Mapping[str, str]] = {
            record.key["path"]: record.state["files"] for record in found if record.state["files"]
        }

    def state(self, path: str) -> dict[str, Json]:
        if re.fullmatch(_FOLDER, path) is None:
            raise _bad_request(f"{path} is not among the folders that winhost writes.")
        texts = self.folders.get(path)
        return (
            {"files": dict(sorted(texts.items())), "only_root": True} if texts else {"files": None, "only_root": None}
        )

    def change(self, path: str, desired: Mapping[str, Json]) -> None:
        files = {**self.state(path), **desired}["files"]
        self.folders.pop(path, None)
        if files is not None:
            self.folders[path] = _checked(files)


def program_folders(linux: Linux, key: Key | None) -> Iterator[Record]:
    """Of one, which a plan names."""
    for path in [key["path"]] if key else ():
        yield Record(linux.part(ProgramFolders).state(path), {"path": path})


def set_program_folder(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    linux.part(ProgramFolders).change(key["path"], desired)


def _checked(files: Json) -> Mapping[str, str]:
    if not isinstance(files, dict) or not files:
        raise _bad_request("files: texts by their names, or null")
    for name, text in files.items():
        if re.fullmatch(r"[a-z_]+\.py", name) is None or not isinstance(text, str):
            raise _bad_request(f"{name!r} is not the name of a file of a program, as turns.py, with its text.")
    return dict(files)


def _bad_request(message: str) -> Exception:
    return refused("BadRequest", "InvalidArgument", message)
