"""Docker's daemon in a simulated Linux: its settings, and the containers that a restart of it ends.

Source: Docker's documentation of daemon.json and `dockerd --validate`.
"""

import json
import re
from collections.abc import Iterator, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import NO_FILE, Linux

DAEMON_JSON = "/etc/docker/daemon.json"
POINTERS = ("/default-runtime", "/features/cdi", "/runtimes/nvidia")
DOCKER = "docker.service"


class DockerDaemon:
    """containers: the names of those that run; snap: Docker was installed as a snap."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self._found: str | None = None
        self._ours: str | None = None
        self.containers: list[str] = []
        self.snap = False

    def setting(self, pointer: str) -> Json:
        found = self._settings()
        for name in _names(pointer):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _text(self) -> str | None:
        text = self._linux.file(DAEMON_JSON)["text"]
        return None if text is None else str(text)

    def _settings(self) -> Json:
        try:
            found = json.loads((self._text() or "").strip() or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise refused("NotDecodable", "InvalidData", f"{DAEMON_JSON} is no JSON object; it is left alone.")
        return found

    def change(self, pointer: str, value: Json) -> None:
        """Raises CmdletError."""
        if self.snap:
            raise refused("OtherEngine", "ResourceExists", "Docker was installed as a snap.", "docker")
        settings = self._settings()
        _put(settings, _names(pointer), value)
        if self._running and self.containers and "containers" not in self._linux.accepted:
            message = f"Restarting Docker would end {', '.join(self.containers)}."
            raise refused("EndsContainers", "ResourceBusy", message, "docker")
        self._write(settings)
        if self._running:
            self.containers.clear()

    @property
    def _running(self) -> bool:
        return self._linux.systemd.state(DOCKER)["active"] is True

    def _write(self, settings: Json) -> None:
        before = self._text()
        if self._ours != before:
            self._found = before
        as_found = json.loads((self._found or "").strip() or "{}") == settings
        self._ours = self._found if as_found else f"{json.dumps(settings, indent=2)}\n"
        self._linux.write(DAEMON_JSON, {**NO_FILE, "text": self._ours})


def _names(pointer: str) -> list[str]:
    if re.fullmatch(r"(/([^/~\0]|~[01])+)+", pointer) is None:
        raise refused("BadRequest", "InvalidArgument", f"{pointer!r} is not a JSON pointer to a setting.")
    return [name.replace("~1", "/").replace("~0", "~") for name in pointer[1:].split("/")]


def _put(settings: dict[str, Json], names: list[str], value: Json) -> None:
    first, *rest = names
    inner = settings.get(first, {})
    if not rest:
        settings[first] = value
    elif not isinstance(inner, dict):
        raise refused("WrongPlace", "InvalidOperation", f"{first} in {DAEMON_JSON} is no object.")
    else:
        settings[first] = inner
        _put(inner, rest, value)
    if settings[first] == ({} if rest else None):
        del settings[first]


def docker_settings(linux: Linux, key: Key | None) -> Iterator[Record]:
    """Of one pointer, or of those that winhost sets."""
    for pointer in [key["pointer"]] if key else POINTERS:
        yield Record({"value": linux.part(DockerDaemon).setting(pointer)}, {"pointer": pointer})


def set_docker_setting(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    linux.part(DockerDaemon).change(key["pointer"], desired["value"])
