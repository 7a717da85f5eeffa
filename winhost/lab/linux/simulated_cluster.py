"""k3s in a simulated Linux: its files, the node that it makes of the machine, and what is applied to its cluster.

Sources: the K3s documentation (configuration file, air-gap install, advanced options).
"""

import json
import re
from collections.abc import Iterator, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.linux_errors import program_failed, refused
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.physics.windows_errors import NotYet
from winhost.resources.linux.cluster_objects import NO_OBJECTS

PROGRAM = "/usr/local/bin/k3s"
UNIT = "winhost-k3s.service"
CONFIG = "/etc/rancher/k3s/config.yaml"
_NODE = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
_OBJECTS = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_START_SECONDS, _SERVE_SECONDS = 30.0, 600.0


class SimulatedCluster:
    """objects: texts by name; serving: names of those whose models answered."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        found = {each.key["name"]: each.state for each in linux.found("ClusterObjects")}
        self.objects: dict[str, str] = {name: str(state["text"]) for name, state in found.items() if state["text"]}
        self.serving = {name for name, state in found.items() if state["serves"]}
        self.tokens = {name: state["token"] for name, state in found.items() if state["token"]}

    @property
    def there(self) -> bool:
        return self._linux.disk.node(PROGRAM) is not None

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
