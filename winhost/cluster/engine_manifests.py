"""Engines in a cluster: their pods, and the workloads and services around them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from winhost.cluster.isolation import dns, hub_egress, media_egress, pod_basics, policy
from winhost.cluster.pod_rendering import PodMount, pod_container, pod_variables, pod_volumes, quantity
from winhost.cluster.render_request import (
    ENGINE_PORT,
    GATEWAY,
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
from winhost.model.units import Bytes, GiB, MiB
from winhost.model.workload import Model
from winhost.serving.choice import Served
from winhost.serving.computed import MIN_SHM
from winhost.serving.containers import DEV_MODE
from winhost.serving.engine_files import START_SECONDS
from winhost.serving.engine_names import CACHE, MODEL, kv_folder
from winhost.serving.engine_spec import Container, EngineSpec, Mount
from winhost.serving.kv_mirror import prune_program
from winhost.sizing.memories import engine_ram

_CACHE, _VOLUME, _SCRIPTS = "/cache", "/volume", "/winhost"
_SCRIPTS_MOUNT = Mount("scripts", _SCRIPTS, read_only=True)
_PROBE_SECONDS, _PRUNE_SECONDS = 10, 600
PRUNE = "prune_kv.py"
_SINGLE_NODE_VARIABLES = ("VLLM_HOST_IP", "NCCL_IB_DISABLE")
_SLEEP_OPTION = "--enable-sleep-mode"


@dataclass(frozen=True)
class EnginePod:
    """The pod of one model's engine.

    shared: all GPUs of the node are one device to Kubernetes, as in WSL, and the pod gets that device.
    """

    request: ClusterRequest
    model: Model
    served: Served
    shared: bool

    @property
    def name(self) -> str:
        return engine_name(self.model.name)

    @property
    def spans_nodes(self) -> bool:
        return self.model.parallel.nodes > 1

    @property
    def spec(self) -> EngineSpec:
        """The specification of the served engine, changed for a pod.

        The pod listens on a port instead of a socket, because the gateway is another pod; a NetworkPolicy closes that
        port to all others. It has no sleep mode. The device plugin gives it its GPUs. Its files are on a volume.
        """
        served = self.served.spec
        return replace(
            served,
            image=self.request.image,
            socket=None,
            port=ENGINE_PORT,
            options=tuple(option for option in served.options if option != _SLEEP_OPTION),
            environment=self._environment(served.environment),
            container=Container(
                mounts=self._mounts(served.container),
                shm=self.shared_memory,
                # Files in /dev/shm count against the limit of the pod, and /dev/shm may be full.
                memory=self.shared_memory + _round_up(engine_ram(self.model)),
                stop=served.container.stop,
                gpus="1" if self.shared else str(self.model.gpus),
            ),
        )

    @property
    def shared_memory(self) -> Bytes:
        """The size of /dev/shm: as served, or more where tiers of a KV cache are there as well."""
        mirror = self.request.workload.kv_mirror
        tiers = mirror.staging * self.model.parallel.data if mirror else 0
        return max(self.served.shared_memory, _round_up(MIN_SHM + tiers))

    @property
    def command(self) -> list[str]:
        """`vllm serve`, its model and its arguments."""
        nodes: list[str] = []
        if self.spans_nodes and self.request.uses_ray:
            nodes = ["--distributed-executor-backend=ray"]
        elif self.spans_nodes:
            nodes = ["--distributed-executor-backend=mp", "--nnodes=$(LWS_GROUP_SIZE)"]
            nodes += ["--node-rank=$(LWS_WORKER_INDEX)", "--master-addr=$(LWS_LEADER_ADDRESS)"]
        return ["vllm", "serve", *map(literal, self.spec.arguments(MODEL)), *nodes]

    def pod_spec(self, command: list[str], *, serves: bool = True) -> dict[str, Json]:
        """Make the specification of a pod. serves: it answers requests, which only the leader of a group does."""
        container = self.spec.container
        requests = {"cpu": str(self.model.parallel.data + self.model.gpus), "memory": quantity(container.memory or 0)}
        variables = [*pod_variables(self.spec.environment, ("VLLM_HOST_IP",) if self.spans_nodes else ())]
        engine = pod_container("vllm", self.request.image, command, container, requests, variables)
        if serves:
            engine |= {"ports": [{"name": "http", "containerPort": ENGINE_PORT}], **_probes()}
        volumes: dict[str, dict[str, Json]] = {
            "model": {"persistentVolumeClaim": {"claimName": self.name}},
            "scripts": {"configMap": {"name": self.name}},
        }
        return {
            **pod_basics(),
            "runtimeClassName": RUNTIME_CLASS,
            "terminationGracePeriodSeconds": container.stop_seconds,
            "initContainers": [self._fetch("fetch" if serves else "wait")],
            "containers": [engine, *self._prune] if serves else [engine],
            "volumes": pod_volumes(container, volumes),
        }

    def _environment(self, served: Mapping[str, str]) -> dict[str, str]:
        without = {DEV_MODE}
        if not self.shared:
            # The plugin shows a container only its own GPUs, numbered from 0. In WSL it shows all GPUs.
            without.add("CUDA_VISIBLE_DEVICES")
        if self.spans_nodes:
            without.update(_SINGLE_NODE_VARIABLES)
        environment = {name: value for name, value in served.items() if name not in without}
        if self.spans_nodes:
            environment["VLLM_HOST_IP"] = "status.podIP"
        return {**environment, "HOME": _CACHE, "VLLM_CACHE_ROOT": f"{_CACHE}/vllm"}

    def _mounts(self, served: Container) -> tuple[Mount, ...]:
        """Return the mounts of the served engine as folders of the pod's volume, and the scripts."""
        kv = kv_folder(self.model.name)
        on_volume = {
            self.served.spec.folder: PodMount("model", MODEL, read_only=True, subpath="model"),
            CACHE: PodMount("model", _CACHE, subpath="cache"),
            kv: PodMount("model", kv, subpath="kv"),
        }
        sources = {mount.source for mount in served.mounts}
        return (*(mount for source, mount in on_volume.items() if source in sources), _SCRIPTS_MOUNT)

    def _fetch(self, role: str) -> dict[str, Json]:
        """Return the container that downloads the model before the engine starts. It has no GPU, and is the only one
        with the hub's token. In a group one pod downloads for all. role: see fetch_model.py.
        """
        variables = [*pod_variables({"HOME": f"{_VOLUME}/cache"})]
        if self.model.token is not None:
            key = {"name": HUB_TOKEN, "key": "token"}
            variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}})
        command = ["python3", f"{_SCRIPTS}/fetch_model.py", f"{_SCRIPTS}/model.json", f"{_VOLUME}/model", role]
        container = Container(mounts=(Mount("model", _VOLUME), _SCRIPTS_MOUNT), memory=4 * GiB)
        return pod_container("model", self.request.image, command, container, {"cpu": "1", "memory": "1Gi"}, variables)

    @property
    def _prune(self) -> list[Json]:
        """The container that keeps the mirror of its KV cache within its size."""
        mirror, kv = self.request.workload.kv_mirror, kv_folder(self.model.name)
        if mirror is None:
            return []
        loop = f'while sleep {_PRUNE_SECONDS}; do python3 -I {_SCRIPTS}/{PRUNE} "$0" "$1"; done'
        command = ["/bin/sh", "-c", loop, str(mirror.disk_limit), kv]
        container = Container(mounts=(PodMount("model", kv, subpath="kv"), _SCRIPTS_MOUNT), memory=512 * MiB)
        requests = {"cpu": "10m", "memory": "64Mi"}
        return [pod_container("kv-prune", self.request.image, command, container, requests, writes=False)]


