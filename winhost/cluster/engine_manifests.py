"""Engines in a cluster: their pods, and the workloads and services around them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from winhost.cluster.isolation import container_security, dns, pod_basics, policy, to_hub, to_media
from winhost.cluster.render_request import (
    ENGINE_PORT,
    GATEWAY,
    GPU,
    HUB_TOKEN,
    RUNTIME_CLASS,
    ClusterRequest,
    engine_name,
    files_size,
    group_selector,
    labels,
    leader_selector,
    literal,
    manifest,
    selector,
)
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes, GiB
from winhost.model.workload import Model
from winhost.serving.choice import Served
from winhost.serving.computed import SHM_LEAST
from winhost.serving.containers import DEV_MODE
from winhost.serving.engine_files import START_SECONDS
from winhost.serving.engine_names import MODEL, kv_folder
from winhost.serving.engine_spec import EngineSpec
from winhost.serving.kv_mirror import prune_program
from winhost.sizing.memories import engine_ram

_CACHE, _VOLUME, _SCRIPTS, _SHM = "/cache", "/volume", "/winhost", "/dev/shm"  # noqa: S108
_SCRIPTS_MOUNT: Json = {"name": "scripts", "mountPath": _SCRIPTS, "readOnly": True}
_EVERY_S, _PRUNED_EVERY_S = 10, 600
PRUNE = "prune_kv.py"
_OF_ONE_MACHINE = ("VLLM_HOST_IP", "NCCL_IB_DISABLE")
_DEV_MODE = (DEV_MODE, "--enable-sleep-mode")


@dataclass(frozen=True)
class EnginePod:
    """The pod of one model's engine. shared: in WSL all GPUs are one device, which the pod gets whole.

    The pod takes image, options, environment and the time to stop from the engine's specification. It listens on a port
    instead of a socket, because the gateway is another pod, and a NetworkPolicy closes that port to all others; the
    device plugin gives it GPUs; its volumes and /dev/shm are its own.
    """

    request: ClusterRequest
    model: Model
    served: Served
    shared: bool

    @property
    def name(self) -> str:
        return engine_name(self.model.name)

    @property
    def engine(self) -> EngineSpec:
        return replace(self.served.spec, image=self.request.image)

    @property
    def spans_nodes(self) -> bool:
        return self.model.parallel.nodes > 1

    @property
    def shared_memory(self) -> Bytes:
        """The size of /dev/shm: with KV tiers their share, besides what engines have without."""
        mirror = self.request.workload.kv_mirror
        tiers = mirror.staging * self.model.parallel.data if mirror else 0
        return max(self.served.shared_memory, _whole(SHM_LEAST + tiers))

    @property
    def memory(self) -> Bytes:
        """The limit of its pod: /dev/shm is counted there as what is in it, so it may be full."""
        return self.shared_memory + _whole(engine_ram(self.model))

    @property
    def command(self) -> list[str]:
        """`vllm serve`, its model and its arguments."""
        arguments = [literal(word) for word in self.engine.options if word not in _DEV_MODE]
        if self.spans_nodes and self.request.by_ray:
            arguments.append("--distributed-executor-backend=ray")
        elif self.spans_nodes:
            arguments += ["--distributed-executor-backend=mp", "--nnodes=$(LWS_GROUP_SIZE)"]
            arguments += ["--node-rank=$(LWS_WORKER_INDEX)", "--master-addr=$(LWS_LEADER_ADDRESS)"]
        listen = ["--host=0.0.0.0", f"--port={ENGINE_PORT}"]
        serve = ["vllm", "serve", MODEL, f"--served-model-name={self.model.name}"]
        return [*serve, *listen, *arguments]

    def spec(self, command: list[str], *, serves: bool = True) -> dict[str, Json]:
        """serves: it answers requests, which of a group only the leader does."""
        memory = f"{self.memory // GiB}Gi"
        mounts: list[Json] = [
            {"name": "shm", "mountPath": _SHM},
            {"name": "model", "mountPath": MODEL, "subPath": "model", "readOnly": True},
            {"name": "model", "mountPath": _CACHE, "subPath": "cache"},
        ]
        if self.request.workload.kv_mirror is not None:
            mounts.append({"name": "model", "mountPath": self._kv, "subPath": "kv"})
        container: dict[str, Json] = {
            "name": "vllm",
            "image": self.engine.image,
            "command": [*command],
            "env": [*self._environment()],
            "resources": {
                "requests": {"cpu": str(self.model.parallel.data + self.model.gpus), "memory": memory},
                "limits": {GPU: "1" if self.shared else str(self.model.gpus), "memory": memory},
            },
            "securityContext": container_security(),
            "volumeMounts": [*mounts, _SCRIPTS_MOUNT],
        }
        if serves:
            container |= {"ports": [{"name": "http", "containerPort": ENGINE_PORT}], **_probes()}
        return {
            **pod_basics(),
            "runtimeClassName": RUNTIME_CLASS,
            "terminationGracePeriodSeconds": self.engine.container.stop,
            "initContainers": [self._fetch("fetch" if serves else "wait")],
            "containers": [container, *self._beside] if serves else [container],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{self.shared_memory // GiB}Gi"}},
                {"name": "model", "persistentVolumeClaim": {"claimName": self.name}},
                {"name": "scripts", "configMap": {"name": self.name}},
            ],
        }

    def _environment(self) -> Iterator[Json]:
        for name, value in self.engine.environment.items():
            # The plugin shows a container its own GPUs alone, and they count from 0 there; in WSL it shows all.
            apart = name == "CUDA_VISIBLE_DEVICES" and not self.shared
            if not (apart or name in _DEV_MODE or (self.spans_nodes and name in _OF_ONE_MACHINE)):
                yield {"name": name, "value": literal(value)}
        if self.spans_nodes:
            yield {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        yield {"name": "HOME", "value": _CACHE}
        yield {"name": "VLLM_CACHE_ROOT", "value": f"{_CACHE}/vllm"}

    def _fetch(self, role: str) -> dict[str, Json]:
        """The container that runs before the engine: without a GPU, and alone with the hub's token. In a group one pod
        fetches for all.
        """
        token: list[Json] = []
        if self.model.token is not None:
            key = {"name": HUB_TOKEN, "key": "token"}
            token = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}]
        return {
            "name": "model",
            "image": self.engine.image,
            "command": ["python3", f"{_SCRIPTS}/fetch_model.py", f"{_SCRIPTS}/model.json", f"{_VOLUME}/model", role],
            "env": [{"name": "HOME", "value": f"{_VOLUME}/cache"}, *token],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
            "securityContext": container_security(),
            "volumeMounts": [{"name": "model", "mountPath": _VOLUME}, _SCRIPTS_MOUNT],
        }

    @property
    def _beside(self) -> list[Json]:
        """The container that keeps the mirror of its KV cache within its size."""
        mirror = self.request.workload.kv_mirror
        if mirror is None:
            return []
        prune = f'while sleep {_PRUNED_EVERY_S}; do python3 -I {_SCRIPTS}/{PRUNE} "$0" "$1"; done'
        container: dict[str, Json] = {
            "name": "kv-prune",
            "image": self.engine.image,
            "command": ["/bin/sh", "-c", prune, str(mirror.disk_limit), self._kv],
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
            "securityContext": container_security(writes=False),
            "volumeMounts": [{"name": "model", "mountPath": self._kv, "subPath": "kv"}, _SCRIPTS_MOUNT],
        }
        return [container]

    @property
    def _kv(self) -> str:
        return kv_folder(self.model.name)


def _whole(size: Bytes) -> Bytes:
    """Round up to a multiple of 1 GiB."""
    return -(-size // GiB) * GiB


def _probes() -> Mapping[str, Json]:
    """/health answers once the model is loaded, and 503 where the engine is dead. Until the first answer, for as long
    as an engine may take to start, nothing else is asked, so that none is killed while it loads.
    """
    health: dict[str, Json] = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "startupProbe": {
            **health,
            "periodSeconds": _EVERY_S,
            "timeoutSeconds": 5,
            "failureThreshold": START_SECONDS // _EVERY_S,
        },
        "readinessProbe": {**health, "periodSeconds": _EVERY_S, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 6},
    }


_COMPILED: Bytes = 16 * GiB  # graphs of all versions that were ever tried, beside the model
_FETCHING_S = 6 * 3600  # a large model by a slow line


def engine_manifests(pod: EnginePod) -> tuple[Mapping[str, Json], ...]:
    """The manifests of an engine, in the order in which they are applied."""
    found = leader_selector(pod.name) if pod.spans_nodes else selector(pod.name)
    port: dict[str, Json] = {"name": "http", "port": ENGINE_PORT, "targetPort": "http"}
    service: dict[str, Json] = {"spec": {"type": "ClusterIP", "selector": found, "ports": [port]}}
    runs = _group(pod) if pod.spans_nodes else _alone(pod)
    return (_scripts(pod), _volume(pod), _network(pod), _manifest(pod, "Service", "v1", service), runs)


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


def _network(pod: EnginePod) -> Mapping[str, Json]:
    """Let the gateway alone reach the engine's port, which answers many routes without a key, and pods of a group each
    other. The hub stays open while the engine serves, because a policy lasts as long as its pod.
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
    if pod.spans_nodes:
        group: list[Json] = [{"podSelector": {"matchLabels": group_selector(pod.name)}}]
        ingress.append({"from": group})
        egress.append({"to": group})
    return policy(pod.name, pod.request.namespace, selector(pod.name), ingress, egress)


