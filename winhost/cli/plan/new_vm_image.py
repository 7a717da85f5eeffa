"""Pin the image of a new Linux: a VM's image is found, checked and made into a disk while `winhost plan` waits; an
installer's image is pinned by its signed checksum.
"""

from pathlib import Path

import click

from winhost.core.answers import Json
from winhost.engine.disk_images import unpinned_image, unpinned_system
from winhost.images.guest_disk import SourceImage, Tell, guest_disk
from winhost.images.ubuntu_releases import NAME, release_named
from winhost.model.errors import visible
from winhost.model.files import sha256_of
from winhost.paths.new_vm import Pinned, VmImage, is_file
from winhost.paths.playbook import PathRequest


def with_image_of(pinned: PathRequest, request: PathRequest) -> PathRequest:
    """Give a joined request the image that was pinned for its path."""
    settings = pinned.playbook.settings
    return request.with_settings(**{name: settings[name] for name in ("new_vm", "system") if name in settings})


def with_image(request: PathRequest, tell: Tell) -> PathRequest:
    """Pin the image, and make the disk from it. Raises WinhostError and BadParameter."""
    if (system := unpinned_system(request)) is not None:
        return _with_part(request, "system", "sha256", system.release.signed_sha256())
    asked = unpinned_image(request)
    if asked is None:
        return request
    name, source = _found(asked)
    made = guest_disk(source, tell)
    pinned = Pinned(
        place=source.source,
        sha256=source.sha256,
        bytes=made.image_bytes,
        disk_sha256=made.sha256,
        disk_bytes=made.bytes,
    )
    image = asked.model_copy(update={"name": name, "pinned": pinned})
    return _with_part(request, "new_vm", "image", image.model_dump(mode="json", exclude_none=True))


def _with_part(request: PathRequest, name: str, part: str, value: Json) -> PathRequest:
    whole = request.playbook.settings[name]
    assert isinstance(whole, dict)
    return request.with_settings(**{name: {**whole, part: value}})


def _found(asked: VmImage) -> tuple[str, SourceImage]:
    """Find an image: its full name and its source. Raises UsageError (NoSuchImage, NotVerified), BadParameter."""
    if NAME.fullmatch(asked.name):
        release = release_named(asked.name, asked.mirror)
        sha256 = asked.sha256 or release.signed_sha256()
        return release.name, SourceImage(release.source(release.image), sha256)
    if not is_file(asked.name):
        if asked.sha256 is None:
            raise click.BadParameter("an image at an address of its own needs --image-sha256", param_hint="--image")
        return asked.name, SourceImage(asked.name, asked.sha256)
    path = Path(asked.name).absolute()
    try:
        return asked.name, SourceImage(str(path), asked.sha256 or sha256_of(path))
    except OSError as error:
        why = f"{visible(str(path))} cannot be read: {error.strerror}"
        raise click.BadParameter(why, param_hint="--image") from None
