"""Render an engine's specification for Docker and Podman, for Compose, and as a command for a shell."""

import shlex
from collections.abc import Mapping
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
"""Commands to copy leave it out: everybody who reaches an engine in development mode can run code in it."""
_IMAGE_VARIABLE = (
    '"${VLLM_IMAGE:?the version of vllm is not stated}"'  # without the variable the shell stops, and says why
)


def hardened(image: str, restart: str) -> dict[str, Any]:
    """Return the keys of a Compose service that gains no rights and whose log stays small."""
    return {
        "image": image,
        "restart": restart,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "logging": {"driver": "local", "options": {"max-size": "10m", "max-file": "2"}},
    }


def docker_engine(spec: EngineSpec) -> list[str]:
    """Return the arguments of `docker run` and `podman run` for an engine, without its name."""
    options = [*docker_options(spec.container), *docker_variables(spec.environment)]
    return [*options, *docker_program(spec, "/bin/sh", "-c", START, *spec.arguments(MODEL))]


def docker_program(spec: EngineSpec, program: str, *arguments: str) -> list[str]:
    """Return the last arguments of `docker run`: a program of the engine's image, and its arguments."""
    return [f"--entrypoint={program}", str(spec.image), *arguments]


def restricted_run(*options: str, name: str | None = None) -> list[str]:
    """Return the first arguments of `docker run` for a container that gains no rights and is removed when it ends. The
    image must be on the machine. options: those that come before the rights.
    """
    named = [f"--name={name}"] if name else []
    rights = ["--cap-drop=ALL", "--security-opt=no-new-privileges"]
    return ["run", *named, "--rm", "--pull=never", *options, *rights]


def docker_variables(environment: Mapping[str, str]) -> list[str]:
    return [f"--env={name}={value}" for name, value in environment.items()]


def docker_options(container: Container) -> list[str]:
    options = [
        ("network", _network(container)),
        *(("volume", _volume(each)) for each in container.mounts),
        ("shm-size", _size(container.shm)),
        ("memory", _size(container.memory)),
        ("stop-timeout", container.stop),
        ("gpus", container.gpus),
        ("device", container.cdi),
        ("ipc", container.ipc),
    ]
    return [f"--{name}={value}" for name, value in options if value is not None]


def command(name: str, spec: EngineSpec, vllm: str | None) -> list[str]:
    """Return the parts of an engine's `docker run` for a shell, each for a line of its own. name: of the container;
    vllm: its version, None if unknown.
    """
    pasted = replace(_without_dev_mode(spec), image=f"{IMAGE}:v{vllm}" if vllm else _IMAGE_VARIABLE)
    arguments = [each if each == _IMAGE_VARIABLE else quoted(each) for each in docker_engine(pasted)]
    return [f"docker run --detach {quoted(f'--name={name}')}", *arguments]


def program_command(spec: EngineSpec) -> list[str]:
    """Return the parts with vLLM's own program, for a model whose process leaves its GPU, which no container's process
    can.
    """
    pasted = _without_dev_mode(spec)
    variables = (quoted(f"{name}={value}") for name, value in pasted.environment.items())
    model, *options = map(quoted, pasted.arguments(pasted.folder))
    return ["umask 0007; env", *variables, f"vllm serve {model}", *options]


def _without_dev_mode(spec: EngineSpec) -> EngineSpec:
    return replace(spec, environment={name: value for name, value in spec.environment.items() if name != DEV_MODE})


def quoted(argument: str) -> str:
    """Quote an argument for bash. Characters that a terminal would interpret or hide are written as bytes."""
    if argument.isprintable():
        return shlex.quote(argument)
    escaped = "".join(
        c if c.isalnum() and c.isascii() else "".join(f"\\x{b:02x}" for b in c.encode(errors="surrogatepass"))
        for c in argument
    )
    return f"$'{escaped}'"


def compose_options(container: Container) -> dict[str, Any]:
    """Return the keys of a Compose service for what `docker_options` renders."""
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
        "mem_limit": _size(container.memory),
        "stop_grace_period": container.stop and f"{container.stop}s",
        "deploy": devices and {"resources": {"reservations": {"devices": [devices]}}},
        "ipc": container.ipc,
    }
    return {key: value for key, value in keys.items() if value is not None}


def compose_engine(spec: EngineSpec, start: str) -> dict[str, Any]:
    """Return the keys of a Compose service that runs the engine by a shell. start: a command for that shell."""
    return {
        "entrypoint": ["/bin/sh", "-c", compose_literal(start)],
        "command": [*map(compose_literal, spec.arguments(MODEL))],
        "environment": {name: compose_literal(value) for name, value in spec.environment.items()},
        **compose_options(spec.container),
    }


def _network(container: Container) -> str | None:
    return f"container:{container.network_of}" if container.network_of else container.network


def _volume(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"


def _size(bytes_: Bytes | None) -> str | None:
    return f"{bytes_ // GiB}g" if bytes_ else None


def compose_literal(text: str) -> str:
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
