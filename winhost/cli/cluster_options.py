"""Options for what a workload is in a cluster."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

from winhost.core.dataclass import dataclass

F = TypeVar("F", bound=Callable[..., Any])

_ASKED = "winhost.cluster"  # in the context, until the command takes it along
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# Said twice, here and in winhost.cluster and winhost.images, so that --help need not load it.
NAMESPACE, KEYS, PLUGIN = "winhost", "gateway-keys", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
K3S = "v1.35.5+k3s1"


def _name(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None and _LABEL.fullmatch(value) is None:
        raise click.BadParameter("small letters, digits and dashes are expected", context, option)
    return value


_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--namespace": {"metavar": "NAME", "default": NAMESPACE, "show_default": True, "help": "Where it all is."},
    "--keys-secret": {
        "metavar": "NAME",
        "help": "A Secret in that namespace which has the gateway's keys already, instead of --api-key: its lines of "
        f"hashes under the name keys. Default: {KEYS}, made of --api-key.",
    },
    "--tls-secret": {"metavar": "NAME", "help": "A Secret of type kubernetes.io/tls, for TLS of the gateway."},
    "--storage-class": {"metavar": "NAME", "help": "For the volumes of models. Default: that of the cluster."},
    "--device-plugin": {
        "metavar": "IMAGE",
        "default": PLUGIN,
        "help": "NVIDIA's device plugin, with its digest or a tag, whose digest its registry is asked for. "
        f"Default: version {PLUGIN.rpartition(':v')[2]}, from NVIDIA's registry.",
    },
    "--no-device-plugin": {"is_flag": True, "help": "The cluster has one already, such as that of NVIDIA's operator."},
    "--ray": {
        "is_flag": True,
        "help": "A model over several nodes: tie them together by Ray, which the image has to have. Default: by vLLM "
        "itself, from 0.19 on.",
    },
    "--ffmpeg-image": {
        "metavar": "IMAGE",
        "help": "Needed for a workload with video: an image with FFmpeg and NVENC, likewise.",
    },
}

_OF_NODES: Mapping[str, Mapping[str, Any]] = {
    "--join": {
        "metavar": "URL",
        "help": "deploy: kubernetes: join this cluster of k3s, https://…:6443, instead of starting one.",
    },
    "--join-token": {
        "metavar": "REF",
        "help": "deploy: kubernetes: a secret reference to the token of that cluster, for example env:K3S_TOKEN.",
    },
    "--k3s-version": {
        "metavar": "VERSION",
        "default": K3S,
        "show_default": True,
        "help": "deploy: kubernetes: the release of k3s. Its hashes are asked for, and stand in the plan.",
    },
    "--k3s-mirror": {
        "metavar": "URL",
        "help": "deploy: kubernetes: where releases of k3s are, instead of GitHub: a folder for each version.",
    },
    "--k3s-images": {
        "is_flag": True,
        "help": "deploy: kubernetes: bring the images of k3s itself, for a Linux that reaches no registry.",
    },
}


@dataclass(frozen=True)
class ClusterWords:
    """The options of clusters as they were given."""

    namespace: str = NAMESPACE
    keys_secret: str | None = None
    tls_secret: str | None = None
    storage_class: str | None = None
    device_plugin: str = PLUGIN
    no_device_plugin: bool = False
    ray: bool = False
    ffmpeg_image: str | None = None
    join: str | None = None
    join_token: str | None = None
    k3s_version: str = K3S
    k3s_mirror: str | None = None
    k3s_images: bool = False

    @property
    def said(self) -> list[str]:
        """Options whose value is not the default."""
        plain = ClusterWords()
        return [each.name for each in fields(self) if getattr(self, each.name) != getattr(plain, each.name)]


def cluster_options(command: F) -> F:
    """Adds them; `cluster_words` hands on what they say."""
    return _added(command, _OPTIONS)


def node_options(command: F) -> F:
    """Add the options of a Linux that becomes a node."""
    return _added(command, {**_OF_NODES, **_OPTIONS})


def _added(command: F, options: Mapping[str, Mapping[str, Any]]) -> F:
    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        named = str(option.name) in ("namespace", "keys_secret", "tls_secret", "storage_class")
        context.meta.setdefault(_ASKED, {})[str(option.name)] = _name(context, option, value) if named else value

    for name, more in reversed([*options.items()]):
        command = click.option(name, **more, callback=keep, expose_value=False)(command)
    return command


def cluster_words() -> ClusterWords:
    """The options of clusters as they were given."""
    context = click.get_current_context(silent=True)
    return ClusterWords(**(context.meta.get(_ASKED, {}) if context else {}))
