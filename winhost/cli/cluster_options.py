"""Options for what a workload is in a cluster."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_ASKED = "winhost.cluster"  # in the context, until the command takes it along
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# Said twice, here and in winhost.cluster, so that --help need not load it.
NAMESPACE, KEYS, PLUGIN = "winhost", "gateway-keys", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"


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
        "show_default": True,
        "help": "NVIDIA's device plugin, with its digest or a tag, whose digest its registry is asked for.",
    },
    "--no-device-plugin": {"is_flag": True, "help": "The cluster has one already, such as that of NVIDIA's operator."},
    "--ffmpeg-image": {
        "metavar": "IMAGE",
        "help": "Needed for a workload with video: an image with FFmpeg and NVENC, likewise.",
    },
}


@dataclass(frozen=True)
class ClusterWords:
    """What was said on the command line."""

    namespace: str = NAMESPACE
    keys_secret: str | None = None
    tls_secret: str | None = None
    storage_class: str | None = None
    device_plugin: str = PLUGIN
    no_device_plugin: bool = False
    ffmpeg_image: str | None = None


def cluster_options(command: F) -> F:
    """Adds them; `cluster_words` hands on what they say."""

    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        named = str(option.name) in ("namespace", "keys_secret", "tls_secret", "storage_class")
        context.meta.setdefault(_ASKED, {})[str(option.name)] = _name(context, option, value) if named else value

    for name, more in reversed([*_OPTIONS.items()]):
        command = click.option(name, **more, callback=keep, expose_value=False)(command)
    return command


def cluster_words() -> ClusterWords:
    """What was said."""
    context = click.get_current_context(silent=True)
    return ClusterWords(**(context.meta.get(_ASKED, {}) if context else {}))
