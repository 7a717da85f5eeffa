# key {engine: docker | podman | nvidia-ctk}   state {version: text, socket: text | null, snap: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

SOCKETS = {"docker": "/run/docker.sock", "podman": "/run/podman/podman.sock", "nvidia-ctk": ""}
SNAP_OF_DOCKER, SNAP_INFO = "/snap/bin/docker", "/snap/docker/current/meta/snap.yaml"


@reads("ContainerEngine", engine=ANY_TEXT)
def container_engines(key: Key | None) -> Found:
    for engine, socket in SOCKETS.items():
        if find_program(engine) is not None:
            state = {"version": value(partial(version_of, engine)), "snap": False}
            yield {"engine": engine}, {**state, "socket": listening_at(socket)}
    if find_program("docker") is None and file_status(SNAP_OF_DOCKER) is not None:
        yield (
            {"engine": "docker"},
            {"version": value(snap_version), "snap": True, "socket": listening_at(SOCKETS["docker"])},
        )


def snap_version() -> str:
    """Read the version from the metadata of the current revision, because programs of snaps are not run."""
    found = re.search(r"^version: '?([^'\s]+)", read_file(os.path.realpath(SNAP_INFO)).decode("utf-8"), re.MULTILINE)
    if found is None:
        raise AgentFault("Winhost.NotRecognized", "InvalidResult", "The snap does not say its version.", "docker")
    return found[1]


def version_of(engine: str) -> str:
    said = run_checked(engine, "--version", within=20)
    found = re.search(r"\d+(?:\.\d+)+[^\s,]*", said)
    if found is None:
        raise AgentFault("Winhost.NotRecognized", "InvalidResult", f"{engine} does not say its version.", engine)
    return found[0]


def listening_at(path: str) -> str | None:
    found = file_status(path) if path else None
    return path if found and stat.S_ISSOCK(found.st_mode) else None
