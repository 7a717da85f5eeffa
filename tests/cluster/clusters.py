"""Workloads on machines, as manifests, and the published schemas that they are held to."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.cases import FASTEST
from tests.serving.situations import linux, model, shipped
from tests.serving.stacks import FILES, KEY
from winhost.cluster.render_request import ClusterRequest, ManifestSet
from winhost.cluster.rendering import render
from winhost.model.units import GiB
from winhost.model.workload import (
    Deploy,
    Exposure,
    KvMirror,
    Mirror,
    Model,
    Parallel,
    Shape,
    Video,
    Workload,
)
from winhost.resources.host import HostFacts

DATA = Path(__file__).parents[1] / "data/cluster"
VERSIONS = ("1.33", "1.35", "1.37")
IMAGE = f"registry.example.com/vllm/vllm-openai@sha256:{'ab' * 32}"
PLUGIN = f"registry.example.com/nvidia/k8s-device-plugin@sha256:{'cd' * 32}"
FFMPEG = f"registry.example.com/ffmpeg@sha256:{'ef' * 32}"
MACHINES = ("metal", "guest", "wsl")


def machine(name: str) -> HostFacts:
    match name:
        case "metal":
            return linux("ubuntu-2xh100")
        case "guest":
            return linux("ubuntu-2xh100", "microsoft")
        case "l4":
            return linux("ubuntu-2xl4-no-driver")
        case "wsl":
            return shipped("win11-pro-2xl20-wddm")
        case _:
            return shipped(name)


def wide(**changed: Any) -> Model:
    """One that spans machines."""
    shape = Shape(28, 4, 128, hidden=1000, vocabulary=1000)
    return model("wide", shape=shape, **{"parallel": Parallel(2, 2, nodes=2), **changed})


def request(*models: Model, **changed: Any) -> ClusterRequest:
    """changed: of the request, or of the workload."""
    from packaging.version import Version

    of_workload = {
        name: changed.pop(name) for name in ("exposure", "video", "kv_mirror", "trusted_proxies") if name in changed
    }
    served = models or (model("chat"),)
    workload = Workload(served, versions={"vllm": Version("0.33.0")}, deploy=Deploy.KUBERNETES, **of_workload)
    plain = ClusterRequest(workload, IMAGE, {each.name: FILES for each in served}, (KEY,), device_plugin=PLUGIN)
    return replace(plain, **changed)


WORKLOADS: Mapping[str, ClusterRequest] = {
    "one": request(),
    "two": request(model("chat"), model("Coder.7B", lora=None)),
    "over-two-gpus": request(model("chat", parallel=Parallel(2)), exposure=Exposure.CLUSTER),
    "over-two-nodes": request(wide()),
    "by-ray": request(wide(), ray=True),
    "for-the-lan": request(exposure=Exposure.LAN, allow=("10.0.0.0/8",), tls_secret="endpoint"),
    "with-video": request(video=Video(2), video_image=FFMPEG),
    "mirrored": request(kv_mirror=KvMirror(Mirror.TIERS, 10 * GiB)),
    "bare": request(keys=(), keys_secret="mine", device_plugin=None, storage_class="fast"),
}


_MADE: dict[str, ManifestSet] = {}


def made(asked: ClusterRequest | None = None, on: str = "metal") -> ManifestSet:
    """The same of the same, which takes a moment to judge."""
    key = f"{asked or request()} {on}"
    if key not in _MADE:
        _MADE[key] = render(machine(on), asked or request())
    return _MADE[key]


def of_kind(found: ManifestSet, kind: str) -> list[dict[str, Any]]:
    return [dict(each) for each in found.manifests if each["kind"] == kind]


def the(found: ManifestSet, kind: str, name: str) -> dict[str, Any]:
    (only,) = (each for each in of_kind(found, kind) if each["metadata"]["name"] == name)
    return only


def check(manifest: Mapping[str, Any], version: str) -> None:
    """Raises ValidationError. A group's pods are checked as pods, and the rest of it by its own schema."""
    if manifest["kind"] != "LeaderWorkerSet":
        kubernetes_validate.validate(manifest, version, strict=True)
        return
    jsonschema.validate(manifest, lws_schema(), cls=jsonschema.Draft7Validator)
    for template in pod_templates(manifest):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", **template["metadata"]}}
        kubernetes_validate.validate({**pod, "spec": template["spec"]}, version, strict=True)


@cache
def lws_schema() -> dict[str, Any]:
    schema: dict[str, Any] = yaml.load((DATA / "leaderworkerset.yaml").read_text("utf-8"), FASTEST)
    for at in ("leaderTemplate", "workerTemplate"):
        template = schema["properties"]["spec"]["properties"]["leaderWorkerTemplate"]["properties"][at]
        template["properties"]["spec"]["x-kubernetes-preserve-unknown-fields"] = True
    schema["properties"]["metadata"]["x-kubernetes-preserve-unknown-fields"] = True
    strict: dict[str, Any] = _strict(schema)
    return strict


def _strict(schema: Any) -> Any:
    """The API server drops what a schema does not know; here it is a fault."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields")
    return {
        **{key: _strict(each) for key, each in schema.items()},
        **({"additionalProperties": False} if closed else {}),
    }


def pod_templates(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    spec = manifest.get("spec", {})
    group = spec.get("leaderWorkerTemplate", {})
    for template in (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate")):
        if template:
            yield template


def pods(found: ManifestSet) -> list[dict[str, Any]]:
    """Specifications of all pods."""
    return [template["spec"] for manifest in found.manifests for template in pod_templates(manifest)]
