"""Render everything that serves a workload in a cluster: as manifests, and as text."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from winhost.cluster.engine_manifests import EnginePod, engine_manifests
from winhost.cluster.gateway_manifests import gateway_manifests
from winhost.cluster.gpu_manifests import device_plugin, runtime_class, video_manifests
from winhost.cluster.isolation import policy
from winhost.cluster.render_request import (
    GATEWAY,
    GATEWAY_PORT,
    GPU_NODE,
    HUB_TOKEN,
    VIDEO,
    ClusterRequest,
    ManifestSet,
    files_size,
    manifest,
)
from winhost.compat.assess import assess
from winhost.core.answers import Json
from winhost.model.errors import RefusedError, visible
from winhost.model.path import path_of
from winhost.model.reason import CapabilityVerdict, Verdict
from winhost.model.units import gib
from winhost.model.workload import Deploy, Exposure, Model
from winhost.resources.host import HostFacts
from winhost.serving.choice import Serving, serving
from winhost.serving.containers import readable_yaml


def stream(manifests: ManifestSet) -> str:
    """Return one text for `kubectl apply -f -`, with the notes as comments above it."""
    return _comments(manifests.notes) + documents(manifests.manifests)


def folder(manifests: ManifestSet) -> dict[str, str]:
    """Return the texts of files by their names, with a kustomization.yaml for `kubectl apply -k`."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(manifests.files),
    }
    written = {name: _comments(()) + documents(group) for name, group in manifests.files.items()}
    return {"kustomization.yaml": _comments(manifests.notes) + readable_yaml(kustomization), **written}


def documents(manifests: Iterable[Mapping[str, Json]]) -> str:
    """Return the manifests as one text of several YAML documents."""
    return "---\n".join(map(readable_yaml, manifests))


def _comments(notes: Iterable[str]) -> str:
    lines = (line for note in notes for line in note.splitlines())
    printable = ("".join(c if c.isprintable() else "?" for c in line) for line in lines)
    return "".join(f"# {line}\n" for line in ("Written by winhost render kubernetes.", *printable))


_NEVER_DEPLOYED = "unverified: these manifests fit the published schemas; winhost has not seen them in a real cluster"
_NO_ENCODER = "video-codec.no-encoder"
_SINGLE_NODE_CODES = {"kubernetes-per-gpu.behind-nat", "kubernetes-per-gpu.mirrored"}
"""Codes of a node that is alone in its cluster."""
_RAY = "unverified: the engine of {0} takes an image with Ray, and a cluster with LeaderWorkerSet"
_SPANS_NODES = "unverified: the engine of {0} spans nodes; it takes a cluster with LeaderWorkerSet"


def render(facts: HostFacts, request: ClusterRequest) -> ManifestSet:
    """Render the manifests. facts: of the machine that becomes a node. Raises as `serving` does, RefusedError
    (NotInPods), ValueError.
    """
    # Profiles are chosen for each model separately, because each has its own GPUs.
    workload = replace(request.workload, deploy=Deploy.KUBERNETES, video=None)
    found = [serving(facts, replace(workload, models=(model,)), path=request.path) for model in workload.models]
    variant = request.variant or found[0].variant
    judged = _judged(facts, request, variant)
    shared = path_of(variant) == "wsl2"
    pods = [
        EnginePod(request, model, each.models[0], shared)
        for model, each in zip(request.workload.models, found, strict=True)
    ]
    # The policy `closed` denies both directions; other policies allow what is needed.
    pod_security: dict[str, Json] = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = manifest("Namespace", "v1", request.namespace, None, {}, "winhost", pod_security)
    files: dict[str, tuple[Mapping[str, Json], ...]] = {
        "namespace.yaml": (namespace, policy("closed", request.namespace, {}, [], [], "winhost"))
    }
    if request.device_plugin is not None:
        classes = (runtime_class(),) if request.runtime_class else ()
        files["device-plugin.yaml"] = (*classes, device_plugin(request.device_plugin))
    files |= {f"{pod.name}.yaml": engine_manifests(pod) for pod in pods}
    files[f"{GATEWAY}.yaml"] = gateway_manifests(request)
    if request.workload.video is not None and request.video_image is not None:
        files[f"{VIDEO}.yaml"] = video_manifests(request, request.video_image)
    reasons = (f"{reason.sentence} [{reason.code}: {reason.observed}]" for each in judged for reason in each.reasons)
    return ManifestSet(files, (*_notes(request, found), *reasons))


