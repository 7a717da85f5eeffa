"""k3s in a simulated Linux: the node that it makes of the machine, and kubectl on what is applied to its cluster.

Sources: the K3s documentation (configuration file, air-gap install, advanced options) and that of kubectl.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from winhost.core.answers import Json
from winhost.lab.linux.inner_python import Ended
from winhost.lab.linux.linux_machine import Linux

PROGRAM = "/usr/local/bin/k3s"
UNIT = "winhost-k3s.service"
CONFIG = "/etc/rancher/k3s/config.yaml"
_SERVICE = "10.43.0.7"  # all have this address
_SERVE_SECONDS = 120.0
Manifest = Mapping[str, Any]


class SimulatedCluster:
    """objects: what is there, by kind, namespace and name, and since when."""

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
        if not (self.there and config and self._linux.systemd.state(UNIT)["active"] is True):
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
        """The program."""
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
    place: Mapping[str, Json] = manifest["metadata"]
    return str(manifest["kind"]).lower(), place.get("namespace", ""), place["name"]
