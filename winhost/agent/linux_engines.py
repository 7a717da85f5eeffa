# Part of the agent, which sends it along: what Docker and Podman tell.
"""Both have the same words for images and containers, and nearly the same answers. Python 3.8 can read it."""

from __future__ import annotations

import json
import platform
import re
from contextlib import suppress

from winhost.agent.linux_agent import must, once, run, warn


def read_images(engine: str) -> dict[str, str]:
    """The id of each that the engine has, by reference and digest."""
    ids = sorted(set(must(engine, "image", "ls", "--quiet", "--no-trunc").split()))
    shown = json.loads(must(engine, "image", "inspect", *ids)) if ids else []
    return {full_name(name): each["Id"][-64:] for each in shown for name in each.get("RepoDigests") or [each["Id"]]}


def full_name(name: str) -> str:
    """The name in the form that image_name wants: Docker leaves its own registry out."""
    if re.match(r"[^/]*[.:][^/]*/|localhost/", name):
        return name
    return "docker.io/" + (name if "/" in name else "library/" + name)


def images_of(engine: str) -> dict[str, str]:
    return once("images of " + engine, lambda: read_images(engine))


def users_of(engine: str) -> list[tuple[str, str]]:
    """Containers, running or not, each with the id of its image."""

    def read() -> list[tuple[str, str]]:
        ids = must(engine, "container", "ls", "--all", "--quiet", "--no-trunc").split()
        shown = json.loads(must(engine, "container", "inspect", *ids)) if ids else []
        return [(each["Name"].lstrip("/"), each["Image"][-64:]) for each in shown]

    return once("containers of " + engine, read)


def size_of_image(engine: str, image: str, more: dict[str, str]) -> int:
    """Bytes that are sent for it, as its registry tells Docker. Podman asks only for lists of images."""
    done = run(engine, "manifest", "inspect", image, more=more)
    with suppress(ValueError, KeyError, TypeError):
        manifest = json.loads(done.output)
        for each in manifest.get("manifests", ()):
            if (each["platform"]["os"], each["platform"]["architecture"]) == ("linux", architecture()):
                return size_of_image(engine, image.split("@")[0] + "@" + each["digest"], more)
        return sum(layer["size"] for layer in manifest["layers"])
    warn(f"{engine} does not tell how large it is; without `bytes` the room for it is not checked.")
    return 0


def architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
