"""winhost fetch: collect what a plan downloads, in a folder for a host without a network."""

import re
import shutil
from collections.abc import Iterator, Mapping
from hashlib import file_digest
from pathlib import Path

import click
from filelock import FileLock, Timeout

from winhost.cli.commands.change import FetchOptions
from winhost.cli.envelope import show_results
from winhost.cli.errors import from_os_error
from winhost.cli.named_files import the_file
from winhost.cli.output import say, show_next
from winhost.cli.outputs import Output
from winhost.cli.tables import table
from winhost.cli.watch import watching
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.engine.disk_images import pinned_image, told
from winhost.engine.offline_copies import plan_from_copies
from winhost.engine.planfile import read_plan
from winhost.engine.planning import CheckedPlan
from winhost.engine.uploads import attachment_of
from winhost.images.download import RemoteImage
from winhost.model.documents import write_document
from winhost.model.errors import UsageError, visible
from winhost.model.files import write_whole
from winhost.model.plan import Plan
from winhost.model.units import Bytes, about
from winhost.offline.collection import Collection, Copied, WantedImage, WantedModel
from winhost.offline.package_archive import PackageSource, sources_of
from winhost.paths.playbook import REFERENCE

_PLAN, _SUMS, _LOCK = "plan.json", "SHA256SUMS", "fetch.lock"


@dataclass(frozen=True)
class FetchedFolder:
    """The filled folder. there: its path on the Linux that serves; packages: those that the plan installs and that were
    not fetched; not_known: what a later stage of the plan decides.
    """

    folder: str
    there: str
    files: tuple[Copied, ...]
    packages: tuple[str, ...]
    not_known: tuple[str, ...]


def fetch(asked: FetchOptions, output: Output) -> int:
    if re.fullmatch(r"(/[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*)+/?", asked.there) is None:
        raise click.BadParameter("should be a path such as /srv/winhost-offline", param_hint="'--there'")
    if asked.archive and not asked.release:
        raise click.UsageError("--archive is a mirror of that of a release: name that with --release")
    source = the_file(asked.plan_file, Plan)
    checked = read_plan(source)
    folder = output.required_path
    _check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / _LOCK, timeout=0):
            fetched = _filled(checked, source.parent, folder, asked)
    except Timeout:
        hint = "Wait for that one to end"
        raise UsageError(
            "BeingFetched", what=f"{visible(str(folder))} is being filled by another winhost", hint=hint
        ) from None
    except OSError as error:
        raise from_os_error(error) from error
    return show_results("fetched", output.shape, [(str(folder), fetched)], _show)


def _check_folder(folder: Path) -> None:
    """Raises UsageError (NotFetched) for a folder with something else in it."""
    if folder.exists() and not (folder.is_dir() and ((folder / _LOCK).exists() or not any(folder.iterdir()))):
        what = f"{visible(str(folder))} is there already, and was not made by winhost fetch"
        raise UsageError("NotFetched", what=what, hint="Name another folder with -o")


def _filled(checked: CheckedPlan, beside: Path, folder: Path, asked: FetchOptions) -> FetchedFolder:
    saved = checked.plan.request.offline.images if checked.plan.request.offline else {}
    images = [
        WantedImage(key["image"], desired.get("credentials"))
        for key, desired in _wanted_of(checked, "ContainerImage")
        if desired.get("present") and not desired.get("archive") and key["image"] not in saved
    ]
    models = [
        WantedModel(desired["source"], desired["revision"], tuple(desired["files"]), desired.get("token"))
        for _, desired in _wanted_of(checked, "ModelFiles")
        if str(desired.get("source")).startswith(("https://", "http://"))
    ]
    models += [
        WantedModel(desired["source"], None, tuple(desired["wheels"]))
        for _, desired in _wanted_of(checked, "PythonVenv")
        if str(desired.get("source")).startswith(("https://", "http://"))
    ]
    models += [*_releases(checked)]
    with watching() as watch:
        collection = Collection(folder, asked.there, lambda *done: watch(told(checked.host, *done)))
        with watch.at(checked.host, "asking registries and hubs"):
            collection.collect(images, models, _guest(checked), asked.platform)
            for name, image in saved.items():
                collection.keep(name, image, beside)
            packages = tuple(dict.fromkeys(_packages_of(checked)))
            if asked.release:
                packages = _packages(collection, checked, packages, asked)
    copied = [*collection.copied, *_attachments(checked, beside, folder)]
    plan = folder / _PLAN
    write_whole(plan, [write_document(plan_from_copies(checked.plan, collection.offline))])
    copied.append(_copied(plan, folder))
    write_whole(folder / _SUMS, [f"{each.sha256}  {each.path}\n" for each in copied])
    return FetchedFolder(str(folder), asked.there, tuple(copied), packages, tuple(_not_known_yet(checked)))


def _releases(checked: CheckedPlan) -> Iterator[WantedModel]:
    for _, desired in _wanted_of(checked, "ReleaseFile"):
        source, _, name = str(desired.get("source")).rpartition("/")
        if source.startswith(("https://", "http://")):
            line = f"sha256:{desired['sha256']} {desired['bytes']} {name}"
            yield WantedModel(source, None, (line,), folder="releases")


