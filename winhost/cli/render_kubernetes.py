"""winhost render kubernetes: what serves a workload, as manifests for a cluster of one's own."""

from pathlib import Path

import click

from winhost.cli.cluster_options import ClusterWords, cluster_words
from winhost.cli.foreign_errors import from_os_error
from winhost.cli.output import write_file
from winhost.cli.outputs import Output
from winhost.cli.render_compose import Rendered, machine, show_rendered
from winhost.cli.stack_options import StackWords, stack_words
from winhost.cli.stack_parts import StackParts, pinned_image
from winhost.cluster.cluster_names import KEYS
from winhost.cluster.manifest_text import folder, stream
from winhost.cluster.render_request import ClusterRequest
from winhost.cluster.rendering import rendered
from winhost.images.image_names import ImageName
from winhost.model.units import Bytes
from winhost.model.workload import Deploy, Exposure


def kubernetes(
    workload: Path,
    facts_file: Path | None,
    gpus: str | None,
    memory: Bytes | None,
    path: str | None,
    force: bool,
    output: Output,
) -> int:
    """Print all that serves WORKLOAD as manifests for a cluster."""
    facts = machine(facts_file, gpus, memory)
    parts = StackParts(stack_words(workload) or StackWords(workload))
    try:
        made = rendered(facts, cluster_request(parts, cluster_words(), path))
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    if output.path is not None:
        _write(output.path, folder(made), force)
    place = None if output.path is None else str(output.path)
    show_rendered(Rendered(facts.host, place, made.notes, stream(made)), output)
    return 0


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
        path=path,
    )


def _image(name: str) -> str:
    return pinned_image(ImageName.parse(name)).pinned


def _write(place: Path, files: dict[str, str], force: bool) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_file(place / name, text, "rendered", force)
    except OSError as error:
        raise from_os_error(error) from error
