# Part of the agent: images and containers of Docker and Podman.
"""Both have the same commands, and nearly the same output. This part has to parse with Python 3.8."""

from __future__ import annotations

import json
import platform
import re
from contextlib import suppress

from winhost.agent.linux_agent import once, run, run_checked, warn


def read_images(engine: str) -> dict[str, str]:
    """Read the ids of the engine's images, by reference and digest."""
    ids = sorted(set(run_checked(engine, "image", "ls", "--quiet", "--no-trunc").split()))
    shown = json.loads(run_checked(engine, "image", "inspect", *ids)) if ids else []
    return {
        qualified_name(name): each["Id"][-64:] for each in shown for name in each.get("RepoDigests") or [each["Id"]]
    }


def qualified_name(name: str) -> str:
    """Return the name with its registry, which Docker omits for its own."""
    if re.match(r"[^/]*[.:][^/]*/|localhost/", name):
        return name
    return "docker.io/" + (name if "/" in name else "library/" + name)


def images_by_name(engine: str) -> dict[str, str]:
    return once("images of " + engine, lambda: read_images(engine))


def containers_of(engine: str) -> list[tuple[str, str]]:
    """List the containers, running or not, each with the id of its image."""

    def read() -> list[tuple[str, str]]:
        ids = run_checked(engine, "container", "ls", "--all", "--quiet", "--no-trunc").split()
        shown = json.loads(run_checked(engine, "container", "inspect", *ids)) if ids else []
        return [(each["Name"].lstrip("/"), each["Image"][-64:]) for each in shown]

    return once("containers of " + engine, read)


def image_size(engine: str, image: str, environment: dict[str, str]) -> int:
    """Return the size of an image in its registry, 0 if it is not known. Podman can read only lists of images."""
    done = run(engine, "manifest", "inspect", image, environment=environment)
    with suppress(ValueError, KeyError, TypeError):
        manifest = json.loads(done.output)
        for each in manifest.get("manifests", ()):
            if (each["platform"]["os"], each["platform"]["architecture"]) == ("linux", architecture()):
                return image_size(engine, image.split("@")[0] + "@" + each["digest"], environment)
        return sum(layer["size"] for layer in manifest["layers"])
    warn(f"{engine} does not tell how large it is; without `bytes` the room for it is not checked.")
    return 0


def architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
