"""What things of a workload are called in a cluster, and the labels by which they find each other."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.serving.engine_names import slug

NAMESPACE = "winhost"
GATEWAY, VIDEO, KEYS, PLUGIN = "gateway", "ffmpeg", "gateway-keys", "nvidia-device-plugin"
RUNTIME_CLASS = "nvidia"
HUB_TOKEN = "hub-token"  # noqa: S105 - the name of a Secret
GPU = "nvidia.com/gpu"
GPU_NODE = "nvidia.com/gpu.present"
"""The label by which NVIDIA's own feature discovery marks a node with a GPU."""
ENGINE_PORT = 8000
GATEWAY_PORT = 8443
_GROUP = "leaderworkerset.sigs.k8s.io/name"
_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"


def engine_name(model: str) -> str:
    """Of all that belongs to a model's engine; a name of DNS with at most 54 characters."""
    return f"engine-{slug(model)}"


def labels(name: str) -> dict[str, Json]:
    """Of everything that belongs to one part."""
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/part-of": "winhost",
        "app.kubernetes.io/managed-by": "winhost",
    }


def selector(name: str) -> dict[str, Json]:
    """By which pods of a part are found."""
    return {"app.kubernetes.io/name": name}


def leader_selector(name: str) -> dict[str, Json]:
    """The pod of a group that serves."""
    return {_GROUP: name, _INDEX: "0"}


def group_selector(name: str) -> dict[str, Json]:
    """All pods of a group."""
    return {_GROUP: name}


def manifest(
    kind: str,
    api: str,
    name: str,
    namespace: str | None,
    body: Mapping[str, Json],
    part: str | None = None,
    marked: Mapping[str, Json] | None = None,
) -> dict[str, Json]:
    """part: whose label it has, by default its own name; marked: labels besides."""
    metadata: dict[str, Json] = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    metadata["labels"] = {**labels(part or name), **(marked or {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def literal(text: str) -> str:
    """As a container gets it: Kubernetes would put a variable in the place of `$(NAME)`."""
    return text.replace("$(", "$$(")
