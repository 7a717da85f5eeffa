"""An image of containers as one file that Docker and Podman load: a tar with an OCI layout and Docker's own manifest.

The same image always becomes the same bytes, so that the file has one SHA-256 wherever it is made. Layers are written
where they will lie: what an earlier attempt brought is checked and gone on from.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from winhost.core.dataclass import dataclass
from winhost.images.image_registry import Registry, Resolved, not_resolved
from winhost.images.manifests import Blob
from winhost.model.units import Bytes, MiB
from winhost.web.asking import NotAnswered
from winhost.web.large_files import bring

_PIECE: Bytes = MiB
_RECORD = tarfile.RECORDSIZE

Tell = Callable[[Bytes, Bytes], None]
"""Told how many bytes of how many there are."""


@dataclass(frozen=True)
class _Entry:
    """A file of the archive: its content, or the blob that it is. at: where its content begins."""

    name: str
    at: Bytes
    data: bytes | None
    blob: Blob | None

    @property
    def size(self) -> Bytes:
        return len(self.data) if self.data is not None else self.blob.bytes if self.blob else 0

    @property
    def header(self) -> bytes:
        info = tarfile.TarInfo(self.name)
        info.size, info.mode = self.size, 0o644
        return info.tobuf(tarfile.USTAR_FORMAT if self.size < 8 << 30 else tarfile.GNU_FORMAT)


def archive_name(resolved: Resolved) -> str:
    """What the image is called once it is loaded: engines know what they loaded by a tag, not by its digest."""
    return f"{resolved.name.registry}/{resolved.name.repository}:sha256-{resolved.digest[7:23]}"


def archive_size(resolved: Resolved) -> Bytes:
    last = _entries(resolved)[-1]
    return -(-(last.at + _padded(last.size) + 2 * tarfile.BLOCKSIZE) // _RECORD) * _RECORD


def write_archive(registry: Registry, resolved: Resolved, path: Path, tell: Tell) -> None:
    """Raises WinhostError (NotResolved) and OSError. What has come by then stays, for the next attempt."""
    entries, size = _entries(resolved), archive_size(resolved)
    with path.open("r+b" if path.exists() else "w+b") as file:
        kept = file.seek(0, io.SEEK_END)
        for entry in entries:
            file.seek(entry.at - tarfile.BLOCKSIZE)
            file.write(entry.header)
            if entry.data is not None:
                file.write(entry.data)
            elif entry.blob is not None:
                _layer(registry, resolved, file, entry, entry.blob, kept, lambda done: tell(done, size), entry.at)
            file.seek(entry.at + entry.size)
            file.write(bytes(_padded(entry.size) - entry.size))
        file.write(bytes(size - file.tell()))
        file.truncate(size)


def _layer(
    registry: Registry,
    resolved: Resolved,
    file: IO[bytes],
    entry: _Entry,
    blob: Blob,
    kept: Bytes,
    tell: Callable[[Bytes], None],
    base: Bytes,
) -> None:
    have = max(0, min(blob.bytes, kept - entry.at))
    if have == blob.bytes and _digest(file, entry) == blob.digest:
        tell(base + have)
        return
    have = 0 if have == blob.bytes else have  # whole, and not what it should be
    try:
        bring(file, entry.at, have, blob.bytes, lambda at: registry.blob(blob.digest, at), lambda n: tell(base + n))
    except NotAnswered as error:
        why = f"{registry.name.registry} {error}, for the layer {blob.digest[:19]}"
        raise not_resolved(resolved.name, why, "Run the command again: it goes on where this ended") from None
    if _digest(file, entry) != blob.digest:
        file.truncate(entry.at)
        why = f"{registry.name.registry} sent another layer than {blob.digest[:19]}"
        raise not_resolved(resolved.name, why, "Do not use this registry, or what stands between it and you")


def _digest(file: IO[bytes], entry: _Entry) -> str:
    file.seek(entry.at)
    digest, left = hashlib.sha256(), entry.size
    while left and (piece := file.read(min(left, _PIECE))):
        digest.update(piece)
        left -= len(piece)
    return f"sha256:{digest.hexdigest()}"


def _padded(size: Bytes) -> Bytes:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _entries(resolved: Resolved) -> tuple[_Entry, ...]:
    made: list[_Entry] = []
    at = 0
    for name, data, blob in _contents(resolved):
        entry = _Entry(name, at + tarfile.BLOCKSIZE, data, blob)
        made.append(entry)
        at = entry.at + _padded(entry.size)
    return tuple(made)


def _contents(resolved: Resolved) -> Iterator[tuple[str, bytes | None, Blob | None]]:
    manifest, name = resolved.manifest, archive_name(resolved)
    described = {"mediaType": manifest.kind, "digest": manifest.digest, "size": len(manifest.data)}
    named = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = {"schemaVersion": 2, "manifests": [described | {"annotations": named}]}
    docker = [
        {
            "Config": _place(manifest.config.digest),
            "RepoTags": [name],
            "Layers": [_place(layer.digest) for layer in manifest.layers],
        }
    ]
    yield "oci-layout", b'{"imageLayoutVersion": "1.0.0"}', None
    yield "index.json", _json(index), None
    yield "manifest.json", _json(docker), None
    yield _place(manifest.digest), manifest.data, None
    for blob in manifest.blobs:
        yield _place(blob.digest), None, blob


def _place(digest: str) -> str:
    return f"blobs/sha256/{digest[7:]}"


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
