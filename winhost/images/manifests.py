"""Manifests of container images, as registries and archives have them: read, and checked by their digest."""

import hashlib
from collections.abc import Iterator
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.images.image_names import DIGEST
from winhost.model.units import Bytes, MiB
from winhost.web.asking import parsed

MOST_OF_MANIFEST: Bytes = 4 * MiB  # what registries accept at most
_MOST_LAYERS = 1000
_LARGEST = 1 << 44
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class Unusable(Exception):
    """What is no manifest, or not the one that was wanted. The sentence goes on after its name."""


@dataclass(frozen=True)
class Blob:
    """What a manifest names: a layer, the configuration, another manifest."""

    kind: str
    digest: str
    bytes: Bytes


@dataclass(frozen=True)
class Manifest:
    """Of an image for one platform. data: as it came, whose hash is the digest."""

    digest: str
    kind: str
    config: Blob
    layers: tuple[Blob, ...]
    data: bytes

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Each once, the configuration first."""
        return tuple(dict.fromkeys((self.config, *self.layers)))

    @property
    def bytes(self) -> Bytes:
        """What is sent for it."""
        return sum(blob.bytes for blob in self.blobs)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def manifest_document(data: bytes) -> dict[str, Any]:
    """Raises Unusable."""
    try:
        document = parsed(data)
    except ValueError:
        raise Unusable("is no JSON") from None
    if not isinstance(document, dict):
        raise Unusable("is no manifest")
    return document


def is_index(document: dict[str, Any], kind: str | None) -> bool:
    """A list of manifests, one for each platform."""
    return (document.get("mediaType") or kind) in INDEXES or ("manifests" in document and "config" not in document)


def for_platform(document: dict[str, Any], platform: str) -> Blob:
    """The manifest of a list that is for a platform, as linux/amd64. Raises Unusable."""
    listed = document.get("manifests")
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise Unusable("is no list of manifests")
    there = {_platform(each): each for each in reversed(listed)}
    if platform not in there:
        shown = ", ".join(sorted(name for name in there if "unknown" not in name)) or "none that is named"
        raise Unusable(f"is not made for {platform}, but for: {shown[:300]}")
    return _blob(there[platform], (*MANIFESTS, *INDEXES))


def _platform(entry: dict[str, Any]) -> str:
    platform = entry.get("platform")
    parts = [platform.get("os"), platform.get("architecture")] if isinstance(platform, dict) else ["unknown"]
    return "/".join(str(part) if str(part).isprintable() else "unknown" for part in parts)


def manifest_of(data: bytes, kind: str | None = None) -> Manifest:
    """Raises Unusable."""
    document = manifest_document(data)
    kind = document.get("mediaType") or kind or MANIFESTS[0]
    if kind not in MANIFESTS or document.get("schemaVersion") != 2:
        raise Unusable("has a manifest of a kind that winhost does not read")
    layers = document.get("layers")
    if not isinstance(layers, list) or not 0 < len(layers) <= _MOST_LAYERS:
        raise Unusable("has a manifest without layers")
    return Manifest(digest_of(data), kind, _blob(document.get("config")), tuple(_blobs(layers)), data)


def _blobs(entries: list[Any]) -> Iterator[Blob]:
    yield from (_blob(entry) for entry in entries)


def _blob(entry: Any, kinds: tuple[str, ...] = ()) -> Blob:
    if not isinstance(entry, dict) or entry.get("urls"):
        raise Unusable("has a manifest that names what lies elsewhere")
    kind, digest, length = (entry.get(name) for name in ("mediaType", "digest", "size"))
    if (
        not isinstance(kind, str)
        or not isinstance(digest, str)
        or DIGEST.fullmatch(digest) is None
        or type(length) is not int
        or not 0 <= length <= _LARGEST
        or (kinds and kind not in kinds)
    ):
        raise Unusable("has a manifest with parts that cannot be read")
    return Blob(kind, digest, length)
