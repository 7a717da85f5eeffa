"""A request to render manifests for a cluster, the result, and the names and labels that both use."""

from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.cluster_defaults import KEYS, NAMESPACE
from winhost.model.units import Bytes
from winhost.model.workload import Model, Workload
from winhost.serving.engine_names import slug

GATEWAY, VIDEO, PLUGIN = "gateway", "ffmpeg", "nvidia-device-plugin"
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
    """Return the name of everything that belongs to a model's engine, valid in DNS, with at most 54 characters."""
    return f"engine-{slug(model)}"


def labels(name: str) -> dict[str, Json]:
    """Return the labels of everything that belongs to one part."""
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/part-of": "winhost",
        "app.kubernetes.io/managed-by": "winhost",
    }


def selector(name: str) -> dict[str, Json]:
    """Return the labels that select the pods of a part."""
    return {"app.kubernetes.io/name": name}


def leader_selector(name: str) -> dict[str, Json]:
    """Return the labels that select the leader of a group, which serves."""
    return {_GROUP: name, _INDEX: "0"}


def group_selector(name: str) -> dict[str, Json]:
    """Return the labels that select all pods of a group."""
    return {_GROUP: name}


def manifest(
    kind: str,
    api: str,
    name: str,
    namespace: str | None,
    body: Mapping[str, Json],
    part: str | None = None,
    extra_labels: Mapping[str, Json] | None = None,
) -> dict[str, Json]:
    """Make a manifest. part: the part that its labels name, by default its own name."""
    metadata: dict[str, Json] = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    metadata["labels"] = {**labels(part or name), **(extra_labels or {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def literal(text: str) -> str:
    """Escape text for a container: Kubernetes replaces `$(NAME)` by a variable."""
    return text.replace("$(", "$$(")


_RAY_REMOVED = Version("0.19.0")  # kubernetes-sigs/lws #835


@dataclass(frozen=True)
class ClusterRequest:
    """The workload to render and what its cluster has. All images are pinned by digest.

    files: the desired `ModelFiles` by model, without a list if the hub was not reached, so that a pod asks it; keys:
    lines of the gateway's file of keys, empty if the Secret `keys_secret` exists already; tls_secret: a Secret of the
    type kubernetes.io/tls, None for plain HTTP; allow: networks that may reach an endpoint beyond the cluster;
    device_plugin: its image, None if the cluster has one; runtime_class: the manifests include NVIDIA's RuntimeClass;
    video_image: with an FFmpeg that knows NVENC; path: by default the one that the facts name; variant: of the path, if
    a plan chose it; ray: the image has Ray, and an engine over several nodes uses it.
    """

    workload: Workload
    image: str
    files: Mapping[str, Mapping[str, Any]]
    keys: tuple[str, ...] = ()
    keys_secret: str = KEYS
    tls_secret: str | None = None
    allow: tuple[str, ...] = ()
    device_plugin: str | None = None
    runtime_class: bool = True
    video_image: str | None = None
    namespace: str = NAMESPACE
    storage_class: str | None = None
    path: str | None = None
    variant: str | None = None
    ray: bool = False

    @property
    def uses_ray(self) -> bool:
        """Tell whether an engine over several nodes uses Ray. Since vLLM 0.19 images have no Ray, and vLLM does
        without.
        """
        version = self.workload.versions.get("vllm")
        return self.ray or (version is not None and version < _RAY_REMOVED)


def files_size(request: ClusterRequest, model: Model) -> Bytes:
    """Return the bytes of a model's files: as listed, else twice its weights, because many repositories have them in
    two formats.
    """
    listed = request.files[model.name]["files"]
    if listed is not None:
        return sum(int(line.split(" ")[1]) for line in listed)
    return 2 * (model.weights or (model.parameters or 0) * model.dtype.bytes or model.memory or 0)


@dataclass(frozen=True)
class ManifestSet:
    """files: manifests by the name of a file, in the order in which they are applied; notes: sentences for the
    administrator.
    """

    files: Mapping[str, tuple[Mapping[str, Json], ...]]
    notes: tuple[str, ...]

    @property
    def manifests(self) -> tuple[Mapping[str, Json], ...]:
        return tuple(each for group in self.files.values() for each in group)
