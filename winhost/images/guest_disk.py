"""The VHDX that a guest starts from, made on this computer of an image that is known by its SHA-256.

Both are kept in the user's cache, so that a second plan or run waits for neither. The same image always becomes the
same bytes: a plan names the SHA-256 of both, and a disk that is made again with another one is refused.
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
"""Told what is being done, and how far it is, of how much."""


@dataclass(frozen=True)
class SourceImage:
    """A qcow2 or raw image: its address, or a path on this computer. bytes: its size, where it is known before."""

    source: str
    sha256: str
    bytes: Bytes | None = None


@dataclass(frozen=True)
class GuestDisk:
    """A VHDX. image_bytes: the size of what it was made of."""

    path: Path
    sha256: str
    bytes: Bytes
    image_bytes: Bytes


def image_cache() -> Path:
    return cache_folder() / "images"


def guest_disk(image: SourceImage, tell: Tell, sha256: str | None = None, cache: Path | None = None) -> GuestDisk:
    """Make the disk, or return the one that was made before. sha256: of the VHDX, where a plan pinned it.

    Raises UsageError (NotThisImage, ImageUnusable, OtherDisk), WinhostError (DownloadFailed) and OSError.
    """
    from filelock import FileLock

    folder = cache or image_cache()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    disk = folder / f"{image.sha256}.vhdx"
    with FileLock(folder / f"{image.sha256}.making"):  # another host's run may want the same at this moment
        if is_address(image.source):
            remote = RemoteImage(image.source, image.sha256, image.bytes)
            source = download(remote, folder, partial(tell, "downloading the image"))
        else:
            source = Path(image.source)
            check_file(source, image.sha256)
        made = sha256_of(disk) if disk.is_file() else None
        if made is None or sha256 not in (None, made):
            with open_image(source) as opened:
                write_vhdx(opened, disk, progress=partial(tell, "making the disk"))
            made = sha256_of(disk)
    if sha256 not in (None, made):
        raise UsageError(
            "OtherDisk",
            what=f"the image with SHA-256 {image.sha256} became a disk with {made}, and the plan has {sha256}",
            meaning="The plan was made by another version of winhost, which writes disks otherwise.",
            hint="Make the plan again with this one: winhost plan HOST",
        )
    return GuestDisk(disk, made, disk.stat().st_size, source.stat().st_size)
