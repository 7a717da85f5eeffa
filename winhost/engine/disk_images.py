"""The disk of a new VM as a file that is sent: out of the user's cache, and made there first where it is not."""

from pathlib import Path
from typing import TYPE_CHECKING

from winhost.engine.progress import ProgressEvent
from winhost.engine.uploads import Find, find_in_folder
from winhost.images.ubuntu_releases import is_address
from winhost.model.units import Bytes
from winhost.paths.new_vm import Pinned, VmImage
from winhost.paths.playbook import PathRequest
from winhost.resources.base import Attachment

if TYPE_CHECKING:  # each path's settings are imported for that path alone, and the making of disks for a disk
    from winhost.images.guest_disk import GuestDisk, Tell
    from winhost.paths.new_ubuntu import NewUbuntu
    from winhost.paths.new_vm import NewVm


def _new_vm(request: PathRequest) -> "NewVm | None":
    """The VM that winhost makes for GPUs."""
    return getattr(request.playbook.parsed_settings, "new_vm", None)


def _system(request: PathRequest) -> "NewUbuntu | None":
    """The system that is installed beside Windows."""
    return getattr(request.playbook.parsed_settings, "system", None)


def pinned_image(request: PathRequest) -> Pinned | None:
    """The image of a new VM whose disk is made of one, once it is known exactly."""
    new = _new_vm(request)
    return new.image.pinned if new is not None and new.vhdx is None else None


def upload_transport(request: PathRequest) -> str:
    """The transport of the new VM's disk, or of an installer's image, to the host: wire, http, sftp or smb."""
    new = _new_vm(request) or _system(request)
    return new.upload if new is not None else "wire"


def has_unpinned_image(request: PathRequest) -> bool:
    """Tell whether the request names an image without pinning it."""
    return unpinned_image(request) is not None or unpinned_system(request) is not None


def unpinned_system(request: PathRequest) -> "NewUbuntu | None":
    """The system whose installer is not pinned by its hash yet."""
    system = _system(request)
    return system if system is not None and system.sha256 is None else None


def unpinned_image(request: PathRequest) -> VmImage | None:
    """The image of a new VM that is not pinned by its hash yet."""
    new = _new_vm(request)
    return None if new is None or new.vhdx is not None or new.image.pinned is not None else new.image


def file_finder(folder: Path, request: PathRequest, report: "Tell") -> Find:
    """Files beside the plan, the disk of the image that the request pins, and an installer's image of a folder with a
    copy of Ubuntu's releases. Raises as `make_disk` does.
    """
    system = _system(request)

    def find(desired: Attachment) -> Path:
        if system is not None and system.sha256 == desired.sha256 and not is_address(system.mirror):
            copied = folder / desired.name
            return copied if copied.is_file() else Path(system.release.source(system.release.image))
        pinned = pinned_image(request)
        if pinned is None or pinned.disk_sha256 != desired.sha256:
            return find_in_folder(folder)(desired)
        return make_disk(pinned, report, folder).path

    return find


def fetched_image_path(folder: Path, pinned: Pinned) -> Path:
    """The path beside the plan to which `winhost fetch` writes an image."""
    return folder / "images" / f"{pinned.sha256}.img"


def make_disk(pinned: Pinned, report: "Tell", folder: Path) -> "GuestDisk":
    """Make the disk from the image beside the plan, or else from its source. Raises UsageError (NotThisImage,
    ImageUnusable, OtherDisk), WinhostError (DownloadFailed) and OSError.
    """
    from winhost.images.guest_disk import SourceImage, guest_disk

    fetched = fetched_image_path(folder, pinned)
    source = SourceImage(str(fetched), pinned.sha256) if fetched.is_file() else pinned.source
    return guest_disk(source, report, pinned.disk_sha256)


def disk_progress(host: str, activity: str, done: Bytes, total: Bytes) -> ProgressEvent:
    """The progress, for whoever watches."""
    text = f"{activity}: {done / 1e6:.1f} of {total / 1e6:.1f} MB"
    return ProgressEvent(host, "preparing", text, percent=100 * done // max(total, 1))
