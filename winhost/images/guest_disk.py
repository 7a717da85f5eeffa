"""Make the VHDX that a guest starts from, on this computer, from an image with a known SHA-256.

Both are stored in the user's cache, so that a second plan or run needs not make them again. The same image always
becomes the same bytes: a plan has the SHA-256 of both, and a disk with another SHA-256 is refused.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from winhost.core.dataclass import dataclass
from winhost.images.disk_image import open_image
from winhost.images.download import RemoteImage, check_file, download
from winhost.images.ubuntu_releases import is_address
from winhost.images.vhdx import write_vhdx
from winhost.model.catalogue_file import cache_folder
from winhost.model.errors import UsageError
from winhost.model.files import sha256_of
from winhost.model.units import Bytes

Tell = Callable[[str, Bytes, Bytes], None]
"""Is called with the present activity, its bytes that are done, and their total."""


@dataclass(frozen=True)
class SourceImage:
    """A qcow2 or raw image. source: its URL, or a path on this computer; bytes: its size, if it is known."""

    source: str
    sha256: str
    bytes: Bytes | None = None


@dataclass(frozen=True)
class GuestDisk:
    """A VHDX. image_bytes: the size of its image."""

    path: Path
    sha256: str
    bytes: Bytes
    image_bytes: Bytes


def image_cache() -> Path:
    return cache_folder() / "images"


def guest_disk(image: SourceImage, tell: Tell, sha256: str | None = None, cache: Path | None = None) -> GuestDisk:
    """Make the disk, or return the cached one. sha256: of the VHDX, if a plan pinned it.

    Raises UsageError (NotThisImage, ImageUnusable, OtherDisk), WinhostError (DownloadFailed) and OSError.
    """
    from filelock import FileLock

    folder = cache or image_cache()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    disk = folder / f"{image.sha256}.vhdx"
    with FileLock(folder / f"{image.sha256}.making"):  # the run of another host may make the same disk at this moment
        if is_address(image.source):
            remote = RemoteImage(image.source, image.sha256, image.bytes)
            source = download(remote, folder, partial(tell, "downloading the image"))
        else:
            source = Path(image.source)
            check_file(source, image.sha256)
        disk_sha256 = sha256_of(disk) if disk.is_file() else None
        if disk_sha256 is None or sha256 not in (None, disk_sha256):
            with open_image(source) as opened:
                write_vhdx(opened, disk, progress=partial(tell, "making the disk"))
            disk_sha256 = sha256_of(disk)
    if sha256 not in (None, disk_sha256):
        raise UsageError(
            "OtherDisk",
            what=f"the image with SHA-256 {image.sha256} became a disk with {disk_sha256}, and the plan has {sha256}",
            meaning="The plan was made by another version of winhost, which writes disks otherwise.",
            hint="Make the plan again with this one: winhost plan HOST",
        )
    return GuestDisk(disk, disk_sha256, disk.stat().st_size, source.stat().st_size)
