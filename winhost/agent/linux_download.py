# Part of the agent: downloads that continue where they ended.
"""Download into a file of a known size, from a server that may redirect. This part has to parse with Python 3.8."""

from __future__ import annotations

import hashlib
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from winhost.agent.linux_agent import AgentFault, bad_request, check_text, warn, wrong_state
from winhost.agent.linux_files import MAX_READ_BYTES, file_status, open_file, open_for_append, remove

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTEMPTS = 5  # in a row without a new byte
MAX_PAUSE_S = 120.0  # between two attempts


class Pace:
    """The progress of a download as a text: bytes, and later also the rate and the remaining time."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.began: tuple[float, int] | None = None

    def describe(self, done: int) -> str:
        now = time.monotonic()
        self.began = self.began or (now, done)
        seconds, gained = now - self.began[0], done - self.began[1]
        text = f"{done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB"
        if seconds < 1 or gained <= 0:
            return text
        rate = gained / seconds
        remaining = (self.total - done) / rate
        time_left = f"{remaining / 60:,.0f} min" if remaining >= 60 else f"{remaining:.0f} s"
        return f"{text}, {rate / 1e6:,.1f} MB/s, {time_left} left"


class ListedFile(NamedTuple):
    """A file of a plan. hash: with its kind, as sha256:HASH."""

    hash: str
    size: int
    path: str


def parse_listed_file(line: str, form: str, description: str, but: str = "") -> ListedFile:
    """Parse a line of a plan. but: a name that no part of the path may have."""
    hash_, size, path = check_text(form, line, description).split(" ", 2)
    if any(part in ("", ".", "..", but) for part in path.split("/")):
        raise bad_request(f"{path} leads out of its folder.")
    return ListedFile(hash_, int(size), path)


def size_of(path: str) -> int:
    found = file_status(path)
    return 0 if found is None else found.st_size


def is_file(path: str, file: ListedFile) -> bool:
    if file_status(path) is None or size_of(path) != file.size:
        return False
    with open_file(path) as source_file:
        return compute_hash(source_file, file) == file.hash


def compute_hash(source_file: BinaryIO, file: ListedFile) -> str:
    kind = file.hash.split(":")[0]
    # A blob of git: its SHA-1 is over a header and the content.
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % file.size)  # noqa: S324
    for piece in iter(lambda: source_file.read(MAX_READ_BYTES), b""):
        digest.update(piece)
    return kind + ":" + digest.hexdigest()


def fetch_file(source: str, part: str, file: ListedFile, token: str | None) -> Iterator[int]:
    """Append the missing bytes to a partial file, from a URL or from a file of this machine, and yield its size. A file
    with another hash is removed.
    """
    if source.startswith("/"):
        with open_file(source) as source_file:
            source_file.seek(size_of(part))
            yield from append_from(part, source_file, file.size)
    else:
        yield from download(source, part, file.size, token)
    if not is_file(part, file):
        remove(part)
        raise AgentFault("Winhost.NotThisFile", "InvalidData", f"{file.path} came with another hash or size.")


def download(url: str, part: str, size: int, token: str | None) -> Iterator[int]:
    """Append to a partial file until it has this size, and yield its size. Another run continues from there."""
    idle = 0
    while size_of(part) < size:
        before, pause = size_of(part), 0.0
        try:
            yield from download_once(url, part, size, token)
        except urllib.error.HTTPError as error:
            pause = retry_pause(error, url)
        except (OSError, http.client.HTTPException) as error:
            warn(f"{url}: {type(error).__name__}; tried again.")
        idle = 0 if size_of(part) > before else idle + 1
        if idle == ATTEMPTS:
            message = f"{url}: {idle} attempts in a row brought nothing. It goes on from there the next time."
            raise AgentFault("Winhost.HubUnreachable", "ResourceUnavailable", message)
        time.sleep(min(MAX_PAUSE_S, max(pause, 2.0**idle - 1)))
    if size == 0:
        with open_for_append(part, 0):
            pass


def retry_pause(error: urllib.error.HTTPError, url: str) -> float:
    with closing(error):
        if error.code in (401, 403):
            message = f"{url}: the hub answers {error.code}. Is the token right, and the licence accepted there?"
            raise AgentFault("Winhost.HubRefused", "PermissionDenied", message)
        if error.code != 429 and error.code < 500:
            raise AgentFault("Winhost.NoSuchFile", "ObjectNotFound", f"{url}: the hub answers {error.code}.")
        with suppress(ValueError):
            return float(error.headers.get("Retry-After") or 0)
    return 0.0


class SameHostOnly(urllib.request.HTTPRedirectHandler):
    """Send a token only to the host that it is for. Redirects from https lead to https alone."""

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # Python 3.10 does not handle it

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> Any:
        made = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        old, new = (urllib.parse.urlsplit(url) for url in (req.full_url, newurl))
        if old.scheme == "https" and new.scheme != "https":
            raise wrong_state(f"{old.hostname} leads to {new.hostname} without TLS.")
        token = req.unredirected_hdrs.get("Authorization")
        if made is not None and token and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            made.add_unredirected_header("Authorization", token)
        return made


def download_once(url: str, part: str, size: int, token: str | None) -> Iterator[int]:
    offset = size_of(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})  # noqa: S310
    if token:
        if not re.match(r"https://|http://(127\.0\.0\.1|localhost)[:/]", url):
            raise bad_request("A token is sent over https alone.")
        request.add_unredirected_header("Authorization", "Bearer " + token)
    with closing(urllib.request.build_opener(SameHostOnly).open(request, timeout=60)) as answer:
        if offset and not str(answer.headers.get("Content-Range")).startswith(f"bytes {offset}-"):
            remove(part)  # the server sends all of it again
        yield from append_from(part, answer, size)


def append_from(part: str, source_file: BinaryIO, size: int) -> Iterator[int]:
    with open_for_append(part, size) as target:
        for piece in iter(lambda: source_file.read(MAX_READ_BYTES), b""):
            if target.tell() + len(piece) > size:
                break  # it is too long, so its hash is wrong
            target.write(piece)
            yield target.tell()
