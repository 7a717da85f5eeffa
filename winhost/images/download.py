"""Downloads into a cache, of files whose SHA-256 is known before. They continue where an earlier attempt ended."""

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

_LARGEST: Bytes = 16 * GiB
_AGAIN = (
    "Run the command again: it goes on where this ended. Without internet, name a folder with a copy of the releases: "
    "--image-mirror for a new VM (or --image ./FILE; of winhost up, --set new_vm.vhdx.source=./FILE.vhdx), "
    "--set system.mirror for Ubuntu beside Windows, --mirror for media"
)
_GONE = "Older releases are removed from time to time: choose a newer one, or give a file and its SHA-256"


@dataclass(frozen=True)
class RemoteImage:
    """A file to download. bytes: its size, where it is known before."""

    url: str
    sha256: str
    bytes: Bytes | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise _not_it(f"'{visible(self.sha256[:100])}' is no SHA-256 (64 hexadecimal digits, in lower case)")


def _not_it(what: str) -> UsageError:
    return UsageError("NotThisImage", what=what, hint="Nothing of it is used. Compare the SHA-256 with its source")


def _failed(url: str, why: str, hint: str = _AGAIN) -> WinhostError:
    return WinhostError("DownloadFailed", what=f"{visible(url)} {visible(why)}", hint=hint)


def check_file(path: Path, sha256: str) -> None:
    """A file that somebody brought. Raises UsageError (NotThisImage) and OSError."""
    if (found := sha256_of(path)) != sha256:
        raise _not_it(f"{visible(str(path))} has SHA-256 {found}, and {visible(sha256)} is wanted")


def fetch_text(url: str) -> bytes:
    """A small file, as SHA256SUMS, whole in memory. Raises WinhostError (DownloadFailed)."""
    try:
        answer = fetch(url, MiB, allow_http=True)
    except NotAnswered as error:
        raise _failed(url, str(error)) from None
    if answer.status != 200:
        raise _failed(url, f"answers with HTTP {answer.status}", _AGAIN if answer.status in RETRY_STATUSES else _GONE)
    return answer.body


def download(image: RemoteImage, cache: Path, progress: Progress | None = None) -> Path:
    """The file in the cache, checked again each time. Raises UsageError (NotThisImage), WinhostError (DownloadFailed)
    and OSError.
    """
    from filelock import FileLock, Timeout

    if not image.url.startswith(("https://", "http://")):
        raise _failed(image.url, "is no HTTP or HTTPS URL", "Give a file as a path")
    cache.mkdir(parents=True, exist_ok=True)
    whole = cache / f"{image.sha256}.img"
    part = whole.with_suffix(".part")
    tell = progress or (lambda done, total: None)
    try:
        with FileLock(whole.with_suffix(".lock"), timeout=0):
            if not whole.is_file() or sha256_of(whole) != image.sha256:
                begun = part.stat().st_size if part.exists() else 0
                try:
                    with part.open("r+b" if begun else "wb") as file:
                        resume_download(file, 0, begun, None, lambda at: _opened(image, at), tell)
                finally:
                    if part.exists() and not part.stat().st_size:  # nothing came
                        part.unlink()
                if (found := sha256_of(part)) != image.sha256:
                    part.unlink()
                    raise _not_it(f"{visible(image.url)} has SHA-256 {found}, and {image.sha256} is wanted")
                part.replace(whole)
    except Timeout:
        raise _failed(image.url, "is being downloaded by another winhost", "Wait for that one to end") from None
    except NotAnswered as error:
        raise _failed(image.url, str(error)) from None
    return whole


@contextmanager
def _opened(image: RemoteImage, begin: Bytes) -> Iterator[OpenAnswer]:
    """The rest of the image, not yet read. Raises NotAnswered, WinhostError (DownloadFailed) for what stays wrong, and
    UsageError (NotThisImage) for another size.
    """
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    with open_url(image.url, headers=headers, allow_http=True) as answer:
        if answer.status not in (200, *RETRY_STATUSES, *((206, 416) if begin else ())):
            raise _failed(image.url, f"answers with HTTP {answer.status}", _GONE)
        if answer.status not in RETRY_STATUSES:
            total = total_length(answer)
            if total is None:
                expected = "" if image.bytes is None else f" ({image.bytes:,} bytes are expected)"
                hint = "Use another mirror, or give a file and its SHA-256"
                raise _failed(image.url, f"does not state its length{expected}", hint)
            if image.bytes not in (None, total):
                raise _not_it(f"{visible(image.url)} has {total:,} bytes, and {image.bytes:,} are wanted")
            if not 0 < total <= _LARGEST:
                raise _failed(image.url, f"has {total:,} bytes, and no image has that many", _GONE)
        yield answer
