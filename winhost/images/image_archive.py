"""Container images in one file: written for Docker and Podman to load, or read from a file that they saved.

A file that winhost writes has an OCI layout and Docker's own manifest. The same image always becomes the same bytes, so
that it has the same SHA-256 wherever it is made. Layers are written at their final offsets, so that another attempt
checks and continues the file of an earlier one.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import IO

from winhost.core.dataclass import dataclass
from winhost.images.image_registry import (
    MAX_MANIFEST_BYTES,
    Blob,
    ImageName,
    Manifest,
    Registry,
    Resolved,
    Unusable,
    digest_of,
    is_index,
    manifest_document,
    manifest_of,
    resolve_error,
    select_platform,
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
    """A file of the archive, with its content or its blob. at: the offset of the content in the archive."""

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
    """Return the name of the image after loading. Engines know a loaded image by a tag, not by its digest."""
    return f"{resolved.name.registry}/{resolved.name.repository}:sha256-{resolved.digest[7:23]}"


def archive_size(resolved: Resolved) -> Bytes:
    last = _entries(resolved)[-1]
    return -(-(last.at + _padded(last.size) + 2 * tarfile.BLOCKSIZE) // _RECORD) * _RECORD


def write_archive(registry: Registry, resolved: Resolved, path: Path, on_progress: OnProgress) -> None:
    """Download an image into an archive. Raises WinhostError (NotResolved) and OSError; a next attempt continues the
    unfinished file.
    """
    entries, size = _entries(resolved), archive_size(resolved)
    with path.open("r+b" if path.exists() else "w+b") as file:
        existing = file.seek(0, io.SEEK_END)
        for entry in entries:
            file.seek(entry.at - tarfile.BLOCKSIZE)
            file.write(entry.header)
            if entry.data is not None:
                file.write(entry.data)
            elif entry.blob is not None:
                _write_layer(registry, resolved, file, entry, existing, lambda done, _: on_progress(done, size))
            file.seek(entry.at + entry.size)
            file.write(bytes(_padded(entry.size) - entry.size))
        file.write(bytes(size - file.tell()))
        file.truncate(size)


def _write_layer(
    registry: Registry, resolved: Resolved, file: IO[bytes], entry: _Entry, existing: Bytes, on_progress: OnProgress
) -> None:
    """Append a layer to the archive. existing: the length of the archive that an earlier attempt left."""
    blob, at = entry.blob, entry.at
    assert blob is not None
    present = max(0, min(blob.bytes, existing - at))
    if present == blob.bytes:
        if _digest(file, entry) == blob.digest:
            on_progress(at + present, at + present)
            return
        present = 0
    try:
        resume_download(
            file,
            at,
            present,
            blob.bytes,
            lambda begin: registry.blob(blob.digest, begin),
            lambda n, _: on_progress(at + n, n),
        )
    except NotAnswered as error:
        why = f"{registry.name.registry} {error}, for the layer {blob.digest[:19]}"
        raise resolve_error(resolved.name, why, "Run the command again: it goes on where this ended") from None
    if _digest(file, entry) != blob.digest:
        file.truncate(entry.at)
        why = f"{registry.name.registry} sent another layer than {blob.digest[:19]}"
        raise resolve_error(resolved.name, why, "Do not use this registry, or what stands between it and you")


def _digest(file: IO[bytes], entry: _Entry) -> str:
    file.seek(entry.at)
    digest, remaining = hashlib.sha256(), entry.size
    while remaining and (piece := file.read(min(remaining, _PIECE))):
        digest.update(piece)
        remaining -= len(piece)
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
    entries: list[_Entry] = []
    at = 0
    for name, data, blob in contents:
        entry = _Entry(name, at + tarfile.BLOCKSIZE, data, blob)
        entries.append(entry)
        at = entry.at + _padded(entry.size)
    return tuple(entries)


_BLOBS = "blobs/sha256/"


def _path(digest: str) -> str:
    return _BLOBS + digest.removeprefix("sha256:")


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


_MAX_FILES = 10_000


@dataclass(frozen=True)
class SavedImage:
    """name: of the image after loading; bytes: of its layers; sha256: of the file; digest: of its manifest, None if an
    older `docker save` wrote none.
    """

    name: ImageName
    bytes: Bytes
    sha256: str
    digest: str | None


def read_saved(path: Path, platform: str) -> SavedImage:
    """Read an archive of one image. Raises UsageError (SavedUnusable), OSError."""
    try:
        with tarfile.open(path, "r:") as archive:
            name, layers, digest = _read(_Files(archive), platform)
    except (tarfile.TarError, EOFError):
        raise _unusable(path, "is no tar archive", "Unpack a compressed one first: gunzip FILE") from None
    except Unusable as unusable:
        hint = "Write it with `docker save IMAGE:TAG -o FILE`, of one image"
        raise _unusable(path, str(unusable), hint) from None
    return SavedImage(name, layers, sha256_of(path), digest)


class _Files:
    """The members of an untrusted archive. They are listed once, and read by exact name up to a maximal size."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self.members: dict[str, tarfile.TarInfo] = {}
        for member in archive:
            if len(self.members) >= _MAX_FILES:
                raise Unusable("holds more files than an image has")
            if member.isfile():
                self.members[member.name.removeprefix("./")] = member

    def read(self, name: str) -> bytes:
        member = self.members.get(name)
        if member is None or member.size > MAX_MANIFEST_BYTES:
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
    image_platform = f"{config.get('os')}/{config.get('architecture')}"
    if image_platform != platform:
        raise Unusable(f"is not made for {platform}, but for {visible(image_platform[:60])}")
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
    """Read Docker's manifest of one image: its first name, and the paths of its configuration and layers."""
    try:
        (image,) = json.loads(data)
        names, config, layers = image["RepoTags"], str(image["Config"]), frozenset(map(str, image["Layers"]))
        return ImageName.parse(str(names[0])), config, layers
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        raise Unusable("does not hold one image with a name") from None
    except UsageError as error:
        raise Unusable(f"holds an image whose name winhost does not read: {error.what}") from None


def _manifest(files: _Files, platform: str) -> Manifest:
    """Read the manifest for a platform. Docker lists an image once for each of its names, and may state no platform."""
    document = manifest_document(files.read("index.json"))
    system, architecture = platform.split("/")
    listed = document.get("manifests")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            each.setdefault("platform", {"os": system, "architecture": architecture})
    chosen = select_platform(document, platform)
    data = files.blob(chosen.digest)
    if not is_index(manifest_document(data), chosen.kind):
        return manifest_of(data, chosen.kind)
    return manifest_of(files.blob(select_platform(manifest_document(data), platform).digest))


def _unusable(path: Path, why: str, hint: str) -> UsageError:
    return UsageError("SavedUnusable", what=f"{visible(str(path))} {why}", hint=hint)
