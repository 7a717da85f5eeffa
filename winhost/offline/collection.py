"""Fill a folder with container images, model files, packages and the image of a guest, each checked by its hash.

Correct files are kept, and partial downloads continued. A file gets its name only when it is complete and checked.
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
from winhost.offline.package_archive import PackageFile, PackageSource, fetch_signed_lists
from winhost.web.http_client import NotAnswered, OpenAnswer, open_url
from winhost.web.large_files import resume_download

_FILE = re.compile(r"(sha256|git-sha1):([0-9a-f]+) ([0-9]{1,15}) (.+)")
OpenFrom = Callable[[str, Bytes], AbstractContextManager[OpenAnswer]]
_SPARE_BYTES: Bytes = 64 * MiB


@dataclass(frozen=True)
class RequestedImage:
    """A container image to collect. name: as pinned in the plan; credentials: a secret reference to USER:PASSWORD."""

    name: str
    credentials: str | None = None


@dataclass(frozen=True)
class RequestedModel:
    """A model to collect, as in ModelFiles. revision: None for a server that is no hub, such as one with Python
    packages; folder: for the files of such a server.
    """

    source: str
    revision: str | None
    files: tuple[str, ...]
    token: str | None = None
    folder: str = "python"


@dataclass(frozen=True)
class CopiedFile:
    """A file of the folder. path: below it, with slashes."""

    path: str
    bytes: Bytes
    sha256: str


class Collection:
    """Collects files in a folder. target_folder: the folder's path on the Linux that serves; report: is called with the
    progress of each file.
    """

    def __init__(self, folder: Path, target_folder: str, report: Tell) -> None:
        self._folder, self._target_folder, self._report = folder, target_folder.rstrip("/"), report
        self._offline_images: dict[str, OfflineImage] = {}
        self._offline_models: dict[str, str] = {}
        self._offline_sources: dict[str, str] = {}
        self.copied: list[CopiedFile] = []

    @property
    def offline(self) -> Offline:
        return Offline(self._offline_images, self._offline_models, self._offline_sources)

    def collect(
        self,
        images: Iterable[RequestedImage],
        models: Iterable[RequestedModel],
        guest: RemoteImage | None,
        platform: str,
    ) -> None:
        """Collect images and models. Raises WinhostError and OSError."""
        resolved = [(each, resolve(each.name, platform=platform, credentials=each.credentials)) for each in images]
        wanted = list(models)
        self._check_room([found for _, found in resolved], wanted, guest)
        for image, found in resolved:
            self._image(image, found)
        for model in wanted:
            self._model(model)
        if guest:
            to = self._folder / "images"
            path = download(guest, to, lambda done, whole: self._report("image of the guest", done, whole))
            self._copied(path, path.stat().st_size, guest.sha256)

    def _check_room(self, images: list[Resolved], models: list[RequestedModel], guest: RemoteImage | None) -> None:
        needed = sum(self._missing_bytes(self._archive(each), archive_size(each)) for each in images)
        for model in models:
            needed += sum(self._missing_bytes(self._path(model, file), file.bytes) for file in _files(model))
        if guest:  # as `download` names them
            image = self._folder / "images" / f"{guest.sha256}.img"
            needed += self._missing_bytes(image, guest.bytes or 0, image.with_suffix(".part"))
        free = shutil.disk_usage(self._folder).free
        if needed + _SPARE_BYTES > free:
            what = f"{about(needed)} are still to come, and {visible(str(self._folder))} has {about(free)} left"
            raise UsageError("NoRoom", what=what, hint="Free some, or name a folder on another disk with -o")

    def _missing_bytes(self, path: Path, size: Bytes, part: Path | None = None) -> Bytes:
        """Return the number of bytes that are still missing. part: the partial file."""
        target_folder = [each.stat().st_size for each in (path, part or _part_path(path)) if each.is_file()]
        return max(0, size - max(target_folder, default=0))

    # ---- images of containers

    def _archive(self, found: Resolved) -> Path:
        name = re.sub(r"[^a-z0-9.-]", "-", found.name.repository)[-80:].strip("-.")
        return self._folder / "containers" / f"{name}-{found.digest[7:19]}.tar"

    def _image(self, wanted: RequestedImage, found: Resolved) -> None:
        path = self._archive(found)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _part_path(path)
        if path.is_file():
            path.replace(part)  # its layers are checked again
        credentials = SecretRef.parse(wanted.credentials).resolve() if wanted.credentials else None
        registry = Registry(ImageName.parse(wanted.name), credentials)
        write_archive(registry, found, part, lambda done, whole: self._report(found.name.repository, done, whole))
        copied = self._copied(path, part.stat().st_size, sha256_of(part))
        part.replace(path)
        self._offline_images[wanted.name] = OfflineImage(
            f"{self._target_folder}/{copied.path}", copied.sha256, archive_name(found)
        )

    def add_archive(self, pinned: str, image: OfflineImage, plan_folder: Path) -> None:
        """Add an image that the plan takes from an archive next to it. Raises UsageError: ArchiveNotBeside."""
        name = PurePosixPath(image.archive).name
        path = self._folder / "containers" / name
        source = next(
            (each for each in (plan_folder / name, path) if each.is_file() and sha256_of(each) == image.sha256), None
        )
        if source is None:
            what = f"{visible(name)}, from which the plan takes {visible(pinned)}, is not beside the plan"
            raise UsageError(
                "ArchiveNotBeside", what=what, hint=f"Put it at {visible(str(plan_folder))}, as it was planned"
            )
        if source != path:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, _part_path(path))
            _part_path(path).replace(path)
        copied = self._copied(path, path.stat().st_size, image.sha256)
        self._offline_images[pinned] = replace(image, archive=f"{self._target_folder}/{copied.path}")

    # ---- models

    def _model_folder(self, model: RequestedModel) -> Path:
        if model.revision is None:  # its files have paths of their own
            return self._folder / model.folder
        name = "--".join(urlsplit(model.source).path.strip("/").split("/")[-2:])
        return self._folder / "models" / re.sub(r"[^A-Za-z0-9._-]", "-", name) / model.revision

    def _path(self, model: RequestedModel, file: "_File") -> Path:
        return self._model_folder(model).joinpath(*PurePosixPath(file.path).parts)

    def _model(self, model: RequestedModel) -> None:
        name, open_from = _model_opener(model)
        files = list(_files(model))
        total, done = sum(file.bytes for file in files), 0
        for file in files:
            path = self._path(model, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not (path.is_file() and file.is_in(path)):
                self._download_file(open_from, file, path, name, done, total)
            done += file.bytes
            self._copied(path, file.bytes, file.digest if file.kind == "sha256" else sha256_of(path))
        folder = self._model_folder(model).relative_to(self._folder).as_posix()
        self._offline_models[f"{model.source}@{model.revision}"] = f"{self._target_folder}/{folder}"

    def _download_file(
        self, open_from: OpenFrom, file: "_File", path: Path, name: str, done: Bytes, total: Bytes
    ) -> None:
        part = _part_path(path)
        with part.open("r+b" if part.exists() else "w+b") as target:
            present = min(part.stat().st_size, file.bytes)
            try:
                resume_download(
                    target,
                    0,
                    present,
                    file.bytes,
                    lambda offset: open_from(file.path, offset),
                    lambda offset, _: self._report(name, done + offset, total),
                )
            except NotAnswered as error:
                reason = f"{visible(name)}: {visible(file.path)}: the hub {error}"
                raise _not_downloaded_error(reason, "Run the command again: it goes on where this ended") from None
            target.truncate(file.bytes)
        if not file.is_in(part):
            part.unlink()
            reason = f"{visible(name)}: {visible(file.path)} came with another hash"
            raise _not_downloaded_error(reason, "Run the command again; if it stays so, do not use this hub")
        part.replace(path)

    # ---- packages

    def packages(self, sources: Iterable[PackageSource], wanted: Iterable[str], machine: str) -> tuple[str, ...]:
        """Collect packages for apt's cache. Returns those that no source has. Raises as `fetch_signed_lists` does,
        OSError.
        """
        remaining = dict.fromkeys(wanted)
        for source in sources:
            for each in fetch_signed_lists(source, remaining, machine).packages if remaining else ():
                self._package(each, self._folder / "packages" / each.cached_as)
                remaining.pop(f"{each.name}={each.version}", None)
        return tuple(remaining)

    def add_apt_source(
        self, name: str, uri: str, source: PackageSource, wanted: Iterable[str], machine: str
    ) -> frozenset[str]:
        """Collect a package source of the plan as a folder that apt can read, with its signed lists and the requested
        packages. Returns these. uri: as in the plan. Raises as `fetch_signed_lists` does, OSError.
        """
        lists, folder = fetch_signed_lists(source, tuple(wanted), machine), self._folder / "apt" / name
        below = "" if source.suite.endswith("/") else f"dists/{source.suite}/"
        for path, data in lists.files.items():
            file = folder / f"{below}{path}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            self._copied(file, len(data), hashlib.sha256(data).hexdigest())
        for each in lists.packages:
            self._package(each, folder.joinpath(*PurePosixPath(each.path).parts))
        self._offline_sources[f"{uri} {source.suite}"] = f"file:{self._target_folder}/apt/{name}"
        return frozenset(f"{each.name}={each.version}" for each in lists.packages)

    def _package(self, package: PackageFile, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _File("sha256", package.sha256, package.bytes, path.name)
        if not (path.is_file() and file.is_in(path)):
            self._download_file(lambda _, at: _open_from(package.url, at), file, path, package.name, 0, package.bytes)
        self._copied(path, package.bytes, package.sha256)

    def _copied(self, path: Path, size: Bytes, sha256: str) -> CopiedFile:
        copied = CopiedFile(path.relative_to(self._folder).as_posix(), size, sha256)
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
        with path.open("rb") as content:  # the SHA-1 of a git blob covers a header and the content
            start = hashlib.sha1(b"blob %d\0" % self.bytes)  # noqa: S324
            return file_digest(content, lambda: start).hexdigest() == self.digest


def _files(model: RequestedModel) -> Iterator[_File]:
    for line in model.files:
        match = _FILE.fullmatch(line)
        path = PurePosixPath(match[4]) if match else PurePosixPath()
        is_outside = path.is_absolute() or not path.parts or any(part in ("..", ".winhost") for part in path.parts)
        if match is None or is_outside or "\\" in line or ":" in match[4] or not line.isprintable():
            why = f"'{visible(line[:200])}' is no file of a model"
            raise _not_downloaded_error(why, "Make the plan again: winhost plan HOST")
        yield _File(match[1], match[2], int(match[3]), match[4])


def _model_opener(model: RequestedModel) -> tuple[str, OpenFrom]:
    if model.revision is None:
        return urlsplit(model.source).netloc, lambda path, at: _open_from(f"{model.source}/{quote(path)}", at)
    parts = urlsplit(model.source)
    *below, organization, name = ["", *parts.path.strip("/").split("/")]  # an address ends with ORG/NAME
    hub = f"{parts.scheme}://{parts.netloc}{''.join(f'/{each}' for each in below if each)}"
    token = SecretRef.parse(model.token).resolve() if model.token else None
    full = f"{organization}/{name}".strip("/")
    return full, HubRepository(full, model.revision, hub, token).open_from


def _open_from(url: str, at: Bytes) -> AbstractContextManager[OpenAnswer]:
    return open_url(url, headers={"Range": f"bytes={at}-"} if at else {})


def _part_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _not_downloaded_error(why: str, hint: str) -> WinhostError:
    return WinhostError("NotBrought", what=why, hint=hint)
