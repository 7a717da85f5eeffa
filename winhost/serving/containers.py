"""Render an engine's specification for `docker run` and `podman run`, and for Compose."""

from typing import Any

import yaml

from winhost.model.units import Bytes, GiB
from winhost.serving.engine_names import MODEL
from winhost.serving.engine_spec import Container, EngineSpec, Mount

START = 'umask 0007; exec vllm serve "$0" "$@"'
"""A shell that lets the socket's group connect: vLLM makes its socket as the umask says."""


def hardened(image: str, restart: str) -> dict[str, Any]:
    """The keys of a Compose service that gains no rights and whose log stays small."""
    return {
        "image": image,
        "restart": restart,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "logging": {"driver": "local", "options": {"max-size": "10m", "max-file": "2"}},
    }


def docker_words(spec: EngineSpec) -> list[str]:
    """The words of `docker run` and `podman run` for an engine, without its name."""
    variables = [f"--env={name}={value}" for name, value in spec.environment.items()]
    shell = ["--entrypoint=/bin/sh", str(spec.image), "-c", START]
    return [*docker_options(spec.container), *variables, *shell, *spec.arguments(MODEL)]


def docker_options(container: Container) -> list[str]:
    options = [
        ("network", _network(container)),
        *(("volume", _volume(each)) for each in container.mounts),
        ("shm-size", _size(container.shm)),
        ("stop-timeout", container.stop),
        ("gpus", container.gpus),
        ("device", container.cdi),
        ("ipc", container.ipc),
    ]
    return [f"--{name}={value}" for name, value in options if value is not None]


def compose_options(container: Container) -> dict[str, Any]:
    """The keys of a service that say the same as `docker_options`."""
    devices: dict[str, Any] | None = None
    if container.cdi:
        # Compose before 2.30 takes such a name among `devices` for the path of a device.
        devices = {"driver": "cdi", "device_ids": [container.cdi], "capabilities": ["gpu"]}
    elif container.gpus:
        devices = {"driver": "nvidia", "count": container.gpus, "capabilities": ["gpu"]}
    keys = {
        "network_mode": _network(container),
        "volumes": [_volume(each) for each in container.mounts],
        "shm_size": _size(container.shm),
        "stop_grace_period": container.stop and f"{container.stop}s",
        "deploy": devices and {"resources": {"reservations": {"devices": [devices]}}},
        "ipc": container.ipc,
    }
    return {key: value for key, value in keys.items() if value is not None}


def compose_engine(spec: EngineSpec, start: str) -> dict[str, Any]:
    """The keys of a Compose service that runs the engine by a shell. start: a command for that shell."""
    return {
        "entrypoint": ["/bin/sh", "-c", compose_word(start)],
        "command": [*map(compose_word, spec.arguments(MODEL))],
        "environment": {name: compose_word(value) for name, value in spec.environment.items()},
        **compose_options(spec.container),
    }


def _network(container: Container) -> str | None:
    return f"container:{container.network_of}" if container.network_of else container.network


def _volume(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"


def _size(bytes_: Bytes | None) -> str | None:
    return f"{bytes_ // GiB}g" if bytes_ else None


def compose_word(text: str) -> str:
    """Escape `$`, so that Compose expands nothing."""
    return text.replace("$", "$$")


def compose_text(document: dict[str, Any], head: str = "# Written by winhost.\n") -> str:
    return head + readable_yaml(document)


def readable_yaml(document: object) -> str:
    """Write YAML with block scalars for texts of several lines and without aliases."""
    text: str = yaml.dump(document, Dumper=_Readable, sort_keys=False, width=1000)
    return text


class _Readable(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)


_Readable.add_representer(str, _text)
