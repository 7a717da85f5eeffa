"""Ubuntu's cloud images: where a release is, what fits Hyper-V, and which SHA-256 Canonical signed for it.

A dated directory below cloud-images.ubuntu.com/releases holds the images of one day, SHA256SUMS and its detached
signature SHA256SUMS.gpg. A copy of that tree will do, on a server or in a folder. What is refused by name would not
start on Hyper-V, or not listen to a seed.
"""

import re
from pathlib import Path

from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError, UsageError, visible
from winhost.model.files import TooLarge, read_within
from winhost.model.units import Bytes, MiB

MIRROR = "https://cloud-images.ubuntu.com/releases"
SERIES = {"24.04": "noble", "26.04": "resolute"}
NAME = re.compile(rf"ubuntu-({'|'.join(map(re.escape, SERIES))})(?:@(20\d{{6}}(?:\.\d{{1,2}})?))?")
"""ubuntu-24.04, the newest release, or ubuntu-24.04@20260814, that of a day."""

_DATED = re.compile(r"\brelease-(20\d{6}(?:\.\d{1,2})?)(?=/|$)")
_LARGEST_TEXT: Bytes = MiB
_OTHER_PROCESSORS = r"arm64|aarch64|armhf|ppc64el|riscv64|s390x"
_REFUSED = {
    "minimal": "minimal images start without an initrd, and Hyper-V's disk driver is a module that is only found there",
    "azure": "images for Azure take their settings from Azure alone; Canonical says that they do not work elsewhere",
    _OTHER_PROCESSORS: "it is for another processor, and Hyper-V hosts with assignable GPUs have amd64",
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

    def place(self, name: str) -> str:
        """The address or path of a file of this release."""
        return f"{self.mirror.rstrip('/')}/{SERIES[self.version]}/release-{self.date}/{name}"

    def signed_sha256(self) -> str:
        """The image's SHA-256, as Canonical signed it. Raises UsageError (NotVerified, NoSuchImage), WinhostError."""
        from winhost.images.signed_sums import signed_sums  # most plans download no image

        sums = signed_sums(*(text_at(self.place(name)) for name in ("SHA256SUMS", "SHA256SUMS.gpg")))
        if self.image not in sums:
            raise _no_such(f"{self.place('SHA256SUMS')} does not name {self.image}", "Choose another release")
        return sums[self.image]


def release_named(name: str, mirror: str = MIRROR) -> CloudRelease:
    """Find `ubuntu-24.04@20260814`; without a day the newest that the mirror lists. Raises UsageError (NoSuchImage)."""
    found = NAME.fullmatch(name)
    if found is None:
        raise _no_such(f"winhost knows no image '{visible(name)}'", f"There are: {known_images()}")
    return CloudRelease(found[1], found[2] or _newest(found[1], mirror), mirror)


def known_images() -> str:
    return ", ".join(f"ubuntu-{version}" for version in SERIES)


def is_address(place: str) -> bool:
    return place.startswith(("https://", "http://"))


def _newest(version: str, mirror: str) -> str:
    """Files below `release` and `current` are replaced in place; only those of a dated folder never change."""
    place = f"{mirror.rstrip('/')}/{SERIES[version]}/"
    listed = text_at(place).decode("utf-8", "replace") if is_address(place) else "/\n".join(_folders(Path(place)))
    dates: list[str] = _DATED.findall(listed)
    if not dates:
        raise _no_such(f"{visible(place)} lists no release", f"Name a day: --image ubuntu-{version}@20260814")
    return max(dates, key=lambda date: tuple(map(int, date.split("."))))


def _folders(place: Path) -> list[str]:
    return [each.name for each in place.iterdir()] if place.is_dir() else []


def text_at(place: str) -> bytes:
    """A small file, at its address or as a path. Raises UsageError (NoSuchImage), WinhostError (DownloadFailed)."""
    if is_address(place):
        from winhost.images.download import fetch_text  # most plans download no image

        return fetch_text(place)
    try:
        return read_within(Path(place), _LARGEST_TEXT)
    except (OSError, TooLarge) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise _no_such(f"{visible(place)} cannot be read: {why}", "Name a folder with a copy of releases/") from None


def _no_such(what: str, hint: str) -> UsageError:
    return UsageError("NoSuchImage", what=what, hint=hint)


def refuse_by_name(name: str) -> None:
    """Raises RefusedError (ImageRefused) for images that would not start, or not listen."""
    last = name.rstrip("/").replace("\\", "/").rpartition("/")[2].lower()
    for pattern, why in _REFUSED.items():
        if re.search(rf"(?<![a-z0-9])(?:{pattern})(?![a-z0-9])", last):
            hint = "Take ubuntu-24.04-server-cloudimg-amd64.img of a dated release"
            raise RefusedError("ImageRefused", what=f"{visible(last)} is refused", meaning=why, hint=hint)