def _round_up(size: Bytes) -> Bytes:
    """Round up to a multiple of 1 GiB."""
    return -(-size // GiB) * GiB


def _probes() -> Mapping[str, Json]:
    """Return the probes of /health, which answers 200 once the model is loaded, and 503 if the engine is dead. The
    startup probe delays the others for as long as an engine may take to start, so that none is killed while it loads.
    """
    health: dict[str, Json] = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "startupProbe": {
            **health,
            "periodSeconds": _PROBE_SECONDS,
            "timeoutSeconds": 5,
            "failureThreshold": START_SECONDS // _PROBE_SECONDS,
        },
        "readinessProbe": {**health, "periodSeconds": _PROBE_SECONDS, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 6},
    }


_COMPILED_GRAPHS: Bytes = 16 * GiB  # room on the volume for compiled graphs of several versions
_FETCH_SECONDS = 6 * 3600  # the time limit for the download of a large model over a slow line


def engine_manifests(pod: EnginePod) -> tuple[Mapping[str, Json], ...]:
    """Return the manifests of an engine, in the order in which they are applied."""
    pods = leader_selector(pod.name) if pod.spans_nodes else selector(pod.name)
    port: dict[str, Json] = {"name": "http", "port": ENGINE_PORT, "targetPort": "http"}
    service: dict[str, Json] = {"spec": {"type": "ClusterIP", "selector": pods, "ports": [port]}}
    controller = _leader_worker_set(pod) if pod.spans_nodes else _deployment(pod)
    return (_scripts(pod), _volume(pod), _network(pod), _manifest(pod, "Service", "v1", service), controller)


