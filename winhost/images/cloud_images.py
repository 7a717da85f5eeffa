"""Ubuntu's cloud images: where a release is, what fits Hyper-V, and which SHA-256 Canonical signed for it.

A dated directory below cloud-images.ubuntu.com/releases holds the images of one day, SHA256SUMS and its detached
signature SHA256SUMS.gpg, by the "UEC Image Automatic Signing Key". An Ubuntu may have that key in SYSTEM_KEYRING;
elsewhere whoever uses winhost brings it. What is refused by name would not start on Hyper-V, or not listen to a seed.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from winhost.model.errors import RefusedError, UsageError, visible

MIRROR = "https://cloud-images.ubuntu.com/releases"
SIGNING_KEY = "D2EB44626FDDC30B513D5BB71A5D6C4C7DB87C81"
SYSTEM_KEYRING = Path("/usr/share/keyrings/ubuntu-cloudimage-keyring.gpg")
SERIES = {"noble": "24.04", "resolute": "26.04"}

_DATE = re.compile(r"20\d{6}(?:\.\d{1,2})?")
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([A-Za-z0-9._+-]+)")
_GPGV_S = 60
_OTHER_PROCESSORS = r"arm64|aarch64|armhf|ppc64el|riscv64|s390x"
_REFUSED = {
    "minimal": "minimal images start without an initrd, and Hyper-V's disk driver is a module that is only found there",
    "azure": "images for Azure take their settings from Azure alone; Canonical says that they do not work elsewhere",
    _OTHER_PROCESSORS: "it is for another processor, and Hyper-V hosts with assignable GPUs have amd64",
}


@dataclass(frozen=True)
class CloudRelease:
    """The server images of one series and day, as noble and 20260814. Raises UsageError (NoSuchImage)."""

    series: str
    date: str
    mirror: str = MIRROR

    def __post_init__(self) -> None:
        if self.series not in SERIES:
            raise _no_such(f"winhost knows no series '{visible(self.series)}'", f"There are: {', '.join(SERIES)}")
        if not _DATE.fullmatch(self.date):
            hint = "What lies below 'release' and 'current' is replaced in place; name a day, as 20260814"
            raise _no_such(f"'{visible(self.date)}' is no day of a release", hint)

    @property
    def image(self) -> str:
        return f"ubuntu-{SERIES[self.series]}-server-cloudimg-amd64.img"

    def url(self, name: str) -> str:
        """Of a file of this release: the image, SHA256SUMS, SHA256SUMS.gpg."""
        return f"{self.mirror}/{self.series}/release-{self.date}/{name}"


def _no_such(what: str, hint: str) -> UsageError:
    return UsageError("NoSuchImage", what=what, hint=hint)


def refuse_by_name(name: str) -> None:
    """Of a file or a URL. Raises RefusedError (ImageRefused) for images that would not start, or not listen."""
    last = name.rstrip("/").replace("\\", "/").rpartition("/")[2].lower()
    for pattern, why in _REFUSED.items():
        if re.search(rf"(?<![a-z0-9])(?:{pattern})(?![a-z0-9])", last):
            hint = "Take ubuntu-24.04-server-cloudimg-amd64.img of a dated release"
            raise RefusedError("ImageRefused", what=f"{visible(last)} is refused", meaning=why, hint=hint)


def signed_sums(sums: bytes, signature: bytes, keyring: Path, key: str = SIGNING_KEY) -> Mapping[str, str]:
    """SHA-256 by file name, from SHA256SUMS whose signature is good and by this very key.

    Raises UsageError (NotVerified).
    """
    if key not in set(_good_keys(_gpgv(sums, signature, keyring))):
        raise _not_verified(f"SHA256SUMS has no good signature by {key}, as {visible(str(keyring))} has it")
    found: dict[str, str] = {}
    for line in sums.decode("ascii", "replace").splitlines():
        if (match := _LINE.fullmatch(line)) and found.setdefault(match[2], match[1]) != match[1]:
            raise _not_verified(f"SHA256SUMS has two sums of {match[2]}")
    return found


def _not_verified(what: str) -> UsageError:
    hint = (
        f"gpgv and Canonical's public key in binary form are needed: apt install gpgv, and {SYSTEM_KEYRING} of an "
        "Ubuntu. Or give the SHA-256 of the image that you checked yourself"
    )
    return UsageError("NotVerified", what=what, hint=hint)


def _gpgv(sums: bytes, signature: bytes, keyring: Path) -> str:
    """What gpgv says in its words for programs. Its exit code is not asked: there may be signatures by other keys."""
    gpgv = shutil.which("gpgv")
    if gpgv is None or not keyring.is_file():
        lacking = "gpgv is not installed" if gpgv is None else f"there is no keyring at {visible(str(keyring))}"
        raise _not_verified(f"the signature of SHA256SUMS cannot be checked: {lacking}")
    with TemporaryDirectory() as folder:
        of, by = Path(folder, "SHA256SUMS"), Path(folder, "SHA256SUMS.gpg")
        of.write_bytes(sums)
        by.write_bytes(signature)
        words = [gpgv, "--homedir", folder, "--weak-digest", "SHA1", "--status-fd", "1"]
        words += ["--keyring", str(keyring.resolve()), str(by), str(of)]
        try:
            done = subprocess.run(words, capture_output=True, timeout=_GPGV_S, check=False)  # noqa: S603 - no shell
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _not_verified(f"gpgv could not check SHA256SUMS ({type(error).__name__})") from None
    return done.stdout.decode("utf-8", "replace")


def _good_keys(status: str) -> Iterator[str]:
    """The primary keys of good signatures; one by a key that expired or was revoked is valid, but not good."""
    good = False
    for line in status.split("\n"):
        mark, word, *arguments = [*line.split(), "", ""]
        if mark == "[GNUPG:]" and word == "NEWSIG":
            good = False
        elif mark == "[GNUPG:]" and word == "GOODSIG":
            good = True
        elif mark == "[GNUPG:]" and word == "VALIDSIG" and good:
            yield next((each for each in reversed(arguments) if each), "")
