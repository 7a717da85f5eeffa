"""Files of models in a simulated Linux: every hub has every file, and a download brings it whole."""

import re
from collections.abc import Iterator, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux
from winhost.resources.linux.model_files import NO_MODEL

_FOLDER = r"(/[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*){2,}"
_TAKEN = r"/(bin|boot|dev|etc|lib|lib64|proc|root|run|sbin|sys|usr)/|/var/(?!lib/models/)"
_FILE = r"(sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}) [0-9]{1,15} [^\0]+"
_BYTES_A_SECOND = 100e6


class ModelStore:
    """folders: what was asked for. Broken: files that somebody changed since, by folder."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.folders: dict[str, dict[str, Json]] = {}
        self.broken: dict[str, set[str]] = {}
        for record in linux.machine.instances("ModelFiles"):
            if record.state["source"] is not None:
                self.folders[record.key["folder"]] = dict(record.state)

    def state(self, folder: str) -> Mapping[str, Json]:
        asked = self.folders.get(folder)
        if asked is None:
            return NO_MODEL
        there = [line for line in asked["files"] if line.split(" ", 2)[2] not in self.broken.get(folder, ())]
        return {**asked, "files": there, "token": asked["token"] if there == asked["files"] else None}

    def change(self, folder: str, desired: Mapping[str, Json]) -> None:
        """Raises CmdletError."""
        if desired.get("source", "") is None:
            self.folders.pop(folder, None)
            return
        wanted = {**NO_MODEL, **self.folders.get(folder, {}), **desired}
        paths = [_path(line) for line in wanted["files"] or ()]
        if not paths or len(set(paths)) != len(paths):
            raise refused("BadRequest", "InvalidArgument", "The files are a list, each once.")
        if not self._linux.online and not str(wanted["source"]).startswith("/"):
            raise refused("HubUnreachable", "ResourceUnavailable", f"{wanted['source']}: 5 attempts brought nothing.")
        size = sum(int(line.split(" ")[1]) for line in wanted["files"])
        self._linux.machine.clock.sleep(size / _BYTES_A_SECOND)
        self.folders[folder] = {**wanted, "files": list(wanted["files"])}
        self.broken.pop(folder, None)


def _path(line: str) -> str:
    path = line.split(" ", 2)[2] if re.fullmatch(_FILE, line) else ""
    if any(part in ("", ".", "..", ".winhost") for part in path.split("/")):
        raise refused("BadRequest", "InvalidArgument", f"{line} is no file, or leads out of its folder.")
    return path


def model_files(linux: Linux, key: Key | None) -> Iterator[Record]:
    """Of one folder, or of all that winhost was asked for."""
    store = linux.part(ModelStore)
    for folder in [key["folder"]] if key else sorted(store.folders):
        if re.fullmatch(_FOLDER, folder) is None or re.match(_TAKEN, f"{folder}/"):
            raise refused("BadRequest", "InvalidArgument", f"{folder} is no place for models.")
        yield Record(store.state(folder), {"folder": folder})


def set_model_files(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    linux.part(ModelStore).change(key["folder"], desired)
