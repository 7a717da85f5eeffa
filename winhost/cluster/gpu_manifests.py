"""Manifests of NVIDIA's device plugin, which gives pods GPUs, and of FFmpeg, which transcodes video on a GPU."""

from collections.abc import Mapping

from winhost.cluster.isolation import container_security, pod_basics, policy
from winhost.cluster.render_request import (
    GPU,
    GPU_NODE,
    PLUGIN,
    RUNTIME_CLASS,
    VIDEO,
    ClusterRequest,
    labels,
    manifest,
    selector,
)
from winhost.core.answers import Json

_PLUGINS = "/var/lib/kubelet/device-plugins"
# Encodes a second of a test picture on the GPU.
_ENCODE_COMMAND: list[Json] = [
    *("ffmpeg", "-hide_banner", "-nostdin", "-loglevel", "error", "-f", "lavfi"),
    *("-i", "testsrc2=size=1280x720:rate=30:duration=1", "-c:v", "h264_nvenc", "-f", "null", "-"),
]


def runtime_class() -> Mapping[str, Json]:
    """Return the RuntimeClass for the handler that nvidia-container-toolkit adds to containerd. k3s makes one of this
    name.
    """
    return manifest("RuntimeClass", "node.k8s.io/v1", RUNTIME_CLASS, None, {"handler": "nvidia"}, PLUGIN)


def device_plugin(image: str) -> Mapping[str, Json]:
    """Return the DaemonSet of the device plugin. It selects nodes by GPU_NODE, because its pod starts only with
    NVIDIA's runtime.
    """
    pod: dict[str, Json] = {
        "runtimeClassName": RUNTIME_CLASS,
        "priorityClassName": "system-node-critical",
        "automountServiceAccountToken": False,
        "nodeSelector": {GPU_NODE: "true"},
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [
            {
                "name": PLUGIN,
                "image": image,
                "env": [
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
                ],
                "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
                "securityContext": container_security(),
                "volumeMounts": [{"name": "plugins", "mountPath": _PLUGINS}],
            }
        ],
        "volumes": [{"name": "plugins", "hostPath": {"path": _PLUGINS, "type": "Directory"}}],
    }
    spec: dict[str, Json] = {
        "selector": {"matchLabels": selector(PLUGIN)},
        "updateStrategy": {"type": "RollingUpdate"},
        "template": {"metadata": {"labels": labels(PLUGIN)}, "spec": pod},
    }
    return manifest("DaemonSet", "apps/v1", PLUGIN, "kube-system", {"spec": spec})


def video_manifests(request: ClusterRequest, image: str) -> tuple[Mapping[str, Json], ...]:
    """Return the manifests of FFmpeg with its own GPU. Its pod is ready once the GPU has encoded, and waits for
    `kubectl exec`.
    """
    probe: dict[str, Json] = {"exec": {"command": _ENCODE_COMMAND}, "timeoutSeconds": 60}
    container: dict[str, Json] = {
        "name": VIDEO,
        "image": image,
        "command": ["sleep", "infinity"],
        # `video` enables NVENC and NVDEC; both need the driver's libcuda, which `compute` enables.
        "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,video,utility"}],
        "startupProbe": {**probe, "periodSeconds": 20, "failureThreshold": 15},
        "readinessProbe": {**probe, "periodSeconds": 300, "failureThreshold": 2},
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {GPU: "1", "memory": "8Gi"}},
        "securityContext": container_security(),
        "volumeMounts": [{"name": "work", "mountPath": "/work"}],
    }
    pod: dict[str, Json] = {
        **pod_basics(),
        "runtimeClassName": RUNTIME_CLASS,
        "containers": [container],
        "volumes": [{"name": "work", "emptyDir": {}}],
    }
    spec: dict[str, Json] = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector(VIDEO)},
        "template": {"metadata": {"labels": labels(VIDEO)}, "spec": pod},
    }
    return (
        policy(VIDEO, request.namespace, selector(VIDEO), [], []),
        manifest("Deployment", "apps/v1", VIDEO, request.namespace, {"spec": spec}),
    )
