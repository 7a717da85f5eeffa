"""Text for compose: a service without rights, options of `docker run` in its words, and a whole project."""

from collections.abc import Iterable
from typing import Any

import yaml


def hardened(image: str, restart: str) -> dict[str, Any]:
    """A service that gains no rights, and whose log fills no disk."""
    return {
        "image": image,
        "restart": restart,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "logging": {"driver": "local", "options": {"max-size": "10m", "max-file": "2"}},
    }


def options_of_container(options: Iterable[tuple[str, str]]) -> dict[str, Any]:
    service: dict[str, Any] = {}
    for name, value in options:
        _add_option(service, name, value)
    return service


def _add_option(service: dict[str, Any], name: str, value: str) -> None:
    match name:
        case "--network":
            service["network_mode"] = value
        case "--volume":
            service.setdefault("volumes", []).append(value)
        case "--device":
            # By CDI. Compose before 2.30 takes such a name among `devices` for the path of a device.
            _reserve(service, {"driver": "cdi", "device_ids": [value], "capabilities": ["gpu"]})
        case "--shm-size":
            service["shm_size"] = value
        case "--ipc":
            service["ipc"] = value
        case "--stop-timeout":
            service["stop_grace_period"] = f"{value}s"
        case "--gpus":
            _reserve(service, {"driver": "nvidia", "count": value, "capabilities": ["gpu"]})
        case _:
            raise AssertionError(f"{name} is no option of a container that compose is told")


def _reserve(service: dict[str, Any], devices: dict[str, Any]) -> None:
    service["deploy"] = {"resources": {"reservations": {"devices": [devices]}}}


def compose_word(text: str) -> str:
    """Nothing of it is expanded."""
    return text.replace("$", "$$")


def compose_text(document: dict[str, Any], head: str = "# Written by winhost.\n") -> str:
    return head + readable_yaml(document)


def readable_yaml(document: object) -> str:
    """Texts of several lines stand as they are."""
    text: str = yaml.dump(document, Dumper=_Readable, sort_keys=False, width=1000)
    return text


class _Readable(yaml.SafeDumper):
    pass


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)


_Readable.add_representer(str, _text)
