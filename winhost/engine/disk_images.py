"""The disk of a new VM and the image of an installer, as files that are sent to the host. A disk that is not in the
user's cache is made first.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from winhost.engine.progress import ProgressEvent
from winhost.engine.uploads import Find, find_in_folder
from winhost.images.ubuntu_releases import is_address
from winhost.model.units import Bytes
from winhost.paths.new_vm import Pinned, VmImage
from winhost.paths.playbook import PathRequest
from winhost.resources.base import Attachment

if TYPE_CHECKING:  # imported when needed: the settings of a path, and the modules that make disks
    from winhost.images.guest_disk import GuestDisk, Tell
    from winhost.paths.new_ubuntu import NewUbuntu
    from winhost.paths.new_vm import NewVm


def _new_vm(request: PathRequest) -> "NewVm | None":
    """Return the settings of the VM that winhost makes for GPUs."""
    return getattr(request.playbook.parsed_settings, "new_vm", None)


def _system(request: PathRequest) -> "NewUbuntu | None":
    """Return the settings of the system that is installed next to Windows."""
    return getattr(request.playbook.parsed_settings, "system", None)


def pinned_image(request: PathRequest) -> Pinned | None:
    """Return the image of a new VM whose disk is made from one, if the image is pinned by its hash."""
    new = _new_vm(request)
    return new.image.pinned if new is not None and new.vhdx is None else None


def upload_transport(request: PathRequest) -> str:
    """Return how the new VM's disk or an installer's image is sent to the host: wire, http, sftp or smb."""
    new = _new_vm(request) or _system(request)
    return new.upload if new is not None else "wire"


def has_unpinned_image(request: PathRequest) -> bool:
    """Tell whether the request names an image without pinning it."""
    return unpinned_image(request) is not None or unpinned_system(request) is not None


def unpinned_system(request: PathRequest) -> "NewUbuntu | None":
    """Return the system whose installer is not pinned by its hash yet."""
    system = _system(request)
    return system if system is not None and system.sha256 is None else None


def unpinned_image(request: PathRequest) -> VmImage | None:
    """Return the image of a new VM if it is not pinned by its hash yet."""
    new = _new_vm(request)
    return None if new is None or new.vhdx is not None or new.image.pinned is not None else new.image


def file_finder(folder: Path, request: PathRequest, report: "Tell") -> Find:
    """Return a function that finds attachments: files in the plan's folder, the disk of the image that the request
    pins, and an installer's image in a folder with a copy of Ubuntu's releases. It raises as `make_disk` does.
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
    """Return the path in the plan's folder to which `winhost fetch` writes an image."""
    return folder / "images" / f"{pinned.sha256}.img"


def make_disk(pinned: Pinned, report: "Tell", folder: Path) -> "GuestDisk":
    """Make the disk from the image in the plan's folder, or else from its source. Raises UsageError (NotThisImage,
    ImageUnusable, OtherDisk), WinhostError (DownloadFailed) and OSError.
    """
    from winhost.images.guest_disk import SourceImage, guest_disk

    fetched = fetched_image_path(folder, pinned)
    source = SourceImage(str(fetched), pinned.sha256) if fetched.is_file() else pinned.source
    return guest_disk(source, report, pinned.disk_sha256)


def disk_progress(host: str, activity: str, done: Bytes, total: Bytes) -> ProgressEvent:
    """Make the progress event of a file that is prepared on this computer."""
    text = f"{activity}: {done / 1e6:.1f} of {total / 1e6:.1f} MB"
    return ProgressEvent(host, "preparing", text, percent=100 * done // max(total, 1))
