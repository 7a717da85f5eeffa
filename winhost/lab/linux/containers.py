"""docker, podman and k3s in a simulated Linux: every registry has every image, and lets everybody in.

Sources: the documentation of `docker pull`, `docker load`, `docker image` and `docker container`; of K3s (configuration
file, air-gap install, advanced options) and of kubectl.
"""

import hashlib
import json
import re
import stat
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from winhost.core.answers import Json
from winhost.lab.linux.inner_python import Ended
from winhost.lab.linux.linux_machine import Linux
from winhost.model.units import GiB

_RECORDS = "/var/lib/winhost/models"
_SECONDS_OF_GB = 3.5  # as measured, with one thread


def packs(linux: Linux, words: Sequence[str]) -> Ended | str:
    """Pack weights, which is all that winhost runs by `docker run`, `podman run` and `systemd-run`."""
    source, folder = (_outside(word, words) for word in words[-2:])
    if linux.disk.node(folder) is None:
        return Ended(1, '{"error": "there is no folder for what is packed"}\n')
    for name in linux.disk.names(source):
        if name.endswith(".safetensors") and name not in linux.disk.names(folder):
            hash_, size = _known(linux, source, name)
            linux.sleep(size / 1e9 * _SECONDS_OF_GB)
            header = json.dumps({"__metadata__": {"winhost.packed": json.dumps({"sha256": hash_})}}).encode()
            data = len(header).to_bytes(8, "little") + header
            linux.disk.put(f"{folder}/{name}", linux.disk.new(stat.S_IFREG, data=data))
    return ""


def _outside(path: str, words: Sequence[str]) -> str:
    """Return the folder on the host that a container sees at this path."""
    volumes = (word.removeprefix("--volume=").split(":") for word in words if word.startswith("--volume="))
    return next((volume[0] for volume in volumes if volume[1] == path), path)


def _known(linux: Linux, folder: str, name: str) -> tuple[str, int]:
    for record in linux.disk.names(_RECORDS):
        found = json.loads(linux.disk.text(f"{_RECORDS}/{record}") or "{}")
        for line in found["files"] or () if found["folder"] == folder else ():
            hash_, size, path = line.split(" ", 2)
            if path == name:
                return hash_.removeprefix("sha256:"), int(size)
    return "", 0


_PULL_SECONDS = 300.0
_SENT = 8 * GiB  # for an image: made up
_NO_NAME = "sha256:"


class ContainerStore:
    """The images and containers of all engines. images: their ids, by engine and name; used: of each container the
    engine and the id of its image.
    """

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
        """Run the program of this engine."""
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
        """List, remove or inspect images, each by its id or by a name."""
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


PROGRAM = "/usr/local/bin/k3s"
UNIT = "winhost-k3s.service"
CONFIG = "/etc/rancher/k3s/config.yaml"
_SERVICE = "10.43.0.7"  # all have this address
_SERVE_SECONDS = 120.0
Manifest = Mapping[str, Any]


class SimulatedCluster:
    """K3s. objects: those that were applied, by kind, namespace and name, each with the time since when it is there."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.objects: dict[tuple[str, str, str], tuple[Manifest, float]] = {}

    @property
    def there(self) -> bool:
        return self._linux.disk.node(PROGRAM) is not None

    @property
    def node(self) -> str | None:
        """The name of the node that runs, as its configuration says."""
        config = self._linux.file(CONFIG)["text"]
        if not (self.there and config and self._linux.systemd.is_active(UNIT)):
            return None
        named = re.search(r"^node-name: (\S+)$", str(config), re.MULTILINE)
        joins = re.search(r"^token-file: (\S+)$", str(config), re.MULTILINE)
        lacks = joins is not None and self._linux.disk.text(joins[1]) is None
        return named[1] if named and not lacks else None

    @property
    def serves(self) -> bool:
        """Tell whether it runs an API server of its own."""
        return self.node is not None and not str(self._linux.file(CONFIG)["text"]).count("server: ")

    def answers_at(self, host: str) -> bool:
        return host == _SERVICE and self.serves

    def add(self, text: str, since: float) -> None:
        """Apply objects; unchanged ones stay as they are."""
        for each in _items(text):
            if self.objects.get(_identity(each), ({}, 0.0))[0] != each:
                self.objects[_identity(each)] = (each, since)

    def k3s(self, words: Sequence[str]) -> Ended | str:
        """Run k3s."""
        if not self.serves:
            return Ended(1, "", "The connection to the server 127.0.0.1:6443 was refused.\n")
        _, verb, *more = words
        options = dict(pairwise(more))
        if verb in ("apply", "create"):
            given = (
                self._linux.stdin.data.decode() if self._linux.stdin else self._linux.disk.text(options["--filename"])
            )
            self.add(str(given), self._linux.now())
        elif "--filename" in options:
            named = map(_identity, _items(str(self._linux.disk.text(options["--filename"]))))
            return json.dumps({"kind": "List", "items": [self._shown(each) for each in named if each in self.objects]})
        else:
            kind, name = more[:2] if more[0] == "secret" else more[-2:]
            identity = (kind.partition(".")[0].lower(), options.get("--namespace", ""), name)
            if verb == "delete":
                self.objects.pop(identity, None)
            elif identity in self.objects:
                return f"{kind}/{name}\n"
        return ""

    def _shown(self, identity: tuple[str, str, str]) -> Manifest:
        manifest, since = self.objects[identity]
        up = int(self._linux.now() - since >= _SERVE_SECONDS)
        return {
            **manifest,
            "spec": {**manifest.get("spec", {}), "clusterIP": _SERVICE},
            "status": {"availableReplicas": up, "updatedReplicas": up},
        }


def _items(text: str) -> list[Manifest]:
    found = json.loads(text)
    return list(found["items"]) if found["kind"] == "List" else [found]


def _identity(manifest: Manifest) -> tuple[str, str, str]:
    metadata: Mapping[str, Json] = manifest["metadata"]
    return str(manifest["kind"]).lower(), metadata.get("namespace", ""), metadata["name"]
