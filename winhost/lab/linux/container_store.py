"""docker and podman in a simulated Linux: every registry has every image, and lets everybody in.

Source: the documentation of `docker pull`, `docker load`, `docker image` and `docker container`.
"""

import hashlib
import json
from collections.abc import Sequence

from winhost.lab.linux.inner_python import Ended
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.packer import packs
from winhost.model.units import GiB

_PULL_SECONDS = 300.0
_SENT = 8 * GiB  # for an image: made up
_NO_NAME = "sha256:"


class ContainerStore:
    """images: their ids, by engine and name; used: of each container the engine and the id of its image."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.images: dict[tuple[str, str], str] = {}
        self.used: dict[str, tuple[str, str]] = {}
        for record in linux.found("ContainerImage"):
            if record.state["present"] is True:
                engine, id_ = record.key["engine"], str(record.state["id"])
                name = _NO_NAME + id_ if record.state["archive"] else record.key["image"]
                self.images[engine, name] = id_
                self.used |= dict.fromkeys(record.state["used_by"], (engine, id_))

    def has(self, name: str) -> bool:
        """Tell whether an engine finds this image: by digest where it was pulled, by tag where it came in an archive,
        whose text the simulator does not read.
        """
        return any(image == name or ("@" not in name and image.startswith(_NO_NAME)) for _, image in self.images)

    def asked(self, engine: str, words: Sequence[str]) -> Ended | str:
        """A program of this engine."""
        verb, *names = (word for word in words if not word.startswith("-"))
        if verb == "run":
            image = words[words.index("-m") - 1]
            there = self.has(image)
            return packs(self._linux, words) if there else Ended(125, "", f"No such image: {image}\n")
        if verb == "ps":
            return "".join(f"{name}\n" for name in self._linux.containers)
        if verb == "info":
            return json.dumps({"DockerRootDir": "/var/lib/docker", "store": {"graphRoot": "/var/lib/containers"}})
        if verb in ("pull", "manifest") and not self._linux.online:
            return Ended(1, "", f"{names[-1]}: no such host\n")
        if verb == "manifest":
            return json.dumps({"layers": [{"size": _SENT}]})
        if verb == "pull":
            return self._add(engine, names[0], hashlib.sha256(names[0].encode()).hexdigest())
        if verb == "load":
            assert self._linux.stdin is not None
            id_ = self._linux.stdin.sha256
            return "Loaded image ID: " + self._add(engine, _NO_NAME + id_, id_)
        return self._images(engine, *names) if verb == "image" else self._containers(engine, *names)

    def _add(self, engine: str, name: str, id_: str) -> str:
        self._linux.sleep(_PULL_SECONDS)
        self.images[engine, name] = id_
        return f"{name}\n"

    def _images(self, engine: str, verb: str, *names: str) -> Ended | str:
        """Each by its id, or by a name."""
        found = {name: id_ for (has_it, name), id_ in self.images.items() if has_it == engine}
        if verb == "ls":
            return "".join(f"{_NO_NAME}{id_}\n" for id_ in found.values())
        if verb == "rm":
            del self.images[engine, names[0]]
            return ""
        wanted = {found.get(name, name.removeprefix(_NO_NAME)) for name in names}
        if not wanted <= {*found.values()}:
            return Ended(1, "[]\n", f"No such image: {names[0]}\n")
        named = {id_: [name for name, each in found.items() if each == id_ and "@" in name] for id_ in sorted(wanted)}
        return json.dumps([{"Id": _NO_NAME + id_, "RepoDigests": digests} for id_, digests in named.items()])

    def _containers(self, engine: str, verb: str, *names: str) -> str:
        found = {name: id_ for name, (has_it, id_) in self.used.items() if has_it == engine}
        if verb == "ls":
            return "".join(f"{name}\n" for name in found)
        return json.dumps([{"Name": f"/{name}", "Image": _NO_NAME + found[name]} for name in names])
