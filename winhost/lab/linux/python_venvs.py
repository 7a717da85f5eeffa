"""Python environments in a simulated Linux: made of wheels that somebody brought there."""

import re
from collections.abc import Iterator, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux
from winhost.resources.linux.python_venv import NO_VENV

_FOLDER = r"/opt/winhost/python-[0-9a-f]{16}"
_WHEEL = r"sha256:[0-9a-f]{64} [0-9]{1,15} [A-Za-z0-9._+/-]{1,400}\.whl"
_SECONDS = 20.0


class PythonVenvs:
    """venvs: their states, by their folders."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        found = linux.machine.instances("PythonVenv")
        self.venvs: dict[str, Mapping[str, Json]] = {
            each.key["folder"]: dict(each.state) for each in found if each.state["wheels"] is not None
        }

    def change(self, folder: str, desired: Mapping[str, Json]) -> None:
        """Raises CmdletError."""
        if desired.get("wheels", "") is None:
            self.venvs.pop(folder, None)
            return
        wanted = {**NO_VENV, **self.venvs.get(folder, {}), **desired}
        lines = [str(line) for line in wanted["wheels"] or ()]
        for line in lines:
            _check(line)
        source = str(wanted["source"] or "")
        if not lines or wanted["python"] is None or not source.startswith(("/", "https://", "http://")):
            raise refused("BadRequest", "InvalidArgument", "It takes a version of Python, and wheels from somewhere.")
        if not self._linux.online and not source.startswith("/"):
            raise refused("HubUnreachable", "ResourceUnavailable", f"{source}: 5 attempts brought nothing.")
        self._linux.machine.clock.sleep(_SECONDS)
        self.venvs[folder] = {**wanted, "wheels": list(wanted["wheels"])}


def _check(line: str) -> None:
    path = line.split(" ", 2)[2] if re.fullmatch(_WHEEL, line) else ""
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise refused("BadRequest", "InvalidArgument", f"{line} is no wheel, or leads out of its folder.")


def python_venvs(linux: Linux, key: Key | None) -> Iterator[Record]:
    """Of one, or of all that winhost made."""
    made = linux.part(PythonVenvs).venvs
    for folder in [key["folder"]] if key else sorted(made):
        if re.fullmatch(_FOLDER, folder) is None:
            raise refused("BadRequest", "InvalidArgument", f"{folder} is not a folder as /opt/winhost/python-HASH.")
        yield Record(made.get(folder, NO_VENV), {"folder": folder})


def set_python_venv(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    linux.part(PythonVenvs).change(key["folder"], desired)
