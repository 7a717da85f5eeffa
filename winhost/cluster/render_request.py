"""What is to be rendered for a cluster, and what comes of it."""

from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from winhost.cluster.cluster_names import KEYS, NAMESPACE
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.model.workload import Model, Workload

_WITHOUT_RAY = Version("0.19.0")  # kubernetes-sigs/lws #835


@dataclass(frozen=True)
class ClusterRequest:
    """All images are pinned by digest. files: the desired `ModelFiles` by model, without a list where the hub was not
    reached, so that a pod asks it; keys: lines of the gateway's file,
    none where the Secret `keys_secret` is there already; tls_secret: of the type kubernetes.io/tls; allow: networks
    that reach an endpoint beyond the cluster; device_plugin: its image, None where the cluster has one; runtime_class:
    whether the cluster lacks that of NVIDIA; video_image: with an FFmpeg that knows NVENC; variant: of the path, where
    a plan says which; ray: the image has Ray, which is to tie nodes together.
    """

    workload: Workload
    image: str
    files: Mapping[str, Mapping[str, Any]]
    keys: tuple[str, ...] = ()
    keys_secret: str = KEYS
    tls_secret: str | None = None
    plain_http: bool = False
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
    def by_ray(self) -> bool:
        """Whether Ray ties nodes together: images have none since vLLM 0.19, which does so by itself."""
        version = self.workload.versions.get("vllm")
        return self.ray or (version is not None and version < _WITHOUT_RAY)


def files_size(request: ClusterRequest, model: Model) -> Bytes:
    """What its files take: as they are listed, else room for the weights twice, which many repositories have."""
    listed = request.files[model.name]["files"]
    if listed is not None:
        return sum(int(line.split(" ")[1]) for line in listed)
    return 2 * (model.weights or (model.parameters or 0) * model.dtype.bytes or model.memory or 0)


@dataclass(frozen=True)
class ManifestSet:
    """files: manifests by the name of a file, in the order in which they are applied; notes: sentences for whoever
    applies them.
    """

    files: Mapping[str, tuple[Mapping[str, Json], ...]]
    notes: tuple[str, ...]

    @property
    def manifests(self) -> tuple[Mapping[str, Json], ...]:
        return tuple(each for group in self.files.values() for each in group)
