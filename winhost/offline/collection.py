"""Fills a folder with images of containers, files of models and the image of a guest, each checked by its hash.

Files that are right stay, and partial ones are continued. No file gets its name before it is whole and checked.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import file_digest
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

from winhost.core.dataclass import dataclass
from winhost.hub.repositories import HubRepository
from winhost.images.download import RemoteImage, download
from winhost.images.guest_disk import Tell
from winhost.images.image_archive import archive_name, archive_size, write_archive
from winhost.images.image_registry import ImageName, Registry, Resolved, resolve
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import sha256_of
from winhost.model.plan import Offline, OfflineImage
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes, MiB, about
from winhost.offline.package_archive import PackageFile, PackageSource, signed_lists
from winhost.web.asking import NotAnswered, OpenAnswer, opened
from winhost.web.large_files import bring

_FILE = re.compile(r"(sha256|git-sha1):([0-9a-f]+) ([0-9]{1,15}) (.+)")
FromByte = Callable[[str, Bytes], AbstractContextManager[OpenAnswer]]
_SPARE: Bytes = 64 * MiB


@dataclass(frozen=True)
class WantedImage:
    """name: as a plan pins it; credentials: a secret reference to USER:PASSWORD."""

    name: str
    credentials: str | None = None


@dataclass(frozen=True)
class WantedModel:
    """A model to collect, as in ModelFiles. revision: None for a server that is no hub, as one with Python packages;
    folder: where its files go then.
    """

    source: str
    revision: str | None
    files: tuple[str, ...]
    token: str | None = None
    folder: str = "python"


@dataclass(frozen=True)
class Copied:
    """A file of the folder. path: below it, with slashes."""

    path: str
    bytes: Bytes
    sha256: str


class Collection:
    """there: where the folder will lie on the Linux that serves; tell: told of each file, how far it is."""

    def __init__(self, folder: Path, there: str, tell: Tell) -> None:
        self._folder, self._there, self._tell = folder, there.rstrip("/"), tell
        self._images: dict[str, OfflineImage] = {}
        self._models: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self.copied: list[Copied] = []

    @property
    def offline(self) -> Offline:
        return Offline(self._images, self._models, self._sources)

    def collect(
        self, images: Iterable[WantedImage], models: Iterable[WantedModel], guest: RemoteImage | None, platform: str
    ) -> None:
        """Raises WinhostError and OSError."""
        resolved = [(each, resolve(each.name, platform=platform, credentials=each.credentials)) for each in images]
        wanted = list(models)
        self._check_room([found for _, found in resolved], wanted, guest)
        for image, found in resolved:
            self._image(image, found)
        for model in wanted:
            self._model(model)
        if guest:
            to = self._folder / "images"
            path = download(guest, to, lambda done, whole: self._tell("image of the guest", done, whole))
            self._copied(path, path.stat().st_size, guest.sha256)

    def _check_room(self, images: list[Resolved], models: list[WantedModel], guest: RemoteImage | None) -> None:
        needed = sum(self._lacking(self._archive(each), archive_size(each)) for each in images)
        for model in models:
            needed += sum(self._lacking(self._path(model, file), file.bytes) for file in _files(model))
        if guest:  # as `download` names them
            image = self._folder / "images" / f"{guest.sha256}.img"
            needed += self._lacking(image, guest.bytes or 0, image.with_suffix(".part"))
        free = shutil.disk_usage(self._folder).free
        if needed + _SPARE > free:
            what = f"{about(needed)} are still to come, and {visible(str(self._folder))} has {about(free)} left"
            raise UsageError("NoRoom", what=what, hint="Free some, or name a folder on another disk with -o")

    def _lacking(self, path: Path, size: Bytes, part: Path | None = None) -> Bytes:
        """The bytes that are still to come, beside those that are there. part: the partial file."""
        there = [each.stat().st_size for each in (path, part or _part(path)) if each.is_file()]
        return max(0, size - max(there, default=0))

    # ---- images of containers

    def _archive(self, found: Resolved) -> Path:
        name = re.sub(r"[^a-z0-9.-]", "-", found.name.repository)[-80:].strip("-.")
        return self._folder / "containers" / f"{name}-{found.digest[7:19]}.tar"

    def _image(self, wanted: WantedImage, found: Resolved) -> None:
        path = self._archive(found)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _part(path)
        if path.is_file():
            path.replace(part)  # it is gone through again, layer by layer
        entry = SecretRef.parse(wanted.credentials).resolve() if wanted.credentials else None
        registry = Registry(ImageName.parse(wanted.name), entry)
        write_archive(registry, found, part, lambda done, whole: self._tell(found.name.repository, done, whole))
        copied = self._copied(path, part.stat().st_size, sha256_of(part))
        part.replace(path)
        self._images[wanted.name] = OfflineImage(f"{self._there}/{copied.path}", copied.sha256, archive_name(found))

    def keep(self, pinned: str, image: OfflineImage, beside: Path) -> None:
        """An image that the plan takes from a file already, which lies beside it. Raises UsageError: NotBeside."""
        name = PurePosixPath(image.archive).name
        path = self._folder / "containers" / name
        source = next(
            (each for each in (beside / name, path) if each.is_file() and sha256_of(each) == image.sha256), None
        )
        if source is None:
            what = f"{visible(name)}, from which the plan takes {visible(pinned)}, is not beside the plan"
            raise UsageError("ArchiveNotBeside", what=what, hint=f"Put it at {visible(str(beside))}, as it was planned")
        if source != path:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, _part(path))
            _part(path).replace(path)
        copied = self._copied(path, path.stat().st_size, image.sha256)
        self._images[pinned] = replace(image, archive=f"{self._there}/{copied.path}")

    # ---- models

    def _model_folder(self, model: WantedModel) -> Path:
        if model.revision is None:  # what comes from it has its own path there
            return self._folder / model.folder
        name = "--".join(urlsplit(model.source).path.strip("/").split("/")[-2:])
        return self._folder / "models" / re.sub(r"[^A-Za-z0-9._-]", "-", name) / model.revision

    def _path(self, model: WantedModel, file: "_File") -> Path:
        return self._model_folder(model).joinpath(*PurePosixPath(file.path).parts)

    def _model(self, model: WantedModel) -> None:
        name, open_from = _opener(model)
        files = list(_files(model))
        whole, done = sum(file.bytes for file in files), 0
        for file in files:
            path = self._path(model, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not (path.is_file() and file.is_in(path)):
                self._bring(open_from, file, path, name, done, whole)
            done += file.bytes
            self._copied(path, file.bytes, file.digest if file.kind == "sha256" else sha256_of(path))
        folder = self._model_folder(model).relative_to(self._folder).as_posix()
        self._models[f"{model.source}@{model.revision}"] = f"{self._there}/{folder}"

    def _bring(self, open_from: FromByte, file: "_File", path: Path, name: str, done: Bytes, whole: Bytes) -> None:
        part = _part(path)
        with part.open("r+b" if part.exists() else "w+b") as here:
            have = min(part.stat().st_size, file.bytes)
            try:
                bring(
                    here,
                    0,
                    have,
                    file.bytes,
                    lambda at: open_from(file.path, at),
                    lambda at, _: self._tell(name, done + at, whole),
                )
            except NotAnswered as error:
                why = f"{visible(name)}: {visible(file.path)}: the hub {error}"
                raise _not_brought(why, "Run the command again: it goes on where this ended") from None
            here.truncate(file.bytes)
        if not file.is_in(part):
            part.unlink()
            why = f"{visible(name)}: {visible(file.path)} came with another hash"
            raise _not_brought(why, "Run the command again; if it stays so, do not use this hub")
        part.replace(path)

    # ---- packages

    def packages(self, sources: Iterable[PackageSource], wanted: Iterable[str], machine: str) -> tuple[str, ...]:
        """Collect packages for apt's cache. Returns those that no source has. Raises as `signed_lists`, OSError."""
        left = dict.fromkeys(wanted)
        for source in sources:
            for each in signed_lists(source, left, machine).packages if left else ():
                self._package(each, self._folder / "packages" / each.cached_as)
                left.pop(f"{each.name}={each.version}", None)
        return tuple(left)

    def own_source(
        self, name: str, uri: str, source: PackageSource, wanted: Iterable[str], machine: str
    ) -> frozenset[str]:
        """A source of the plan's own, as a folder that apt reads: its signed lists, and what is wanted of it, which is
        returned. uri: as the plan has it. Raises as `signed_lists`, OSError.
        """
        lists, folder = signed_lists(source, tuple(wanted), machine), self._folder / "apt" / name
        below = "" if source.suite.endswith("/") else f"dists/{source.suite}/"
        for path, data in lists.files.items():
            file = folder / f"{below}{path}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            self._copied(file, len(data), hashlib.sha256(data).hexdigest())
        for each in lists.packages:
            self._package(each, folder.joinpath(*PurePosixPath(each.path).parts))
        self._sources[f"{uri} {source.suite}"] = f"file:{self._there}/apt/{name}"
        return frozenset(f"{each.name}={each.version}" for each in lists.packages)

    def _package(self, package: PackageFile, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _File("sha256", package.sha256, package.bytes, path.name)
        if not (path.is_file() and file.is_in(path)):
            self._bring(lambda _, at: _from_byte(package.url, at), file, path, package.name, 0, package.bytes)
        self._copied(path, package.bytes, package.sha256)

    def _copied(self, path: Path, size: Bytes, sha256: str) -> Copied:
        copied = Copied(path.relative_to(self._folder).as_posix(), size, sha256)
        if copied not in self.copied:
            self.copied.append(copied)
        return copied


@dataclass(frozen=True)
class _File:
    """A line of ModelFiles."""

    kind: str
    digest: str
    bytes: Bytes
    path: str

    def is_in(self, path: Path) -> bool:
        if path.stat().st_size != self.bytes:
            return False
        if self.kind == "sha256":
            return sha256_of(path) == self.digest
        with path.open("rb") as content:  # a blob of git: its SHA-1 is over a header and the content
            start = hashlib.sha1(b"blob %d\0" % self.bytes)  # noqa: S324
            return file_digest(content, lambda: start).hexdigest() == self.digest


def _files(model: WantedModel) -> Iterator[_File]:
    for line in model.files:
        found = _FILE.fullmatch(line)
        path = PurePosixPath(found[4]) if found else PurePosixPath()
        outside = path.is_absolute() or not path.parts or any(part in ("..", ".winhost") for part in path.parts)
        if found is None or outside or "\\" in line or ":" in found[4] or not line.isprintable():
            why = f"'{visible(line[:200])}' is no file of a model"
            raise _not_brought(why, "Make the plan again: winhost plan HOST")
        yield _File(found[1], found[2], int(found[3]), found[4])


def _opener(model: WantedModel) -> tuple[str, FromByte]:
    if model.revision is None:
        return urlsplit(model.source).netloc, lambda path, at: _from_byte(f"{model.source}/{quote(path)}", at)
    parts = urlsplit(model.source)
    *below, organization, name = ["", *parts.path.strip("/").split("/")]  # an address ends with ORG/NAME
    hub = f"{parts.scheme}://{parts.netloc}{''.join(f'/{each}' for each in below if each)}"
    token = SecretRef.parse(model.token).resolve() if model.token else None
    full = f"{organization}/{name}".strip("/")
    return full, HubRepository(full, model.revision, hub, token).open_from


def _from_byte(url: str, at: Bytes) -> AbstractContextManager[OpenAnswer]:
    return opened(url, headers={"Range": f"bytes={at}-"} if at else {})


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _not_brought(why: str, hint: str) -> WinhostError:
    return WinhostError("NotBrought", what=why, hint=hint)
