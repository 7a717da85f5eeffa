"""docker, podman and k3s in a simulated Linux. Each registry has every image, and needs no credentials.

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
from winhost.lab.linux.inner_python import ProgramResult
from winhost.lab.linux.linux_machine import Linux
from winhost.model.units import GiB

_RECORDS = "/var/lib/winhost/models"
_SECONDS_PER_GB = 3.5  # measured with one thread


def pack_weights(linux: Linux, arguments: Sequence[str]) -> ProgramResult | str:
    """Pack weights: the only job that winhost runs with `docker run`, `podman run` or `systemd-run`."""
    source, folder = (_host_path(word, arguments) for word in arguments[-2:])
    if linux.disk.node(folder) is None:
        return ProgramResult(1, '{"error": "there is no folder for what is packed"}\n')
    for name in linux.disk.list_names(source):
        if name.endswith(".safetensors") and name not in linux.disk.list_names(folder):
            hash_, size = _find_model_file(linux, source, name)
            linux.sleep(size / 1e9 * _SECONDS_PER_GB)
            header = json.dumps({"__metadata__": {"winhost.packed": json.dumps({"sha256": hash_})}}).encode()
            data = len(header).to_bytes(8, "little") + header
            linux.disk.put(f"{folder}/{name}", linux.disk.new(stat.S_IFREG, data=data))
    return ""


def _host_path(path: str, arguments: Sequence[str]) -> str:
    """Return the host's folder that is mounted in the container at this path."""
    volumes = (word.removeprefix("--volume=").split(":") for word in arguments if word.startswith("--volume="))
    return next((volume[0] for volume in volumes if volume[1] == path), path)


def _find_model_file(linux: Linux, folder: str, name: str) -> tuple[str, int]:
    for record in linux.disk.list_names(_RECORDS):
        record = json.loads(linux.disk.text(f"{_RECORDS}/{record}") or "{}")
        for line in record["files"] or () if record["folder"] == folder else ():
            hash_, size, path = line.split(" ", 2)
            if path == name:
                return hash_.removeprefix("sha256:"), int(size)
    return "", 0


_PULL_SECONDS = 300.0
_IMAGE_BYTES = 8 * GiB  # an assumption of the simulator
_ID_PREFIX = "sha256:"


class ContainerStore:
    """The images and containers of all engines. images: their ids, by engine and name.

    used_images: engine and image id of each container, by the container's name.
    """

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.images: dict[tuple[str, str], str] = {}
        self.used_images: dict[str, tuple[str, str]] = {}
        for record in linux.fact_records("ContainerImage"):
            if record.state["present"] is True:
                engine, id_ = record.key["engine"], str(record.state["id"])
                name = _ID_PREFIX + id_ if record.state["archive"] else record.key["image"]
                self.images[engine, name] = id_
                self.used_images |= dict.fromkeys(record.state["used_by"], (engine, id_))

    def has(self, name: str) -> bool:
        """Tell whether an engine has this image. Any image of an archive fits a tag: archives have no names here."""
        return any(image == name or ("@" not in name and image.startswith(_ID_PREFIX)) for _, image in self.images)

    def run(self, engine: str, arguments: Sequence[str]) -> ProgramResult | str:
        """Run docker or podman."""
        verb, *names = (word for word in arguments if not word.startswith("-"))
        if verb == "run":
            image = arguments[arguments.index("-m") - 1]
            exists = self.has(image)
            return (
                pack_weights(self._linux, arguments) if exists else ProgramResult(125, "", f"No such image: {image}\n")
            )
        if verb == "ps":
            return "".join(f"{name}\n" for name in self._linux.containers)
        if verb == "info":
            return json.dumps({"DockerRootDir": "/var/lib/docker", "store": {"graphRoot": "/var/lib/containers"}})
        if verb in ("pull", "manifest") and not self._linux.online:
            return ProgramResult(1, "", f"{names[-1]}: no such host\n")
        if verb == "manifest":
            return json.dumps({"layers": [{"size": _IMAGE_BYTES}]})
        if verb == "pull":
            return self._add(engine, names[0], hashlib.sha256(names[0].encode()).hexdigest())
        if verb == "load":
            assert self._linux.stdin is not None
            id_ = self._linux.stdin.sha256
            return "Loaded image ID: " + self._add(engine, _ID_PREFIX + id_, id_)
        return self._images(engine, *names) if verb == "image" else self._containers(engine, *names)

    def _add(self, engine: str, name: str, id_: str) -> str:
        self._linux.sleep(_PULL_SECONDS)
        self.images[engine, name] = id_
        return f"{name}\n"

    def _images(self, engine: str, verb: str, *names: str) -> ProgramResult | str:
        """List, remove or inspect images, each by its id or by a name."""
        images = {name: id_ for (owner, name), id_ in self.images.items() if owner == engine}
        if verb == "ls":
            return "".join(f"{_ID_PREFIX}{id_}\n" for id_ in images.values())
        if verb == "rm":
            del self.images[engine, names[0]]
            return ""
        ids = {images.get(name, name.removeprefix(_ID_PREFIX)) for name in names}
        if not ids <= {*images.values()}:
            return ProgramResult(1, "[]\n", f"No such image: {names[0]}\n")
        digests_by_id = {
            id_: [name for name, each in images.items() if each == id_ and "@" in name] for id_ in sorted(ids)
        }
        return json.dumps([{"Id": _ID_PREFIX + id_, "RepoDigests": digests} for id_, digests in digests_by_id.items()])

    def _containers(self, engine: str, verb: str, *names: str) -> str:
        containers = {name: id_ for name, (owner, id_) in self.used_images.items() if owner == engine}
        if verb == "ls":
            return "".join(f"{name}\n" for name in containers)
        return json.dumps([{"Name": f"/{name}", "Image": _ID_PREFIX + containers[name]} for name in names])


