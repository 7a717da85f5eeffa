"""Container images in one file: made for Docker and Podman to load, or saved by them or by `winhost fetch`.

A file that winhost makes has an OCI layout and Docker's own manifest. The same image always becomes the same bytes, so
that it has one SHA-256 wherever it is made. Layers are written at their final offsets: what an earlier attempt brought
is checked, and the attempt continued.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import IO

from winhost.core.dataclass import dataclass
from winhost.images.image_registry import (
    MOST_OF_MANIFEST,
    Blob,
    ImageName,
    Manifest,
    Registry,
    Resolved,
    Unusable,
    digest_of,
    for_platform,
    is_index,
    manifest_document,
    manifest_of,
    not_resolved,
)
from winhost.model.errors import UsageError, visible
from winhost.model.files import sha256_of
from winhost.model.units import Bytes, MiB
from winhost.web.http_client import NotAnswered
from winhost.web.large_files import OnProgress, resume_download

_PIECE: Bytes = MiB
_RECORD = tarfile.RECORDSIZE


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
    """The name of the image once it is loaded: engines know a loaded image by a tag, not by its digest."""
    return f"{resolved.name.registry}/{resolved.name.repository}:sha256-{resolved.digest[7:23]}"


def archive_size(resolved: Resolved) -> Bytes:
    last = _entries(resolved)[-1]
    return -(-(last.at + _padded(last.size) + 2 * tarfile.BLOCKSIZE) // _RECORD) * _RECORD


def write_archive(registry: Registry, resolved: Resolved, path: Path, on_progress: OnProgress) -> None:
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
                _write_layer(registry, resolved, file, entry, kept, lambda done, _: on_progress(done, size))
            file.seek(entry.at + entry.size)
            file.write(bytes(_padded(entry.size) - entry.size))
        file.write(bytes(size - file.tell()))
        file.truncate(size)


def _write_layer(
    registry: Registry, resolved: Resolved, file: IO[bytes], entry: _Entry, kept: Bytes, on_progress: OnProgress
) -> None:
    """kept: the length of what an earlier attempt left of the whole archive."""
    blob, at = entry.blob, entry.at
    assert blob is not None
    have = max(0, min(blob.bytes, kept - at))
    if have == blob.bytes:
        if _digest(file, entry) == blob.digest:
            on_progress(at + have, at + have)
            return
        have = 0
    try:
        resume_download(
            file,
            at,
            have,
            blob.bytes,
            lambda begin: registry.blob(blob.digest, begin),
            lambda n, _: on_progress(at + n, n),
        )
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
    manifest, name = resolved.manifest, archive_name(resolved)
    described = {"mediaType": manifest.kind, "digest": manifest.digest, "size": len(manifest.data)}
    named = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = {"schemaVersion": 2, "manifests": [described | {"annotations": named}]}
    docker = {
        "Config": _path(manifest.config.digest),
        "RepoTags": [name],
        "Layers": [_path(layer.digest) for layer in manifest.layers],
    }
    contents: list[tuple[str, bytes | None, Blob | None]] = [
        ("oci-layout", b'{"imageLayoutVersion": "1.0.0"}', None),
        ("index.json", _json(index), None),
        ("manifest.json", _json([docker]), None),
        (_path(manifest.digest), manifest.data, None),
        *((_path(blob.digest), None, blob) for blob in manifest.blobs),
    ]
    made: list[_Entry] = []
    at = 0
    for name, data, blob in contents:
        entry = _Entry(name, at + tarfile.BLOCKSIZE, data, blob)
        made.append(entry)
        at = entry.at + _padded(entry.size)
    return tuple(made)


_BLOBS = "blobs/sha256/"


def _path(digest: str) -> str:
    return _BLOBS + digest.removeprefix("sha256:")


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


_MOST_FILES = 10_000


@dataclass(frozen=True)
class SavedImage:
    """name: once it is loaded; bytes: of its layers; sha256: of the file; digest: of its manifest, None where an older
    `docker save` wrote none.
    """

    name: ImageName
    bytes: Bytes
    sha256: str
    digest: str | None


def read_saved(path: Path, platform: str) -> SavedImage:
    """Raises UsageError (SavedUnusable), OSError."""
    try:
        with tarfile.open(path, "r:") as archive:
            found = _read(_Files(archive), platform)
    except (tarfile.TarError, EOFError):
        raise _unusable(path, "is no tar archive", "Unpack a compressed one first: gunzip FILE") from None
    except Unusable as unusable:
        hint = "Write it with `docker save IMAGE:TAG -o FILE`, of one image"
        raise _unusable(path, str(unusable), hint) from None
    name, layers, digest = found
    return SavedImage(name, layers, sha256_of(path), digest)


class _Files:
    """The members of an archive that somebody handed over: listed once, read by exact name and within bounds."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self.members: dict[str, tarfile.TarInfo] = {}
        for member in archive:
            if len(self.members) >= _MOST_FILES:
                raise Unusable("holds more files than an image has")
            if member.isfile():
                self.members[member.name.removeprefix("./")] = member

    def read(self, name: str) -> bytes:
        member = self.members.get(name)
        if member is None or member.size > MOST_OF_MANIFEST:
            raise Unusable(f"has no usable {visible(name[:100])}")
        file = self._archive.extractfile(member)
        assert file is not None
        return file.read()

    def blob(self, digest: str) -> bytes:
        data = self.read(_path(digest))
        if digest_of(data) != digest:
            raise Unusable(f"holds something else than {digest[:19]}")
        return data


def _read(files: _Files, platform: str) -> tuple[ImageName, Bytes, str | None]:
    name, config_path, layers = _listed(files.read("manifest.json"))
    data = files.read(config_path)
    config = manifest_document(data)
    made_for = f"{config.get('os')}/{config.get('architecture')}"
    if made_for != platform:
        raise Unusable(f"is not made for {platform}, but for {visible(made_for[:60])}")
    if not layers or not layers <= files.members.keys():
        raise Unusable("lacks layers of its image")
    size = sum(files.members[each].size for each in layers)
    if "index.json" not in files.members:
        return name, size, None
    manifest = _manifest(files, platform)
    blobs = {_path(layer.digest) for layer in manifest.layers}
    if manifest.config.digest != digest_of(data) or blobs != layers:
        raise Unusable("says two things about its image")
    return name, size, manifest.digest


def _listed(data: bytes) -> tuple[ImageName, str, frozenset[str]]:
    """The one image of Docker's own list: its first name, and the paths of its configuration and layers."""
    try:
        (image,) = json.loads(data)
        names, config, layers = image["RepoTags"], str(image["Config"]), frozenset(map(str, image["Layers"]))
        return ImageName.parse(str(names[0])), config, layers
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        raise Unusable("does not hold one image with a name") from None
    except UsageError as error:
        raise Unusable(f"holds an image whose name winhost does not read: {error.what}") from None


def _manifest(files: _Files, platform: str) -> Manifest:
    """Docker lists an image once for each of its names, and may say of none what it is made for."""
    document = manifest_document(files.read("index.json"))
    system, architecture = platform.split("/")
    listed = document.get("manifests")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            each.setdefault("platform", {"os": system, "architecture": architecture})
    chosen = for_platform(document, platform)
    data = files.blob(chosen.digest)
    if not is_index(manifest_document(data), chosen.kind):
        return manifest_of(data, chosen.kind)
    return manifest_of(files.blob(for_platform(manifest_document(data), platform).digest))


def _unusable(path: Path, why: str, hint: str) -> UsageError:
    return UsageError("SavedUnusable", what=f"{visible(str(path))} {why}", hint=hint)
