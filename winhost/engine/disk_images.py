"""The disk of a new VM as a file that is sent: out of the user's cache, and made there first where it is not."""

from pathlib import Path

from winhost.engine.progress import ProgressEvent
from winhost.engine.uploads import Find, beside
from winhost.images.cloud_images import is_address
from winhost.images.guest_disk import GuestDisk, SourceImage, Tell, guest_disk
from winhost.model.units import Bytes
from winhost.paths.dda_settings import DdaSettings
from winhost.paths.dual_boot_settings import DualBootSettings
from winhost.paths.new_ubuntu import NewUbuntu
from winhost.paths.path_request import PathRequest
from winhost.paths.vm_image import Pinned, VmImage
from winhost.resources.base import Attachment


def pinned_image(request: PathRequest) -> Pinned | None:
    """Of the new VM that is asked for, where its disk is made of an image."""
    settings = request.playbook.parsed_settings
    new = settings.new_vm if isinstance(settings, DdaSettings) else None
    return new.image.pinned if new is not None and new.vhdx is None else None


def upload_of(request: PathRequest) -> str:
    """How the disk of the new VM, or an installer's image, gets to the host: wire, http, sftp or smb."""
    settings = request.playbook.parsed_settings
    new = settings.new_vm if isinstance(settings, DdaSettings) else _system(request)
    return new.upload if new is not None else "wire"


def is_open(request: PathRequest) -> bool:
    """Whether it says which image, but not exactly."""
    return open_image(request) is not None or open_system(request) is not None


def open_system(request: PathRequest) -> NewUbuntu | None:
    settings = request.playbook.parsed_settings
    system = settings.system if isinstance(settings, DualBootSettings) else None
    return system if system is not None and system.sha256 is None else None


def open_image(request: PathRequest) -> VmImage | None:
    settings = request.playbook.parsed_settings
    new = settings.new_vm if isinstance(settings, DdaSettings) else None
    return None if new is None or new.vhdx is not None or new.image.pinned is not None else new.image


def _system(request: PathRequest) -> NewUbuntu | None:
    """That is installed beside Windows."""
    settings = request.playbook.parsed_settings
    return settings.system if isinstance(settings, DualBootSettings) else None


def found(folder: Path, request: PathRequest, tell: Tell) -> Find:
    """Files beside the plan, the disk of the image that the request pins, and an installer's image of a folder with a
    copy of Ubuntu's releases. Raises as `made_disk` does.
    """
    system = _system(request)

    def find(desired: Attachment) -> Path:
        if system is not None and system.sha256 == desired.sha256 and not is_address(system.mirror):
            here = folder / desired.name
            return here if here.is_file() else Path(system.release.place(system.release.image))
        pinned = pinned_image(request)
        if pinned is None or pinned.disk_sha256 != desired.sha256:
            return beside(folder)(desired)
        return made_disk(pinned, tell, folder).path

    return find


def fetched_image(folder: Path, pinned: Pinned) -> Path:
    """Where `winhost fetch` puts an image, beside the plan."""
    return folder / "images" / f"{pinned.sha256}.img"


def made_disk(pinned: Pinned, tell: Tell, folder: Path) -> GuestDisk:
    """Of the image that lies beside the plan, or else of where it is from.

    Raises UsageError (NotThisImage, ImageUnusable, OtherDisk), WinhostError (DownloadFailed) and OSError.
    """
    beside_it = fetched_image(folder, pinned)
    source = SourceImage(str(beside_it), pinned.sha256) if beside_it.is_file() else pinned.source
    return guest_disk(source, tell, pinned.disk_sha256)


def told(host: str, doing: str, done: Bytes, whole: Bytes) -> ProgressEvent:
    """How far it is, for whoever watches."""
    text = f"{doing}: {done / 1e6:.1f} of {whole / 1e6:.1f} MB"
    return ProgressEvent(host, "preparing", text, percent=100 * done // max(whole, 1))
