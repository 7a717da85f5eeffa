"""Downloads into a cache, of files whose SHA-256 is known before. They continue where an earlier attempt ended."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING

from winhost.core.dataclass import dataclass
from winhost.images.disk_image import Progress
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import sha256_of
from winhost.model.units import Bytes, GiB, MiB, size

if TYPE_CHECKING:
    from requests import Response

_LARGEST: Bytes = 16 * GiB
_LARGEST_TEXT: Bytes = MiB
_PIECE: Bytes = MiB
_TIMEOUTS_S = (30, 60)
_ATTEMPTS = 4  # in a row that bring nothing
_BUSY = (429, 500, 502, 503, 504)
_AGAIN = (
    "Run the command again: it goes on where this ended. Without internet, name a folder with a copy of the releases: "
    "--image-mirror for a new VM (or --image ./FILE; of winhost up, --set new_vm.vhdx.source=./FILE.vhdx), "
    "--set system.mirror for Ubuntu beside Windows, --mirror for media"
)
_GONE = "Older releases are removed from time to time: choose a newer one, or give a file and its SHA-256"
_RANGE = re.compile(r"bytes (?:(\d{1,15})-\d{1,15}|\*)/(\d{1,15})")


@dataclass(frozen=True)
class RemoteImage:
    """A file to download. bytes: its size, where it is known before."""

    url: str
    sha256: str
    bytes: Bytes | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise _not_it(f"'{visible(self.sha256[:100])}' is no SHA-256 (64 hexadecimal digits, in lower case)")


class _Interrupted(Exception):
    """Another attempt may succeed. The sentence goes on after the URL."""


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
        with _asked(url, 0) as response:
            data = bytes(response.raw.read(_LARGEST_TEXT + 1, decode_content=False))
    except _Interrupted as error:
        raise _failed(url, str(error)) from None
    if len(data) > _LARGEST_TEXT:
        raise _failed(url, f"is larger than {size(_LARGEST_TEXT)}, which no such file is", _GONE)
    return data


def download(image: RemoteImage, cache: Path, progress: Progress | None = None) -> Path:
    """The file in the cache, checked again each time. Raises UsageError (NotThisImage), WinhostError (DownloadFailed)
    and OSError.
    """
    from filelock import FileLock, Timeout

    cache.mkdir(parents=True, exist_ok=True)
    whole = cache / f"{image.sha256}.img"
    part = whole.with_suffix(".part")
    try:
        with FileLock(whole.with_suffix(".lock"), timeout=0):
            if not whole.is_file() or sha256_of(whole) != image.sha256:
                _complete(image, part, progress or (lambda done, total: None))
                with part.open("r+b") as file:
                    found = file_digest(file, "sha256").hexdigest()
                    os.fsync(file.fileno())
                if found != image.sha256:
                    part.unlink()
                    raise _not_it(f"{visible(image.url)} has SHA-256 {found}, and {image.sha256} is wanted")
                part.replace(whole)
    except Timeout:
        raise _failed(image.url, "is being downloaded by another winhost", "Wait for that one to end") from None
    return whole


def _complete(image: RemoteImage, part: Path, progress: Progress) -> None:
    """Try again as long as attempts bring something. Raises WinhostError (DownloadFailed)."""
    idle = 0
    while True:
        before = _length(part)
        try:
            return _attempt(image, part, progress)
        except _Interrupted as error:
            idle = 0 if _length(part) > before else idle + 1
            if idle == _ATTEMPTS:
                raise _failed(image.url, str(error)) from None
        time.sleep(2**idle - 1)


def _length(path: Path) -> Bytes:
    return path.stat().st_size if path.exists() else 0


def _attempt(image: RemoteImage, part: Path, progress: Progress) -> None:
    """Raises _Interrupted where the end was not reached."""
    with _asked(image.url, _length(part)) as response:
        begin, total = _span(image, response)
        if response.status_code == 416 and begin != total:
            part.unlink()
            raise _Interrupted("holds less than an earlier attempt brought")
        with part.open("r+b" if part.exists() else "wb") as file:
            file.truncate(begin)
            file.seek(begin)
            for piece in response.raw.stream(_PIECE, decode_content=False) if begin < total else ():
                if file.tell() + len(piece) > total:
                    raise _Interrupted("sends more than it said")
                file.write(piece)
                progress(file.tell(), total)
            if file.tell() < total:
                raise _Interrupted(f"ended after {file.tell():,} of {total:,} bytes")


def _span(image: RemoteImage, response: "Response") -> tuple[Bytes, Bytes]:
    """The first byte that the server sends, and the length of the whole file."""
    if response.status_code == 200:
        begin, told = 0, response.headers.get("Content-Length", "")
        total = int(told) if re.fullmatch(r"\d{1,15}", told) else -1
    else:
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        total = int(found[2]) if found else -1
        begin = int(found[1]) if found and found[1] else total
    if image.bytes is not None and total != image.bytes:
        raise _not_it(f"{visible(image.url)} has {total:,} bytes, and {image.bytes:,} are wanted")
    if not 0 < total <= _LARGEST or begin > total:
        raise _failed(image.url, "does not say how long it is, or is no image", _GONE)
    return begin, total


@contextmanager
def _asked(url: str, begin: Bytes) -> Iterator["Response"]:
    """The answer, not yet read. Raises WinhostError (DownloadFailed), and _Interrupted for what may pass."""
    import requests
    from urllib3.exceptions import HTTPError

    if not url.startswith(("https://", "http://")):
        raise _failed(url, "is no HTTP or HTTPS URL", "Give a file as a path")
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begin}-"} if begin else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUTS_S) as response:
            _check(url, response, begin)
            yield response
    except (requests.RequestException, HTTPError) as error:
        raise _Interrupted(f"cannot be downloaded ({type(error).__name__})") from None


def _check(url: str, response: "Response", begin: Bytes) -> None:
    status = response.status_code
    if status in _BUSY:
        raise _Interrupted(f"answers with HTTP {status}")
    if status != 200 and not (begin and status in (206, 416)):
        raise _failed(url, f"answers with HTTP {status}", _GONE)
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise _failed(url, "is sent in an encoding that was not asked for", _GONE)