def _volume(pod: EnginePod) -> Mapping[str, Json]:
    mirror = pod.request.workload.kv_mirror
    size = files_size(pod.request, pod.model) + _COMPILED + (mirror.disk_limit if mirror else 0)
    spec: dict[str, Json] = {
        "accessModes": ["ReadWriteMany" if pod.spans_nodes else "ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{-(-size // GiB)}Gi"}},
    }
    if pod.request.storage_class is not None:
        spec["storageClassName"] = pod.request.storage_class
    return _manifest(pod, "PersistentVolumeClaim", "v1", {"spec": spec})


def _scripts(pod: EnginePod) -> Mapping[str, Json]:
    wanted: Mapping[str, Any] = pod.request.files[pod.model.name]
    listing = {name: wanted[name] for name in ("source", "revision", "files")}
    data: dict[str, Json] = {"model.json": json.dumps(listing, indent=1) + "\n"}
    for name in ("fetch_model.py", *(["ray_group.sh"] if pod.spans_nodes and pod.request.by_ray else [])):
        data[name] = files(__package__).joinpath(name).read_text("utf-8")
    if pod.request.workload.kv_mirror is not None:
        data[PRUNE] = prune_program()
    return _manifest(pod, "ConfigMap", "v1", {"data": data})


def _manifest(pod: EnginePod, kind: str, api: str, body: Mapping[str, Json]) -> Mapping[str, Json]:
    return manifest(kind, api, pod.name, pod.request.namespace, body)
