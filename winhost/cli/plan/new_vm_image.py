"""Pin the image of a new Linux. `winhost plan` downloads and checks the image of a VM and makes a disk of it; the image
of an installer is pinned by its signed checksum.
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


def copy_pinned_image(pinned: PathRequest, request: PathRequest) -> PathRequest:
    """Copy the settings with the pinned image into a request that has a stack."""
    settings = pinned.playbook.settings
    return request.with_settings(**{name: settings[name] for name in ("new_vm", "system") if name in settings})


def pin_image(request: PathRequest, report: Tell) -> PathRequest:
    """Pin the image in the request's settings, and make the disk of a new VM. Raises WinhostError and BadParameter."""
    if (system := unpinned_system(request)) is not None:
        return _set_part(request, "system", "sha256", system.release.signed_sha256())
    image_settings = unpinned_image(request)
    if image_settings is None:
        return request
    name, source = _find_source(image_settings)
    disk = guest_disk(source, report)
    pinned = Pinned(
        place=source.source,
        sha256=source.sha256,
        bytes=disk.image_bytes,
        disk_sha256=disk.sha256,
        disk_bytes=disk.bytes,
    )
    image = image_settings.model_copy(update={"name": name, "pinned": pinned})
    return _set_part(request, "new_vm", "image", image.model_dump(mode="json", exclude_none=True))


def _set_part(request: PathRequest, name: str, part: str, value: Json) -> PathRequest:
    settings = request.playbook.settings[name]
    assert isinstance(settings, dict)
    return request.with_settings(**{name: {**settings, part: value}})


def _find_source(image: VmImage) -> tuple[str, SourceImage]:
    """Return the full name and the source of an image. Raises UsageError (NoSuchImage, NotVerified), BadParameter."""
    if NAME.fullmatch(image.name):
        release = release_named(image.name, image.mirror)
        sha256 = image.sha256 or release.signed_sha256()
        return release.name, SourceImage(release.source(release.image), sha256)
    if not is_file(image.name):
        if image.sha256 is None:
            raise click.BadParameter("an image at an address of its own needs --image-sha256", param_hint="--image")
        return image.name, SourceImage(image.name, image.sha256)
    path = Path(image.name).absolute()
    try:
        return image.name, SourceImage(str(path), image.sha256 or sha256_of(path))
    except OSError as error:
        why = f"{visible(str(path))} cannot be read: {error.strerror}"
        raise click.BadParameter(why, param_hint="--image") from None
