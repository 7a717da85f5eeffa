"""Ubuntu Server's installation media: where a point release is, and which SHA-256 Canonical signed for it."""

import re
from pathlib import Path

from winhost.core.dataclass import dataclass
from winhost.images.cloud_images import is_address, text_at
from winhost.images.disk_image import Progress
from winhost.images.download import RemoteImage, check_file, download
from winhost.images.signed_sums import signed_sums
from winhost.model.errors import RefusedError, UsageError, visible

MEDIA_MIRROR = "https://releases.ubuntu.com"
# Before 24.04.2, `match` is not heeded with use_gap (LP #2080608), and their shim fails the revocations of August 2024.
_OLDEST = {"24.04": 2, "26.04": 0}
_NAME = re.compile(r"(2[46]\.04)(?:\.([0-9]{1,2}))?")


@dataclass(frozen=True)
class InstallerRelease:
    """A point release, as 24.04.4, below a mirror: its address, or a folder with a copy."""

    version: str
    mirror: str = MEDIA_MIRROR

    def __post_init__(self) -> None:
        found = _NAME.fullmatch(self.version)
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

    def place(self, name: str) -> str:
        return f"{self.mirror.rstrip('/')}/{self.version}/{name}"

    def signed_sha256(self) -> str:
        """The checksum that Canonical signed. Raises UsageError (NotVerified, NoSuchImage), WinhostError."""
        sums = signed_sums(*(text_at(self.place(name)) for name in ("SHA256SUMS", "SHA256SUMS.gpg")), of_media=True)
        if self.image not in sums:
            what = f"{self.place('SHA256SUMS')} does not name {self.image}"
            raise UsageError("NotInRelease", what=what, hint="Choose another point release")
        return sums[self.image]

    def fetched(self, cache: Path, progress: Progress | None = None) -> Path:
        """The image, checked by the signed sum each time. Raises UsageError, WinhostError and OSError."""
        sha256, place = self.signed_sha256(), self.place(self.image)
        if is_address(place):
            return download(RemoteImage(place, sha256), cache, progress)
        check_file(Path(place), sha256)
        return Path(place)
