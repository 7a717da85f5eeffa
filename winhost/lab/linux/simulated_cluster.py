"""k3s in a simulated Linux: its files, the node that it makes of the machine, and what is applied to its cluster.

Sources: the K3s documentation (configuration file, air-gap install, advanced options).
"""

import json
import re
from collections.abc import Iterator, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.linux_errors import program_failed, refused
from winhost.lab.linux.linux_machine import Linux, State
from winhost.lab.physics.windows_errors import NotYet
from winhost.resources.linux.cluster_objects import NO_OBJECTS
from winhost.resources.linux.release_file import NO_RELEASE

PROGRAM = "/usr/local/bin/k3s"
UNIT = "winhost-k3s.service"
CONFIG = "/etc/rancher/k3s/config.yaml"
_RELEASES = r"/usr/local/bin/k3s|/var/lib/rancher/k3s/agent/images/k3s-airgap-images-(?:amd64|arm64)\.tar\.zst"
_NODE = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
_OBJECTS = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_BYTES_A_SECOND = 50e6
_START_SECONDS, _SERVE_SECONDS = 30.0, 600.0


class SimulatedCluster:
    """releases: by path; objects: texts by name; serving: names of those whose models answered."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.releases: dict[str, State] = {each.key["path"]: dict(each.state) for each in linux.found("ReleaseFile")}
        found = {each.key["name"]: each.state for each in linux.found("ClusterObjects")}
        self.objects: dict[str, str] = {name: str(state["text"]) for name, state in found.items() if state["text"]}
        self.serving = {name for name, state in found.items() if state["serves"]}
        self.tokens = {name: state["token"] for name, state in found.items() if state["token"]}

    @property
    def there(self) -> bool:
        return self.releases.get(PROGRAM, NO_RELEASE)["sha256"] is not None

    @property
    def node(self) -> str | None:
        """The name of the node that runs, as its configuration says."""
        config = self._linux.file(CONFIG)["text"]
        if not (self.there and config and self._linux.systemd.state(UNIT)["active"] is True):
            return None
        named = re.search(r"^node-name: (\S+)$", str(config), re.MULTILINE)
        joins = re.search(r"^token-file: (\S+)$", str(config), re.MULTILINE)
        lacks = joins is not None and self._linux.disk.text(joins[1]) is None
        return named[1] if named and not lacks else None

    @property
    def serves(self) -> bool:
        """Whether it has an API server of its own."""
        return self.node is not None and not str(self._linux.file(CONFIG)["text"]).count("server: ")

    def bring(self, path: str, desired: Mapping[str, Json]) -> None:
        """Raises CmdletError."""
        before = self.releases.get(path, NO_RELEASE)
        if desired.get("source", "") is None:
            if before["source"] is not None:
                del self.releases[path]
            return
        after = {**before, **desired}
        if before["sha256"] is not None and before["source"] is None and before["sha256"] != after["sha256"]:
            raise refused("NotOurs", "ResourceExists", f"{path} is another file, which winhost did not write.")
        if not (after["source"] and after["sha256"] and after["bytes"]):
            raise refused("BadRequest", "InvalidArgument", "A file has a source, a SHA-256 and a size.")
        if before["sha256"] is None:
            self.releases[path] = {**NO_RELEASE, "source": after["source"]}
        if not self._linux.online and not str(after["source"]).startswith("/"):
            raise refused("HubUnreachable", "ResourceUnavailable", f"{after['source']}: 5 attempts brought nothing.")
        assert isinstance(after["bytes"], int)
        self._linux.machine.clock.sleep(after["bytes"] / _BYTES_A_SECOND)
        self.releases[path] = after

    def apply(self, name: str, desired: Mapping[str, Json]) -> None:
        """Raises CmdletError."""
        if desired.get("text", "") is None:
            self.objects.pop(name, None)
            self.tokens.pop(name, None)
            self.serving.discard(name)
            return
        if not self.serves:
            raise program_failed("k3s", "The connection to the server 127.0.0.1:6443 was refused.")
        if "text" in desired:
            json.loads(str(desired["text"]))
            self.objects[name] = str(desired["text"])
        if "token" in desired:
            self.tokens[name] = desired["token"]
        if desired.get("serves") or name in self.serving:
            self._linux.machine.clock.sleep(_SERVE_SECONDS)
            self.serving.add(name)


def release_files(linux: Linux, key: Key | None) -> Iterator[Record]:
    """Of one path, or of all that winhost brought."""
    found = linux.part(SimulatedCluster).releases
    ours = sorted(path for path, state in found.items() if state["source"] is not None)
    for path in [key["path"]] if key else ours:
        if re.fullmatch(_RELEASES, path) is None:
            raise refused("BadRequest", "InvalidArgument", f"{path!r} is not the path of a file that winhost brings.")
        yield Record(found.get(path, NO_RELEASE), {"path": path})


def set_release_file(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    linux.part(SimulatedCluster).bring(key["path"], desired)


def cluster_nodes(linux: Linux, key: Key | None) -> Iterator[Record]:
    """Of the named one alone."""
    cluster = linux.part(SimulatedCluster)
    if not cluster.there:
        raise NotYet("ReleaseFile")
    if key is None:
        return
    if re.fullmatch(_NODE, key["node"]) is None:
        raise refused("BadRequest", "InvalidArgument", f"{key['node']!r} is not the name of a node.")
    yield Record({"ready": cluster.node == key["node"]}, {"node": key["node"]})


def await_node(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    linux.machine.clock.sleep(_START_SECONDS)
    if linux.part(SimulatedCluster).node != key["node"]:
        raise refused("NodeNotReady", "ObjectNotFound", f"{key['node']} is no ready node of its cluster.")


def cluster_objects(linux: Linux, key: Key | None) -> Iterator[Record]:
    """Of one name, or of all that were applied."""
    cluster = linux.part(SimulatedCluster)
    if not cluster.there:
        raise NotYet("ReleaseFile")
    for name in [key["name"]] if key else sorted(cluster.objects):
        if re.fullmatch(_OBJECTS, name) is None:
            raise refused("BadRequest", "InvalidArgument", f"{name!r} is not a name in a cluster.")
        text = cluster.objects.get(name) if cluster.serves else None
        state = {"text": text, "serves": name in cluster.serving, "token": cluster.tokens.get(name)}
        yield Record(state if text is not None else NO_OBJECTS, {"name": name})


def set_cluster_objects(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    linux.part(SimulatedCluster).apply(key["name"], desired)
