# key {engine: docker | podman | nvidia-ctk}   state {version: text, socket: text | null}
from __future__ import annotations

import re
import stat
from functools import partial

from winhost.agent.linux_agent import AgentFault, Found, Key, must, place_of, reads, status, value

SOCKETS = {"docker": "/run/docker.sock", "podman": "/run/podman/podman.sock", "nvidia-ctk": ""}


@reads("ContainerEngine", "engine")
def container_engines(key: Key | None) -> Found:
    for engine, socket in SOCKETS.items():
        if place_of(engine) is not None:
            yield {"engine": engine}, {"version": value(partial(version_of, engine)), "socket": listening_at(socket)}


def version_of(engine: str) -> str:
    said = must(engine, "--version", within=20)
    found = re.search(r"\d+(?:\.\d+)+[^\s,]*", said)
    if found is None:
        raise AgentFault("Winhost.NotRecognized", "InvalidResult", f"{engine} does not say its version.", engine)
    return found[0]


def listening_at(path: str) -> str | None:
    found = status(path) if path else None
    return path if found and stat.S_ISSOCK(found.st_mode) else None