def _deployment(pod: EnginePod) -> Mapping[str, Json]:
    spec: dict[str, Json] = {
        "replicas": 1,
        # Two pods at the same time would need the GPUs twice, and write to one volume.
        "strategy": {"type": "Recreate"},
        "progressDeadlineSeconds": START_SECONDS + _FETCH_SECONDS,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(pod.name)},
        "template": {"metadata": {"labels": labels(pod.name)}, "spec": pod.pod_spec(pod.command)},
    }
    return _manifest(pod, "Deployment", "apps/v1", {"spec": spec})


def _leader_worker_set(pod: EnginePod) -> Mapping[str, Json]:
    """Return an engine over several nodes, in one of the two ways that vLLM documents: a Ray cluster whose head serves,
    or vLLM's own processes, of which those on other nodes have no API.
    """
    if pod.request.uses_ray:
        script = ["/bin/sh", "/winhost/ray_group.sh"]
        leader = pod.pod_spec([*script, "leader", "$(LWS_GROUP_SIZE)", *pod.command])
        worker = pod.pod_spec([*script, "worker", "$(LWS_LEADER_ADDRESS)"], serves=False)
    else:
        leader, worker = pod.pod_spec(pod.command), pod.pod_spec([*pod.command, "--headless"], serves=False)
    metadata: dict[str, Json] = {"labels": labels(pod.name)}
    spec: dict[str, Json] = {
        "replicas": 1,
        "leaderWorkerTemplate": {
            "size": pod.model.parallel.nodes,
            # The engine does not work without one of its ranks.
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": {"metadata": metadata, "spec": leader},
            "workerTemplate": {"metadata": metadata, "spec": worker},
        },
    }
    return _manifest(pod, "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", {"spec": spec})


def _network(pod: EnginePod) -> Mapping[str, Json]:
    """Let only the gateway reach the engine's port, which answers many routes without a key, and let the pods of a
    group reach each other. The hub stays reachable while the engine serves, because a policy applies to a pod for its
    whole life.
    """
    ingress: list[Json] = [
        {
            "from": [{"podSelector": {"matchLabels": selector(GATEWAY)}}],
            "ports": [{"protocol": "TCP", "port": ENGINE_PORT}],
        }
    ]
    egress = [dns(), hub_egress(pod.request.files[pod.model.name]["source"])]
    if pod.model.body.media:
        egress.append(media_egress(pod.model.body.media))
    if pod.spans_nodes:
        group: list[Json] = [{"podSelector": {"matchLabels": group_selector(pod.name)}}]
        ingress.append({"from": group})
        egress.append({"to": group})
    return policy(pod.name, pod.request.namespace, selector(pod.name), ingress, egress)


def _volume(pod: EnginePod) -> Mapping[str, Json]:
    mirror = pod.request.workload.kv_mirror
    size = files_size(pod.request, pod.model) + _COMPILED_GRAPHS + (mirror.disk_limit if mirror else 0)
    spec: dict[str, Json] = {
        "accessModes": ["ReadWriteMany" if pod.spans_nodes else "ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{-(-size // GiB)}Gi"}},
    }
    if pod.request.storage_class is not None:
        spec["storageClassName"] = pod.request.storage_class
    return _manifest(pod, "PersistentVolumeClaim", "v1", {"spec": spec})


def _scripts(pod: EnginePod) -> Mapping[str, Json]:
    model_files: Mapping[str, Any] = pod.request.files[pod.model.name]
    listing = {name: model_files[name] for name in ("source", "revision", "files")}
    data: dict[str, Json] = {"model.json": json.dumps(listing, indent=1) + "\n"}
    for name in ("fetch_model.py", *(["ray_group.sh"] if pod.spans_nodes and pod.request.uses_ray else [])):
        data[name] = files(__package__).joinpath(name).read_text("utf-8")
    if pod.request.workload.kv_mirror is not None:
        data[PRUNE] = prune_program()
    return _manifest(pod, "ConfigMap", "v1", {"data": data})


def _manifest(pod: EnginePod, kind: str, api: str, body: Mapping[str, Json]) -> Mapping[str, Json]:
    return manifest(kind, api, pod.name, pod.request.namespace, body)
