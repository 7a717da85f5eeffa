"""The image that a new VM's disk is made from, where it is not a prepared VHDX."""

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from winhost.images.cloud_images import MIRROR, NAME, is_address, known_images, refuse_by_name
from winhost.model.written import Closed
from winhost.paths.setting_values import Sha256

if TYPE_CHECKING:
    from winhost.images.guest_disk import SourceImage

_Size = Annotated[int, Field(strict=True, ge=1)]


def _image(name: str) -> str:
    """Raises ValueError, and RefusedError for what would not start on Hyper-V."""
    refuse_by_name(name)
    if not NAME.fullmatch(name) and not is_file(name) and not is_address(name):
        raise ValueError(
            f"should be {known_images()}, with a day as ubuntu-24.04@20260814 if you like, or else an https:// address "
            "or the path of a qcow2 or raw image (./FILE)"
        )
    return name


def is_file(name: str) -> bool:
    """Tell whether an image is a file on the computer that winhost runs on."""
    return not is_address(name) and (re.search(r"[/\\]", name) is not None)


class Pinned(Closed):
    """An image and the disk made of it, byte for byte."""

    place: str
    """Where the image is: its address, or its path on the computer that runs winhost."""
    sha256: Sha256
    bytes: _Size
    disk_sha256: Sha256
    """Of the VHDX that winhost makes of it."""
    disk_bytes: _Size

    @property
    def source(self) -> "SourceImage":
        from winhost.images.guest_disk import SourceImage  # reads and writes disks, which a plan without one does not

        return SourceImage(self.place, self.sha256, self.bytes)


class VmImage(Closed):
    """A disk image for the VM: Ubuntu's server image for clouds, or one of your own."""

    name: Annotated[str, AfterValidator(_image)] = "ubuntu-24.04"
    """ubuntu-24.04 or ubuntu-26.04, its newest release or that of a day (ubuntu-24.04@20260814); or the address or the
    path of a qcow2 or raw image with cloud-init.
    """
    mirror: str = MIRROR
    """Where Ubuntu's releases are: an address, or a folder with a copy of them and their signed SHA256SUMS."""
    sha256: Sha256 | None = None
    """Of the image. Left out, it is what Canonical signed, and of a file what it is now."""
    pinned: Pinned | None = None
    """Exactly which image and disk; filled in by `winhost plan`, and `winhost apply` takes no other."""

    @property
    def file(self) -> str:
        """The name of its disk, which is the same on the host."""
        base = re.split(r"[/\\]", self.name)[-1].replace("@", "-")
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", re.sub(r"\.(img|qcow2|raw)\Z", "", base))
        return f"{plain[-58:]}.vhdx"
