"""An image of containers in a file that `docker save` or `winhost fetch` wrote: its name, digest and size.

A digest is that of the manifest in the file. What an older `docker save` wrote has none.
"""

import json
import tarfile
from hashlib import file_digest
from pathlib import Path

from winhost.core.dataclass import dataclass
from winhost.images.image_names import ImageName
from winhost.images.manifests import (
    MOST_OF_MANIFEST,
    Manifest,
    Unusable,
    digest_of,
    for_platform,
    is_index,
    manifest_document,
    manifest_of,
)
from winhost.model.errors import UsageError, visible
from winhost.model.units import Bytes

_MOST_FILES = 10_000
_BLOBS = "blobs/sha256/"


@dataclass(frozen=True)
class SavedImage:
    """name: that it has once it is loaded; bytes: of its layers; sha256: of the file; digest: see above."""

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
    with path.open("rb") as file:
        sha256 = file_digest(file, "sha256").hexdigest()
    name, layers, digest = found
    return SavedImage(name, layers, sha256, digest)


class _Files:
    """Of an archive that somebody handed over: listed once, read by exact name and within bounds."""

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
        data = self.read(_BLOBS + digest.removeprefix("sha256:"))
        if digest_of(data) != digest:
            raise Unusable(f"holds something else than {digest[:19]}")
        return data


def _read(files: _Files, platform: str) -> tuple[ImageName, Bytes, str | None]:
    name, place, layers = _listed(files.read("manifest.json"))
    data = files.read(place)
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
    blobs = {_BLOBS + layer.digest.removeprefix("sha256:") for layer in manifest.layers}
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
