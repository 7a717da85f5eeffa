"""Download files with a known SHA-256 into a cache. A download continues where an earlier attempt ended."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from winhost.core.dataclass import dataclass
from winhost.images.disk_image import Progress
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import sha256_of
from winhost.model.units import Bytes, GiB, MiB
from winhost.web.http_client import NotAnswered, OpenAnswer, fetch, open_url
from winhost.web.large_files import RETRY_STATUSES, resume_download, total_length

_MAX_IMAGE: Bytes = 16 * GiB
_RETRY_HINT = (
    "Run the command again: it goes on where this ended. Without internet, name a folder with a copy of the releases: "
    "--image-mirror for a new VM (or --image ./FILE; of winhost up, --set new_vm.vhdx.source=./FILE.vhdx), "
    "--set system.mirror for Ubuntu beside Windows, --mirror for media"
)
_REMOVED_HINT = "Older releases are removed from time to time: choose a newer one, or give a file and its SHA-256"


@dataclass(frozen=True)
class RemoteImage:
    """A file to download. bytes: its size, if it is known."""

    url: str
    sha256: str
    bytes: Bytes | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise _mismatch_error(
                f"'{visible(self.sha256[:100])}' is no SHA-256 (64 hexadecimal digits, in lower case)"
            )


def _mismatch_error(what: str) -> UsageError:
    return UsageError("NotThisImage", what=what, hint="Nothing of it is used. Compare the SHA-256 with its source")


def _download_error(url: str, why: str, hint: str = _RETRY_HINT) -> WinhostError:
    return WinhostError("DownloadFailed", what=f"{visible(url)} {visible(why)}", hint=hint)


def check_file(path: Path, sha256: str) -> None:
    """Check a local file. Raises UsageError (NotThisImage) and OSError."""
    if (found := sha256_of(path)) != sha256:
        raise _mismatch_error(f"{visible(str(path))} has SHA-256 {found}, and {visible(sha256)} is wanted")


def fetch_text(url: str) -> bytes:
    """Download a small file, such as SHA256SUMS, into memory. Raises WinhostError (DownloadFailed)."""
    try:
        answer = fetch(url, MiB, allow_http=True)
    except NotAnswered as error:
        raise _download_error(url, str(error)) from None
    if answer.status != 200:
        raise _download_error(
            url, f"answers with HTTP {answer.status}", _RETRY_HINT if answer.status in RETRY_STATUSES else _REMOVED_HINT
        )
    return answer.body


def download(image: RemoteImage, cache: Path, progress: Progress | None = None) -> Path:
    """Download a file unless the cache has it, and return its path. A cached file is checked again each time. Raises
    UsageError (NotThisImage), WinhostError (DownloadFailed) and OSError.
    """
    from filelock import FileLock, Timeout

    if not image.url.startswith(("https://", "http://")):
        raise _download_error(image.url, "is no HTTP or HTTPS URL", "Give a file as a path")
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"{image.sha256}.img"
    part = path.with_suffix(".part")
    report = progress or (lambda done, total: None)
    try:
        with FileLock(path.with_suffix(".lock"), timeout=0):
            if not path.is_file() or sha256_of(path) != image.sha256:
                existing = part.stat().st_size if part.exists() else 0
                try:
                    with part.open("r+b" if existing else "wb") as file:
                        resume_download(file, 0, existing, None, lambda at: _open_remote(image, at), report)
                finally:
                    if part.exists() and not part.stat().st_size:  # nothing was received
                        part.unlink()
                if (found := sha256_of(part)) != image.sha256:
                    part.unlink()
                    raise _mismatch_error(f"{visible(image.url)} has SHA-256 {found}, and {image.sha256} is wanted")
                part.replace(path)
    except Timeout:
        raise _download_error(image.url, "is being downloaded by another winhost", "Wait for that one to end") from None
    except NotAnswered as error:
        raise _download_error(image.url, str(error)) from None
    return path


@contextmanager
def _open_remote(image: RemoteImage, begin: Bytes) -> Iterator[OpenAnswer]:
    """Request the image from a byte on. Raises NotAnswered, WinhostError (DownloadFailed) for an error that another
    attempt does not mend, and UsageError (NotThisImage) for another size.
    """
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    with open_url(image.url, headers=headers, allow_http=True) as answer:
        if answer.status not in (200, *RETRY_STATUSES, *((206, 416) if begin else ())):
            raise _download_error(image.url, f"answers with HTTP {answer.status}", _REMOVED_HINT)
        if answer.status not in RETRY_STATUSES:
            total = total_length(answer)
            if total is None:
                expected = "" if image.bytes is None else f" ({image.bytes:,} bytes are expected)"
                hint = "Use another mirror, or give a file and its SHA-256"
                raise _download_error(image.url, f"does not state its length{expected}", hint)
            if image.bytes not in (None, total):
                raise _mismatch_error(f"{visible(image.url)} has {total:,} bytes, and {image.bytes:,} are wanted")
            if not 0 < total <= _MAX_IMAGE:
                raise _download_error(image.url, f"has {total:,} bytes, and no image has that many", _REMOVED_HINT)
        yield answer
