"""What options say of a workload in a cluster, printed as manifests or planned on a node."""

import click

from winhost.cli.cluster_options import ClusterWords
from winhost.cli.stack_parts import StackParts, pinned_image
from winhost.cluster.cluster_names import KEYS
from winhost.cluster.node_files import PROGRAM
from winhost.cluster.node_request import Join, NodeFile, NodeRequest
from winhost.cluster.render_request import ClusterRequest
from winhost.images import k3s_release
from winhost.images.image_names import ImageName
from winhost.model.secrets import SecretRef
from winhost.model.workload import Deploy, Exposure
from winhost.serving.engine_names import slug

_IMAGES = "/var/lib/rancher/k3s/agent/images"
_NOT_THERE = ("listen", "certificate", "certificate_key", "engine_program", "engine_archive", "engine_lock")


def cluster_request(parts: StackParts, words: ClusterWords, path: str | None) -> ClusterRequest:
    """Asks the hub and the registries. Raises as they do, click's UsageError."""
    workload = parts.workload
    if workload.deploy is not Deploy.KUBERNETES:
        raise click.UsageError("the workload is not for a cluster: write deploy: kubernetes into it")
    if workload.exposure is not Exposure.LOOPBACK and not (words.tls_secret or parts.words.plain_http):
        raise click.UsageError(f"exposure: {workload.exposure} takes --tls-secret NAME, or --plain-http")
    if workload.exposure is Exposure.LAN and not parts.words.allow:
        raise click.UsageError("who reaches the endpoint? Name the networks, as --allow 10.20.0.0/16")
    if workload.video is not None and words.ffmpeg_image is None:
        raise click.UsageError("the workload has video: name an image with FFmpeg and NVENC (--ffmpeg-image)")
    if len({model.token.written for model in workload.models if model.token}) > 1:
        raise click.UsageError("models name different tokens, and a cluster has one Secret for them: give them one")
    if parts.words.metrics_key and not parts.words.api_key:
        raise click.UsageError(
            "--metrics-key goes with --api-key; with --keys-secret its line belongs into that Secret"
        )
    keys = () if words.keys_secret and not parts.words.api_key else parts.keys
    return ClusterRequest(
        workload=workload,
        image=parts.image.pinned,
        files=parts.files,
        keys=keys,
        keys_secret=words.keys_secret or KEYS,
        tls_secret=words.tls_secret,
        plain_http=parts.words.plain_http,
        allow=parts.words.allow,
        device_plugin=None if words.no_device_plugin else _image(words.device_plugin),
        video_image=_image(words.ffmpeg_image) if words.ffmpeg_image and workload.video else None,
        namespace=words.namespace,
        storage_class=words.storage_class,
        ray=words.ray,
        path=path,
    )


def _image(name: str) -> str:
    return pinned_image(ImageName.parse(name)).pinned


def check_node_words(parts: StackParts, words: ClusterWords) -> None:
    """What is wrong with them, before anything is asked. Raises click's UsageError."""
    if parts.workload.deploy is not Deploy.KUBERNETES:
        if words.said:
            option = words.said[0].replace("_", "-")
            raise click.UsageError(f"--{option} is for a workload with deploy: kubernetes")
        return
    for name in _NOT_THERE:
        if getattr(parts.words, name):
            raise click.UsageError(f"--{name.replace('_', '-')} is not for a workload with deploy: kubernetes")
    if (words.join is None) is not (words.join_token is None):
        raise click.UsageError("--join and --join-token go together")
    if words.join is not None and not words.join.startswith("https://"):
        raise click.BadParameter("the address of an API begins with https://", param_hint="'--join'")
    try:
        SecretRef.parse(words.join_token or "env:NONE")
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="'--join-token'") from None


def with_cluster_key(parts: StackParts, words: ClusterWords, host: str) -> StackParts:
    """As `with_key_of`, where no Secret of the cluster has the keys."""
    return parts if words.keys_secret else parts.with_key_of(host)


def node_request(parts: StackParts, words: ClusterWords, host: str, path: str, wsl: str | None) -> NodeRequest:
    """wsl: the network mode of a distro. Asks where releases of k3s are, and as `cluster_request` does."""
    assets = parts.once(
        "k3s",
        lambda: k3s_release.k3s_release(words.k3s_version, images=words.k3s_images, mirror=words.k3s_mirror),
    )
    places = {k3s_release.PROGRAM: PROGRAM, k3s_release.IMAGES: f"{_IMAGES}/{k3s_release.IMAGES}"}
    return NodeRequest(
        node=slug(host),
        release=words.k3s_version,
        files=tuple(NodeFile(places[each.name], each.source, each.sha256, each.bytes) for each in assets),
        cluster=cluster_request(parts, words, path),
        join=Join(words.join, words.join_token) if words.join and words.join_token else None,
        wsl=wsl,
    )
