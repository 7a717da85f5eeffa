"""Render an engine's specification for Docker and Podman, for Compose, and as a command for a shell."""

import shlex
from dataclasses import replace
from typing import Any

import yaml

from winhost.model.units import Bytes, GiB
from winhost.serving.engine_names import MODEL
from winhost.serving.engine_spec import Container, EngineSpec, Mount

START = 'umask 0007; exec vllm serve "$0" "$@"'
"""A shell that lets the socket's group connect: vLLM makes its socket as the umask says."""
IMAGE = "vllm/vllm-openai"
DEV_MODE = "VLLM_SERVER_DEV_MODE"
"""Not in commands to copy: everybody who reaches an engine in development mode can run code in it."""
ASKED_FOR = '"${VLLM_IMAGE:?the version of vllm is not stated}"'  # the shell stops here, and says why


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


def command(name: str, spec: EngineSpec, vllm: str | None) -> list[str]:
    """The parts of an engine's `docker run` for a shell, each for a line of its own. name: of the container; vllm: its
    version, None if unknown.
    """
    asked = replace(_copied(spec), image=f"{IMAGE}:v{vllm}" if vllm else ASKED_FOR)
    words = [word if word == ASKED_FOR else quoted(word) for word in docker_words(asked)]
    return [f"docker run --detach {quoted(f'--name={name}')}", *words]


def program_command(spec: EngineSpec) -> list[str]:
    """The parts with vLLM's own program, for a model whose process leaves its GPU, which no container's process can."""
    asked = _copied(spec)
    variables = (quoted(f"{name}={value}") for name, value in asked.environment.items())
    model, *options = map(quoted, asked.arguments(asked.folder))
    return ["umask 0007; env", *variables, f"vllm serve {model}", *options]


def _copied(spec: EngineSpec) -> EngineSpec:
    return replace(spec, environment={name: value for name, value in spec.environment.items() if name != DEV_MODE})


def quoted(word: str) -> str:
    """Quote a word for bash. Characters that a terminal would interpret or hide are written as bytes."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        c if c.isalnum() and c.isascii() else "".join(f"\\x{b:02x}" for b in c.encode(errors="surrogatepass"))
        for c in word
    )
    return f"$'{escaped}'"


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
