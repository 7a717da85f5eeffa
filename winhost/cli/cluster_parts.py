"""The parts of a workload in a cluster that options name, for manifests or for a node."""

from functools import partial

from winhost.cli.errors import Faults, secret_reference
from winhost.cli.stack_parts import BY_DIGEST, StackParts, pinned_image
from winhost.cluster.node import PROGRAM, Join, NodeFile, NodeRequest
from winhost.cluster.render_request import ClusterRequest
from winhost.images import k3s_release
from winhost.images.image_registry import ImageName
from winhost.knowledge.versions import newer_line
from winhost.model.cluster_defaults import KEYS
from winhost.model.workload import Deploy, Exposure
from winhost.resources.host import HostFacts
from winhost.serving.engine_names import slug

_IMAGES = "/var/lib/rancher/k3s/agent/images"
_NOT_THERE = ("listen", "certificate", "certificate_key", "engine_program", "engine_archive", "engine_lock")


def check_cluster_words(parts: StackParts, faults: Faults) -> None:
    """Find options that do not fit the workload."""
    workload, words = faults.of(lambda: parts.written), parts.cluster
    if workload is None:
        return
    if workload.exposure is not Exposure.LOOPBACK and not (words.tls_secret or parts.words.plain_http):
        faults.add(
            f"exposure: {workload.exposure} takes --tls-secret NAME, or --plain-http: a certificate that the "
            "cluster has as a Secret, or others can read keys and prompts"
        )
    if workload.video is not None and words.ffmpeg_image is None:
        faults.add(
            "the workload has video: name an image with FFmpeg and NVENC, as --ffmpeg-image "
            "registry.example.com/ffmpeg@sha256:…"
        )
    if len({model.token.written for model in workload.models if model.token}) > 1:
        faults.add("models name different tokens, and a cluster has one Secret for them: give them one")
    if parts.words.metrics_key and words.keys_secret and not parts.words.api_key:
        faults.add("--metrics-key goes with --api-key; with --keys-secret its line belongs into that Secret")


def cluster_request(parts: StackParts, facts: HostFacts, path: str | None) -> ClusterRequest:
    """Ask the hub and the registries. Raises as they do."""
    workload, words = parts.workload, parts.cluster
    keys = () if words.keys_secret and not parts.words.api_key else parts.key_lines(facts.host)
    return ClusterRequest(
        workload=workload,
        image=parts.image.pinned,
        files=parts.files,
        keys=keys,
        keys_secret=words.keys_secret or KEYS,
        tls_secret=words.tls_secret,
        plain_http=parts.words.plain_http,
        allow=parts.allowed(facts) if workload.exposure is Exposure.LAN else parts.words.allow,
        device_plugin=None if words.no_device_plugin else _image(words.device_plugin),
        video_image=_image(words.ffmpeg_image) if words.ffmpeg_image and workload.video else None,
        namespace=words.namespace,
        storage_class=words.storage_class,
        ray=words.ray,
        path=path,
    )


def check_images(parts: StackParts, faults: Faults) -> None:
    """Ask registries for the digests that nobody gave, and collect those that cannot be resolved."""
    words = parts.cluster
    faults.of(lambda: parts.image, BY_DIGEST)
    if words.ffmpeg_image:
        faults.of(partial(_image, words.ffmpeg_image))
    if not words.no_device_plugin:
        also = "Here: --device-plugin IMAGE@sha256:…, or --no-device-plugin where the cluster has one"
        faults.of(lambda: _image(words.device_plugin), also)


def _image(name: str) -> str:
    return pinned_image(ImageName.parse(name)).pinned


def check_node_words(parts: StackParts, faults: Faults) -> None:
    """Find faults of the options of a node, before anything is asked."""
    workload, words = faults.of(lambda: parts.written), parts.cluster
    if workload is None:
        return
    if workload.deploy is not Deploy.KUBERNETES:
        for name in words.said:
            faults.add(f"--{name.replace('_', '-')} is for a workload with deploy: kubernetes")
        return
    for name in _NOT_THERE:
        if getattr(parts.words, name):
            faults.add(f"--{name.replace('_', '-')} is not for a workload with deploy: kubernetes")
    if (words.join is None) is not (words.join_token is None):
        faults.add("--join and --join-token go together: --join https://10.0.0.5:6443 --join-token env:K3S_TOKEN")
    if words.join is not None and not words.join.startswith("https://"):
        faults.add("--join: the address of an API begins with https://, as https://10.0.0.5:6443")
    faults.of(lambda: secret_reference(words.join_token, "'--join-token'"))
    check_cluster_words(parts, faults)


def node_request(parts: StackParts, facts: HostFacts, path: str, wsl: str | None) -> NodeRequest:
    """Ask where releases of k3s are, and as `cluster_request` does. wsl: the networking mode of a distro."""
    words = parts.cluster
    assets = parts.once(
        "k3s",
        lambda: k3s_release.k3s_release(words.k3s_version, images=words.k3s_images, mirror=words.k3s_mirror),
    )
    places = {k3s_release.PROGRAM: PROGRAM, k3s_release.IMAGES: f"{_IMAGES}/{k3s_release.IMAGES}"}
    return NodeRequest(
        node=slug(facts.host),
        release=words.k3s_version,
        files=tuple(NodeFile(places[each.name], each.source, each.sha256, each.bytes) for each in assets),
        cluster=cluster_request(parts, facts, path),
        join=Join(words.join, words.join_token) if words.join and words.join_token else None,
        wsl=wsl,
        newer=newer_line("k3s", words.k3s_version),
    )