def _packages(
    collection: Collection, checked: CheckedPlan, wanted: tuple[str, ...], asked: FetchOptions
) -> tuple[str, ...]:
    """Collect packages and return the missing ones. A plan's own source becomes a folder, the others apt's cache."""
    found, machine = set[str](), asked.platform.partition("/")[2]
    for key, desired in _wanted_of(checked, "AptSource"):
        uri, suite = str(desired.get("uri")), str(desired.get("suite"))
        if desired.get("present") and uri.startswith(("https://", "http://")):
            base, keys = uri.replace("$(ARCH)", machine), (str(desired["key"]).encode("ascii"),)
            source = PackageSource(base, suite, tuple(desired.get("components") or ()), keys)
            found |= collection.own_source(key["name"], uri, source, wanted, machine)
    left = [each for each in wanted if each not in found]
    return collection.packages(sources_of(str(asked.release), asked.archive), left, machine)


def _guest(checked: CheckedPlan) -> RemoteImage | None:
    pinned = pinned_image(checked.request)
    if pinned is None or not pinned.place.startswith(("https://", "http://")):
        return None
    return RemoteImage(pinned.place, pinned.sha256, pinned.bytes)


def _attachments(checked: CheckedPlan, beside: Path, folder: Path) -> list[Copied]:
    """Copy files that lie beside the plan, where winhost looks for them again. The disk of a new VM is made from its
    image.
    """
    copied: list[Copied] = []
    for name in dict.fromkeys(each.name for each in filter(None, map(attachment_of, checked.plan.steps))):
        if (beside / name).is_file():
            if beside.resolve() != folder.resolve():
                shutil.copyfile(beside / name, folder / name)
            copied.append(_copied(folder / name, folder))
    return copied


def _copied(path: Path, folder: Path) -> Copied:
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    return Copied(path.relative_to(folder).as_posix(), path.stat().st_size, digest)


def _show(fetched: FetchedFolder) -> None:
    table(("file", "size"), [(each.path, _size(each.bytes)) for each in fetched.files])
    count, whole = len(fetched.files), _size(sum(each.bytes for each in fetched.files))
    say(f"{count} file{'s' * (count != 1)}, {whole} in all, checked by their hashes.")
    if fetched.packages:
        named = ", ".join(fetched.packages)
        say(f"Not fetched: {len(fetched.packages)} packages. That Linux needs a source of them: {named}", hang=2)
    if any(each.path.startswith("packages/") for each in fetched.files):
        say(f"Where apt looks for them first: cp {fetched.there}/packages/*.deb /var/cache/apt/archives/", hang=2)
    for each in fetched.not_known:
        say(f"Not known yet, and not fetched: {each}. Plan again after that stage, and fetch again.", hang=2)
    say(f"On the Linux that serves, put the folder to {fetched.there} and check it: sha256sum --quiet -c {_SUMS}")
    show_next(("apply", str(Path(fetched.folder, _PLAN))))


def _size(bytes_: Bytes) -> str:
    return about(bytes_) if bytes_ >= 10**7 else f"{bytes_:,} bytes"


# ---- what a plan downloads, for now or for a later stage

_TAKEN = ("ContainerImage", "ModelFiles", "ReleaseFile")


Wanted = tuple[Mapping[str, str], Mapping[str, Json]]
"""Key and desired state."""


def _wanted_of(checked: CheckedPlan, resource: str) -> tuple[Wanted, ...]:
    """Every desired state of this resource once: from the stages, and from the playbook for later ones."""
    stages = [each for stage in checked.plan.stages for each in stage.desired if each.resource == resource]
    named = [each for each in checked.request.playbook.resources if each.resource == resource]
    wanted: list[Wanted] = []
    for key, desired in (*((each.key, each.desired) for each in stages), *((each.key, each.desired) for each in named)):
        if not REFERENCE.search(f"{key}{desired}") and (key, desired) not in wanted:
            wanted.append((key, desired))
    return tuple(wanted)


def _not_known_yet(checked: CheckedPlan) -> Iterator[str]:
    """The titles of what a later stage decides."""
    for deferred in checked.plan.deferred:
        named = [each for each in checked.request.playbook.resources if each.resource == deferred.resource]
        if deferred.resource in _TAKEN and any(REFERENCE.search(f"{each.key}{each.desired}") for each in named):
            yield f"{deferred.title} ({deferred.resource})"


def _packages_of(checked: CheckedPlan) -> Iterator[str]:
    """The packages that the plan installs from the sources of that Linux."""
    for step in checked.plan.steps:
        if step.resource == "DebianPackage" and step.desired.get("version"):
            yield f"{step.key['package']}={step.desired['version']}"
        if step.resource == "AptPackages" and step.role == "desired":
            listed = [*(step.before.get("to_add") or ()), *(step.before.get("to_change") or ())]
            yield from (_package(str(each)) for each in listed)


def _package(line: str) -> str:
    """`NAME VERSION` or `NAME OLD -> NEW`, as apt names it."""
    words = line.split()
    return f"{words[0]}={words[-1]}" if len(words) > 1 else line