def _judged(facts: HostFacts, request: ClusterRequest, variant: str) -> list[CapabilityVerdict]:
    """Judge Kubernetes and video on this machine. Raises RefusedError."""
    judged = assess(facts, stated=request.workload.versions).path(path_of(variant))
    here = next((each for each in judged.every_variant if each.path == variant), judged)
    pods = here.offers("kubernetes-per-gpu")
    needed = [pods] * (len(request.workload.models) + (request.workload.video is not None) > 1)
    video = [here.offers("video-codec")] * (request.workload.video is not None)
    for each in (*needed, *video):
        # FFmpeg's pod is ready only once it has encoded.
        if each.verdict is Verdict.UNSUPPORTED or _NO_ENCODER in each.because:
            raise _refused(facts.host, variant, each)
    if any(model.parallel.nodes > 1 for model in request.workload.models) and _SINGLE_NODE_CODES & {
        each.code for each in pods.reasons
    }:
        raise _refused(facts.host, variant, pods)
    return [pods, *video]


def _refused(host: str, variant: str, judged: CapabilityVerdict) -> RefusedError:
    return RefusedError(
        "NotInPods",
        what=f"{variant} on {visible(host)} cannot run the pods of this workload",
        meaning="\n".join(f"{each.sentence} [{each.code}: {each.observed}]" for each in judged.reasons),
        hint="Serve one model there, or without Kubernetes: deploy: units",
        host=host,
    )


def _notes(request: ClusterRequest, found: list[Serving]) -> Iterator[str]:
    yield _NEVER_DEPLOYED
    for model, each in zip(request.workload.models, found, strict=True):
        yield from _engine_notes(request, model, each)
    if any(model.token for model in request.workload.models):
        yield (
            "the hub's token is to be in the cluster before, unless a plan puts it there: kubectl --namespace "
            f"{request.namespace} create secret generic {HUB_TOKEN} --from-file=token=FILE"
        )
    if request.device_plugin is not None:
        yield f"the device plugin runs on nodes with the label {GPU_NODE}=true"
    if not request.keys:
        yield f"the Secret {request.keys_secret} is to have the gateway's file of keys under the name keys"
    if request.workload.exposure is Exposure.LOOPBACK:
        yield f"reached by: kubectl --namespace {request.namespace} port-forward service/{GATEWAY} {GATEWAY_PORT}"


def _engine_notes(request: ClusterRequest, model: Model, found: Serving) -> Iterator[str]:
    served = found.models[0]
    listed, size = request.files[model.name]["files"] is not None, gib(files_size(request, model))
    how = f"{size} to download" if listed else f"room for {size} of files"
    yield f"{model.name}: vLLM {found.vllm}, profile {served.profile}, {model.gpus} GPU(s), {how}"
    if not listed:
        yield (
            f"{model.name}: the hub was not reached, so its files stand here without hashes: the pod takes them as the "
            "hub lists them at this commit when it first starts. Render again where the hub is reached to have them"
        )
    if model.parallel.nodes > 1:
        yield (_RAY if request.uses_ray else _SPANS_NODES).format(model.name)
    for line in served.lines:
        if line.kind == "wslconfig":
            yield f"{model.name}: .wslconfig needs {line.name}={line.value}: {line.reason.sentence}"
    yield from served.doubts
