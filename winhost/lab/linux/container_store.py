"""Images of containers in a simulated Linux: every registry has every image, and lets everybody in.

Source: the documentation of `docker pull`, `docker load` and `docker image rm`.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import field

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.physics.windows_errors import NotYet
from winhost.resources.linux.container_image import NO_IMAGE

_ENGINES = {"docker": {"docker.io", "docker-ce-cli"}, "podman": {"podman"}}
_ASKED = ("archive", "archive_sha256", "bytes", "credentials")
_PULL_SECONDS = 300.0
_REGISTRY = r"(localhost|[a-z0-9-]+(\.[a-z0-9-]+)+|[a-z0-9.-]+:[0-9]+)(:[0-9]+)?"
_IMAGE = _REGISTRY + r"(/[a-z0-9]+([._-]+[a-z0-9]+)*)+@sha256:[0-9a-f]{64}"


@dataclass
class _Image:
    """ours: winhost brought it."""

    asked: dict[str, Json] = field(default_factory=lambda: dict.fromkeys(_ASKED))
    used_by: list[str] = field(default_factory=list)
    ours: bool = False
    id: str = ""


class ContainerStore:
    """images: by engine and name."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.images: dict[tuple[str, str], _Image] = {}
        for record in linux.machine.instances("ContainerImage"):
            if record.state["present"] is True:
                asked = {name: record.state[name] for name in _ASKED}
                id_ = str(record.state["id"])
                self.images[_of(record.key)] = _Image(asked, list(record.state["used_by"]), id=id_)

    @property
    def engines(self) -> list[str]:
        return [engine for engine, packages in _ENGINES.items() if packages & {*self._linux.apt.packages}]

    def has(self, name: str) -> bool:
        """What an engine starts: by its digest where it was pulled, by a tag where it came in an archive, whose text
        nobody here reads.
        """
        repository = name.partition("@")[0].rpartition(":")[0]
        return any(
            image == name or (found.asked.get("archive") and image.partition("@")[0] == repository)
            for (_, image), found in self.images.items()
        )

    def state(self, key: Key) -> Mapping[str, Json]:
        image = self.images.get(_of(key))
        if image is None:
            return {**NO_IMAGE, "used_by": []}
        return {"present": True, "id": image.id, **image.asked, "used_by": list(image.used_by)}

    def change(self, key: Key, desired: Mapping[str, Json]) -> None:
        """Raises CmdletError."""
        if desired.get("present") is False:
            self._remove(key)
            return
        if _of(key) not in self.images:
            if not self._linux.online and not desired.get("archive"):
                raise refused(
                    "CommandFailed", "ResourceUnavailable", f"{key['engine']} pull: no such host.", key["engine"]
                )
            self._linux.machine.clock.sleep(_PULL_SECONDS)
            self.images[_of(key)] = _Image(ours=True, id=hashlib.sha256(key["image"].encode()).hexdigest())
        self.images[_of(key)].asked |= {name: desired[name] for name in _ASKED if name in desired}

    def _remove(self, key: Key) -> None:
        image = self.images[_of(key)]
        if not image.ours:
            raise refused("NotOurs", "PermissionDenied", f"{key['image']} was not brought by winhost; it stays.")
        if image.used_by:
            raise refused("InUse", "ResourceBusy", f"Used by {', '.join(image.used_by)}.", key["engine"])
        del self.images[_of(key)]


def _of(key: Key) -> tuple[str, str]:
    return key["engine"], key["image"]


def container_images(linux: Linux, key: Key | None) -> Iterator[Record]:
    """Of one, or of all that the engines have."""
    store = linux.part(ContainerStore)
    if key and (key["engine"] not in _ENGINES or re.fullmatch(_IMAGE, key["image"]) is None):
        raise refused("BadRequest", "InvalidArgument", f"{key} is not an image with registry and digest.")
    if not store.engines or (key and key["engine"] not in store.engines):
        raise NotYet("DebianPackage")
    if key:
        yield Record(store.state(key), key)
        return
    for engine, image in sorted(store.images):
        yield Record(store.state({"engine": engine, "image": image}), {"engine": engine, "image": image})


def set_container_image(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    linux.part(ContainerStore).change(key, desired)
