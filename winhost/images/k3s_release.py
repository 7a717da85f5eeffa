"""A release of k3s: its program, and the images that it starts, each with the hash that the release lists.

https://docs.k3s.io/installation/airgap; a release has `sha256sum-amd64.txt` beside its files.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from winhost.core.dataclass import dataclass
from winhost.model.cluster_defaults import K3S
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.units import Bytes, MiB
from winhost.web.http_client import NotAnswered, WebAnswer, fetch

RELEASES = "https://github.com/k3s-io/k3s/releases/download"
PROGRAM, IMAGES, SUMS = "k3s", "k3s-airgap-images-amd64.tar.zst", "sha256sum-amd64.txt"
# As others pinned them in public: a server with another hash is refused.
KNOWN: Mapping[str, str] = {
    "v1.35.5+k3s1": "267d18da7b3c837d82283f0588fb9031a8a6ff3c0dac772c260c40852ce515f6",
    K3S: "2f98a9f8fe5782479ee2d54e70a1b10a7f6fd4cae8d38ed3098452dc6eed76b5",
}
_VERSION = re.compile(r"v1\.\d{1,3}\.\d{1,3}(-rc\d{1,2})?\+k3s\d{1,2}")
_LINE = re.compile(r"([0-9a-f]{64})[ *]+(\S+)")


@dataclass(frozen=True)
class ReleaseAsset:
    """source: where it is fetched from; bytes: of what is fetched."""

    name: str
    source: str
    sha256: str
    bytes: Bytes


def k3s_release(version: str, *, images: bool, mirror: str | None = None) -> tuple[ReleaseAsset, ...]:
    """Asks for the hashes of a release and the sizes of its files, over TLS. images: also those for a Linux without a
    network; mirror: another address with a folder of each release. Raises UsageError (NoRelease), WinhostError
    (ReleaseRefused).
    """
    if not _VERSION.fullmatch(version):
        hint = f"Write it as the release is called, for example {K3S}"
        raise UsageError("NoRelease", what=f"{visible(version)} is no version of k3s", hint=hint)
    base = f"{(mirror or RELEASES).rstrip('/')}/{quote(version, safe='')}"
    text = _answer(version, f"{base}/{SUMS}", MiB).body.decode("ascii", "replace")
    sums = {Path(line[2]).name: line[1] for line in map(_LINE.fullmatch, text.splitlines()) if line}
    found = tuple(_asset(version, base, name, sums) for name in ((PROGRAM, IMAGES) if images else (PROGRAM,)))
    if version in KNOWN and found[0].sha256 != KNOWN[version]:
        raise _refused(version, "has another hash than this release had when winhost was made")
    return found


def _asset(version: str, base: str, name: str, sums: Mapping[str, str]) -> ReleaseAsset:
    if name not in sums:
        raise _refused(version, f"lists no hash of {name}")
    source = f"{base}/{name}"
    size = _answer(version, source, 0, method="HEAD").headers.get("content-length", "")
    if not size.isdecimal() or not int(size):
        raise _refused(version, f"tells no size of {name}")
    return ReleaseAsset(name, source, sums[name], int(size))


def _answer(version: str, url: str, most: Bytes, *, method: str = "GET") -> WebAnswer:
    try:
        answer = fetch(url, most, method=method)
    except NotAnswered as error:
        raise _refused(version, f"cannot be read: {visible(url)} {error}") from None
    if answer.status != 200:
        raise _refused(version, f"cannot be read: {visible(url)} answers {answer.status}")
    return answer


def _refused(version: str, why: str) -> WinhostError:
    return WinhostError(
        "ReleaseRefused",
        what=f"the release {visible(version)} of k3s {why}",
        meaning="Nothing was changed.",
        hint="Compare the version with https://github.com/k3s-io/k3s/releases, or name a copy of it: --k3s-mirror URL",
    )
