"""An engine in a cluster: what starts it, its Service, who reaches it, its volume, and what it fetches."""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from winhost.cluster.cluster_names import (
    ENGINE_PORT,
    GATEWAY,
    group_selector,
    labels,
    leader_selector,
    manifest,
    selector,
)
from winhost.cluster.engine_pod import PRUNE, EnginePod
from winhost.cluster.network_policies import dns, policy, to_hub, to_media
from winhost.cluster.render_request import files_size
from winhost.core.answers import Json
from winhost.model.units import Bytes, GiB
from winhost.serving.engine_files import START_SECONDS

_COMPILED: Bytes = 16 * GiB  # graphs of all versions that were ever tried, beside the model
_FETCHING_S = 6 * 3600  # a large model by a slow line


def engine_manifests(pod: EnginePod) -> tuple[Mapping[str, Json], ...]:
    """In the order in which they are applied."""
    return (_scripts(pod), _volume(pod), _network(pod), _service(pod), _group(pod) if _several(pod) else _alone(pod))


def _several(pod: EnginePod) -> bool:
    return pod.model.parallel.nodes > 1


def _alone(pod: EnginePod) -> Mapping[str, Json]:
    spec: dict[str, Json] = {
        "replicas": 1,
        # Two at once would ask for its GPUs twice, and write into one volume.
        "strategy": {"type": "Recreate"},
        "progressDeadlineSeconds": START_SECONDS + _FETCHING_S,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(pod.name)},
        "template": {"metadata": {"labels": labels(pod.name)}, "spec": pod.spec(pod.command)},
    }
    return _manifest(pod, "Deployment", "apps/v1", {"spec": spec})


def _group(pod: EnginePod) -> Mapping[str, Json]:
    """One engine over several nodes, in one of the two ways that vLLM documents: a Ray cluster whose head serves, or
    processes of its own, of which those of other nodes have no API.
    """
    if pod.request.by_ray:
        script = ["/bin/sh", "/winhost/ray_group.sh"]
        leader = pod.spec([*script, "leader", "$(LWS_GROUP_SIZE)", *pod.command])
        worker = pod.spec([*script, "worker", "$(LWS_LEADER_ADDRESS)"], serves=False)
    else:
        leader, worker = pod.spec(pod.command), pod.spec([*pod.command, "--headless"], serves=False)
    metadata: dict[str, Json] = {"labels": labels(pod.name)}
    spec: dict[str, Json] = {
        "replicas": 1,
        "leaderWorkerTemplate": {
            "size": pod.model.parallel.nodes,
            # A rank that is gone takes the whole engine along.
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": {"metadata": metadata, "spec": leader},
            "workerTemplate": {"metadata": metadata, "spec": worker},
        },
    }
    return _manifest(pod, "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", {"spec": spec})


def _service(pod: EnginePod) -> Mapping[str, Json]:
    found = leader_selector(pod.name) if _several(pod) else selector(pod.name)
    port: dict[str, Json] = {"name": "http", "port": ENGINE_PORT, "targetPort": "http"}
    return _manifest(pod, "Service", "v1", {"spec": {"type": "ClusterIP", "selector": found, "ports": [port]}})


def _network(pod: EnginePod) -> Mapping[str, Json]:
    """The gateway alone reaches the engine's port, which answers many routes without a key; pods of a group reach each
    other. A policy is of a pod as long as that lives: what it downloads from stays open when it serves.
    """
    ingress: list[Json] = [
        {
            "from": [{"podSelector": {"matchLabels": selector(GATEWAY)}}],
            "ports": [{"protocol": "TCP", "port": ENGINE_PORT}],
        }
    ]
    egress = [dns(), to_hub(pod.request.files[pod.model.name]["source"])]
    if pod.model.body.media:
        egress.append(to_media(pod.model.body.media))
    if _several(pod):
        group: list[Json] = [{"podSelector": {"matchLabels": group_selector(pod.name)}}]
        ingress.append({"from": group})
        egress.append({"to": group})
    return policy(pod.name, pod.request.namespace, selector(pod.name), ingress, egress)


def _volume(pod: EnginePod) -> Mapping[str, Json]:
    mirror = pod.request.workload.kv_mirror
    size = files_size(pod.request, pod.model) + _COMPILED + (mirror.kept if mirror else 0)
    spec: dict[str, Json] = {
        "accessModes": ["ReadWriteMany" if _several(pod) else "ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{-(-size // GiB)}Gi"}},
    }
    if pod.request.storage_class is not None:
        spec["storageClassName"] = pod.request.storage_class
    return _manifest(pod, "PersistentVolumeClaim", "v1", {"spec": spec})


def _scripts(pod: EnginePod) -> Mapping[str, Json]:
    wanted: Mapping[str, Any] = pod.request.files[pod.model.name]
    listing = {name: wanted[name] for name in ("source", "revision", "files")}
    data: dict[str, Json] = {
        "model.json": json.dumps(listing, indent=1) + "\n",
        **{name: files(room).joinpath(name).read_text("utf-8") for room, name in _programs(pod)},
    }
    return _manifest(pod, "ConfigMap", "v1", {"data": data})


def _programs(pod: EnginePod) -> Iterator[tuple[str, str]]:
    """What runs in its pods, by the room where it lies."""
    yield str(__package__), "fetch_model.py"
    if _several(pod) and pod.request.by_ray:
        yield str(__package__), "ray_group.sh"
    if pod.request.workload.kv_mirror is not None:
        yield "winhost.serving", PRUNE


def _manifest(pod: EnginePod, kind: str, api: str, body: Mapping[str, Json]) -> Mapping[str, Json]:
    return manifest(kind, api, pod.name, pod.request.namespace, body)
