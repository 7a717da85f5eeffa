"""Ubuntu's releases: the images for clouds and the installation media, and the SHA-256 that Canonical signed for each.

A dated directory below cloud-images.ubuntu.com/releases holds the cloud images of one day, a directory below
releases.ubuntu.com the media of one point release. Each has SHA256SUMS and its detached signature SHA256SUMS.gpg. A
copy of these trees will do, on a server or in a folder.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError, UsageError, visible
from winhost.model.files import TooLarge, read_within
from winhost.model.units import Bytes, MiB

if TYPE_CHECKING:
    from winhost.images.disk_image import Progress

_LARGEST_TEXT: Bytes = MiB


def is_address(source: str) -> bool:
    return source.startswith(("https://", "http://"))


def text_at(source: str) -> bytes:
    """Read a small file from its address or path. Raises UsageError (NoSuchImage), WinhostError (DownloadFailed)."""
    if is_address(source):
        from winhost.images.download import fetch_text  # most plans download no image

        return fetch_text(source)
    try:
        return read_within(Path(source), _LARGEST_TEXT)
    except (OSError, TooLarge) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise _unknown_release(
            f"{visible(source)} cannot be read: {why}", "Name a folder with a copy of releases/"
        ) from None


def _unknown_release(what: str, hint: str) -> UsageError:
    return UsageError("NoSuchImage", what=what, hint=hint)


# ---- images for clouds


MIRROR = "https://cloud-images.ubuntu.com/releases"
SERIES = {"24.04": "noble", "26.04": "resolute"}
NAME = re.compile(rf"ubuntu-({'|'.join(map(re.escape, SERIES))})(?:@(20\d{{6}}(?:\.\d{{1,2}})?))?")
"""ubuntu-24.04, the newest release, or ubuntu-24.04@20260814, that of a day."""

_DATED = re.compile(r"\brelease-(20\d{6}(?:\.\d{1,2})?)(?=/|$)")
_UNSUPPORTED_PROCESSORS = r"arm64|aarch64|armhf|ppc64el|riscv64|s390x"
_REFUSED = {
    "minimal": "minimal images start without an initrd, and Hyper-V's disk driver is a module that is only found there",
    "azure": "images for Azure take their settings from Azure alone; Canonical says that they do not work elsewhere",
    _UNSUPPORTED_PROCESSORS: "it is for another processor, and Hyper-V hosts with assignable GPUs have amd64",
}


@dataclass(frozen=True)
class CloudRelease:
    """The server image of one version and day, as 24.04 and 20260814, below a mirror: its address, or a folder."""

    version: str
    date: str
    mirror: str = MIRROR

    @property
    def name(self) -> str:
        return f"ubuntu-{self.version}@{self.date}"

    @property
    def image(self) -> str:
        return f"ubuntu-{self.version}-server-cloudimg-amd64.img"

    def source(self, name: str) -> str:
        """Return the address or path of a file of this release."""
        return f"{self.mirror.rstrip('/')}/{SERIES[self.version]}/release-{self.date}/{name}"

    def signed_sha256(self) -> str:
        """Return the image's SHA-256, as Canonical signed it. Raises UsageError (NotVerified, NoSuchImage),
        WinhostError.
        """
        from winhost.images.signed_sums import signed_sums  # most plans download no image

        sums = signed_sums(*(text_at(self.source(name)) for name in ("SHA256SUMS", "SHA256SUMS.gpg")))
        if self.image not in sums:
            raise _unknown_release(f"{self.source('SHA256SUMS')} does not name {self.image}", "Choose another release")
        return sums[self.image]


def release_named(name: str, mirror: str = MIRROR) -> CloudRelease:
    """Find `ubuntu-24.04@20260814`; without a day the newest that the mirror lists. Raises UsageError (NoSuchImage)."""
    found = NAME.fullmatch(name)
    if found is None:
        raise _unknown_release(f"winhost knows no image '{visible(name)}'", f"There are: {list_images()}")
    return CloudRelease(found[1], found[2] or _newest(found[1], mirror), mirror)


def list_images() -> str:
    return ", ".join(f"ubuntu-{version}" for version in SERIES)


def _newest(version: str, mirror: str) -> str:
    """Files below `release` and `current` are replaced in place; only those of a dated folder never change."""
    source = f"{mirror.rstrip('/')}/{SERIES[version]}/"
    if is_address(source):
        dates: list[str] = _DATED.findall(text_at(source).decode("utf-8", "replace"))
    else:
        folders = Path(source).iterdir() if Path(source).is_dir() else ()
        dates = [match[1] for folder in folders if (match := _DATED.search(folder.name))]
    if not dates:
        raise _unknown_release(f"{visible(source)} lists no release", f"Name a day: --image ubuntu-{version}@20260814")
    return max(dates, key=lambda date: tuple(map(int, date.split("."))))


def refuse_by_name(name: str) -> None:
    """Raise RefusedError (ImageRefused) for images that would not start on Hyper-V, or not listen to a seed."""
    last = name.rstrip("/").replace("\\", "/").rpartition("/")[2].lower()
    for pattern, why in _REFUSED.items():
        if re.search(rf"(?<![a-z0-9])(?:{pattern})(?![a-z0-9])", last):
            hint = "Take ubuntu-24.04-server-cloudimg-amd64.img of a dated release"
            raise RefusedError("ImageRefused", what=f"{visible(last)} is refused", meaning=why, hint=hint)


# ---- installation media


MEDIA_MIRROR = "https://releases.ubuntu.com"
# Before 24.04.2, `match` is not heeded with use_gap (LP #2080608), and their shim fails the revocations of August 2024.
_OLDEST = {"24.04": 2, "26.04": 0}
_POINT_RELEASE = re.compile(r"(2[46]\.04)(?:\.([0-9]{1,2}))?")


@dataclass(frozen=True)
class InstallerRelease:
    """A point release, as 24.04.4, below a mirror: its address, or a folder with a copy."""

    version: str
    mirror: str = MEDIA_MIRROR

    def __post_init__(self) -> None:
        found = _POINT_RELEASE.fullmatch(self.version)
        if found is None:
            what = f"winhost knows no installation media of '{visible(self.version)}'"
            raise UsageError("NoSuchMedia", what=what, hint="Name a point release: 24.04.4 or 26.04.1")
        if int(found[2] or 0) < _OLDEST[found[1]]:
            what = f"the media of {self.version} are too old"
            meaning = "Firmware with the revocations of August 2024 refuses their shim, and they match disks wrongly."
            raise RefusedError("MediaTooOld", what=what, meaning=meaning, hint="Take 24.04.2 or later")

    @property
    def image(self) -> str:
        return f"ubuntu-{self.version}-live-server-amd64.iso"

    def source(self, name: str) -> str:
        """Return the address or path of a file of this release."""
        return f"{self.mirror.rstrip('/')}/{self.version}/{name}"

    def signed_sha256(self) -> str:
        """Return the checksum that Canonical signed. Raises UsageError (NotVerified, NoSuchImage), WinhostError."""
        from winhost.images.signed_sums import signed_sums

        sums = signed_sums(*(text_at(self.source(name)) for name in ("SHA256SUMS", "SHA256SUMS.gpg")), of_media=True)
        if self.image not in sums:
            what = f"{self.source('SHA256SUMS')} does not name {self.image}"
            raise UsageError("NotInRelease", what=what, hint="Choose another point release")
        return sums[self.image]

    def fetched(self, cache: Path, progress: "Progress | None" = None) -> Path:
        """Return the image, checked by the signed sum each time. Raises UsageError, WinhostError and OSError."""
        from winhost.images.download import RemoteImage, check_file, download

        sha256, source = self.signed_sha256(), self.source(self.image)
        if is_address(source):
            return download(RemoteImage(source, sha256), cache, progress)
        check_file(Path(source), sha256)
        return Path(source)