PROGRAM = "/usr/local/bin/k3s"
UNIT = "winhost-k3s.service"
CONFIG = "/etc/rancher/k3s/config.yaml"
_SERVICE = "10.43.0.7"  # the address of all services
_SERVE_SECONDS = 120.0
Manifest = Mapping[str, Any]


class SimulatedCluster:
    """K3s. objects: those that were applied, with the time of that, by kind, namespace and name."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.objects: dict[tuple[str, str, str], tuple[Manifest, float]] = {}

    @property
    def is_installed(self) -> bool:
        return self._linux.disk.node(PROGRAM) is not None

    @property
    def node(self) -> str | None:
        """The name of the running node in its configuration, or None."""
        config = self._linux.read_file(CONFIG)["text"]
        if not (self.is_installed and config and self._linux.systemd.is_active(UNIT)):
            return None
        node_name = re.search(r"^node-name: (\S+)$", str(config), re.MULTILINE)
        token_file = re.search(r"^token-file: (\S+)$", str(config), re.MULTILINE)
        token_is_missing = token_file is not None and self._linux.disk.text(token_file[1]) is None
        return node_name[1] if node_name and not token_is_missing else None

    @property
    def serves(self) -> bool:
        """Whether it runs an API server."""
        return self.node is not None and not str(self._linux.read_file(CONFIG)["text"]).count("server: ")

    def answers_at(self, host: str) -> bool:
        return host == _SERVICE and self.serves

    def add(self, text: str, since: float) -> None:
        """Apply objects. Unchanged objects keep their time."""
        for each in _parse_objects(text):
            if self.objects.get(_identity(each), ({}, 0.0))[0] != each:
                self.objects[_identity(each)] = (each, since)

    def k3s(self, arguments: Sequence[str]) -> ProgramResult | str:
        """Run k3s kubectl."""
        if not self.serves:
            return ProgramResult(1, "", "The connection to the server 127.0.0.1:6443 was refused.\n")
        _, verb, *operands = arguments
        options = dict(pairwise(operands))
        if verb in ("apply", "create"):
            manifest_text = (
                self._linux.stdin.data.decode() if self._linux.stdin else self._linux.disk.text(options["--filename"])
            )
            self.add(str(manifest_text), self._linux.now())
        elif "--filename" in options:
            identities = map(_identity, _parse_objects(str(self._linux.disk.text(options["--filename"]))))
            return json.dumps(
                {"kind": "List", "items": [self._with_status(each) for each in identities if each in self.objects]}
            )
        else:
            kind, name = operands[:2] if operands[0] == "secret" else operands[-2:]
            identity = (kind.partition(".")[0].lower(), options.get("--namespace", ""), name)
            if verb == "delete":
                self.objects.pop(identity, None)
            elif identity in self.objects:
                return f"{kind}/{name}\n"
        return ""

    def _with_status(self, identity: tuple[str, str, str]) -> Manifest:
        manifest, since = self.objects[identity]
        is_up = int(self._linux.now() - since >= _SERVE_SECONDS)
        return {
            **manifest,
            "spec": {**manifest.get("spec", {}), "clusterIP": _SERVICE},
            "status": {"availableReplicas": is_up, "updatedReplicas": is_up},
        }


def _parse_objects(text: str) -> list[Manifest]:
    parsed = json.loads(text)
    return list(parsed["items"]) if parsed["kind"] == "List" else [parsed]


def _identity(manifest: Manifest) -> tuple[str, str, str]:
    metadata: Mapping[str, Json] = manifest["metadata"]
    return str(manifest["kind"]).lower(), metadata.get("namespace", ""), metadata["name"]
