"""winhost bundle and fetch: write a plan as scripts that a person runs, and collect its downloads for a host without a
network.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from filelock import FileLock, Timeout

from winhost.bundle.bundle_files import SUMS, facts_bundle, sums
from winhost.bundle.bundle_files import bundle as render
from winhost.cli.change.commands import FetchOptions
from winhost.cli.envelope import show_results
from winhost.cli.errors import from_os_error
from winhost.cli.named_files import single_file
from winhost.cli.options import Output
from winhost.cli.output import say, show_next
from winhost.cli.tables import table
from winhost.cli.watch import show_progress
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.engine.disk_images import disk_progress, make_disk, pinned_image
from winhost.engine.offline_copies import use_copies_in_plan
from winhost.engine.planfile import read_plan
from winhost.engine.planning import CheckedPlan
from winhost.engine.uploads import attachment_of
from winhost.images.download import RemoteImage
from winhost.model.documents import write_document
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import write_whole
from winhost.model.plan import Plan
from winhost.model.units import Bytes, about
from winhost.offline.collection import Collection, CopiedFile, RequestedImage, RequestedModel
from winhost.offline.package_archive import PackageSource, package_sources
from winhost.paths.dual_boot import DualBootSettings
from winhost.paths.playbook import REFERENCE


@dataclass(frozen=True)
class Bundled:
    """A bundle. sha256sums: the SHA-256 of its list of checksums."""

    folder: str
    files: tuple[str, ...]
    sha256sums: str


def bundle(plan_file: Path | None, signing: tuple[str, ...], output: Output) -> int:
    checked = None if plan_file is None else read_plan(single_file(plan_file, Plan))
    if checked is not None:
        _refuse_installing(checked)
    disks = {} if plan_file is None or checked is None else _disks(checked, plan_file.parent)
    files = facts_bundle() if checked is None else render(checked.plan, included=frozenset(disks))
    if signing and not any(name.endswith(".ps1") for name in files):
        hint = "What runs on a Linux is known by its checksums: leave --sign-with out."
        raise UsageError("NothingToSign", what="this bundle has no PowerShell scripts to sign", hint=hint)
    folder = output.required_path
    contents = _write(folder, files, signing, disks)
    digest = sha256(contents[SUMS]).hexdigest()

    def show(bundled: Bundled) -> None:
        say(f"Written to {folder}: {', '.join((*bundled.files, *disks))}")
        say(f"Checksum of {SUMS}, to compare on the host: {digest}")

    return show_results(
        "bundle", output.shape, [(str(folder), Bundled(str(folder), tuple(sorted(contents)), digest))], show
    )


def _refuse_installing(checked: CheckedPlan) -> None:
    """Raise UsageError (NotByHand) for a plan that installs Ubuntu: winhost makes and serves the installer's settings
    only when the installer starts.
    """
    settings = checked.request.playbook.parsed_settings
    if isinstance(settings, DualBootSettings) and settings.system is not None:
        raise UsageError(
            "NotByHand",
            what=f"the plan for {visible(checked.host)} installs Ubuntu, whose settings are made at that moment",
            meaning="They contain the host key of the new system, which is in no file.",
            hint="By hand: plan without system, and bundle that; then winhost install plan and winhost install media",
            host=checked.host,
        )


def _disks(checked: CheckedPlan, folder: Path) -> dict[str, Path]:
    """Make the disk of a new VM from its image, which a user cannot do by hand. Raises as `guest_disk` does."""
    pinned = pinned_image(checked.request)
    attachments = [attachment for attachment in map(attachment_of, checked.plan.steps) if attachment and pinned]
    with show_progress() as watch:
        return {
            each.name: make_disk(pinned, lambda *done: watch(disk_progress(checked.host, *done)), folder).path
            for each in attachments
            if pinned is not None and each.sha256 == pinned.disk_sha256
        }


def _write(
    output: Path, files: Mapping[str, bytes], signing: tuple[str, ...], disks: Mapping[str, Path]
) -> dict[str, bytes]:
    """Create the whole folder or nothing, and return the contents of its files. Raises WinhostError: InTheWay,
    NotSigned.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(
            "InTheWay",
            what=f"{visible(str(output))} is there already and is not an empty folder",
            hint="Name another folder with -o",
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        staging = TemporaryDirectory(dir=output.parent, prefix=".bundle-")
    except OSError as error:
        error.filename = str(output)  # as the user named it
        raise
    with staging as temporary:
        folder = Path(temporary) / "bundle"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        for script in sorted(folder.glob("*.ps1")) if signing else ():
            _sign(signing, script)
        final = {name: (folder / name).read_bytes() for name in files}
        final[SUMS] = sums(final)
        (folder / SUMS).write_bytes(final[SUMS])
        for name, disk in disks.items():
            shutil.copyfile(disk, folder / name)
        if output.exists():
            output.rmdir()
        folder.rename(output)
    return final


def _sign(command: tuple[str, ...], script: Path) -> None:
    try:
        result = subprocess.run(  # noqa: S603 - the user's own command, and no shell
            [*command, str(script)], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise _signing_error(script.name, command[0], str(error)) from error
    if result.returncode != 0:
        message = (result.stderr or result.stdout).strip() or f"exit {result.returncode}"
        raise _signing_error(script.name, command[0], message)


def _signing_error(script: str, command: str, output: str) -> WinhostError:
    return WinhostError(
        "NotSigned",
        what=f"{script} was not signed: {visible(command)} failed",
        meaning="\n".join(map(visible, output.splitlines())),
        hint="No bundle was made. "
        "The command gets the script's path as its last argument and changes the file in place.",
    )


_PLAN, _SUMS, _LOCK = "plan.json", "SHA256SUMS", "fetch.lock"
_URL_SCHEMES = ("https://", "http://")


@dataclass(frozen=True)
class FetchedFolder:
    """The filled folder. there: its path on the Linux that serves; packages: packages that the plan installs and that
    were not fetched; not_known: titles of downloads that a later stage of the plan decides.
    """

    folder: str
    there: str
    files: tuple[CopiedFile, ...]
    packages: tuple[str, ...]
    not_known: tuple[str, ...]


def fetch(options: FetchOptions, output: Output) -> int:
    if re.fullmatch(r"(/[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*)+/?", options.there) is None:
        raise click.BadParameter("should be a path such as /srv/winhost-offline", param_hint="'--there'")
    if options.archive and not options.release:
        raise click.UsageError("--archive is a mirror of that of a release: name that with --release")
    source = single_file(options.plan_file, Plan)
    checked = read_plan(source)
    folder = output.required_path
    if folder.exists() and not (folder.is_dir() and ((folder / _LOCK).exists() or not any(folder.iterdir()))):
        what = f"{visible(str(folder))} is there already, and was not made by winhost fetch"
        raise UsageError("NotFetched", what=what, hint="Name another folder with -o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / _LOCK, timeout=0):
            fetched = _fill(checked, source.parent, folder, options)
    except Timeout:
        hint = "Wait for that one to end"
        raise UsageError(
            "BeingFetched", what=f"{visible(str(folder))} is being filled by another winhost", hint=hint
        ) from None
    except OSError as error:
        raise from_os_error(error) from error
    return show_results("fetched", output.shape, [(str(folder), fetched)], _show)


def _fill(checked: CheckedPlan, plan_folder: Path, folder: Path, options: FetchOptions) -> FetchedFolder:
    saved = checked.plan.request.offline.images if checked.plan.request.offline else {}
    images = [
        RequestedImage(key["image"], desired.get("credentials"))
        for key, desired in _desired_states(checked, "ContainerImage")
        if desired.get("present") and not desired.get("archive") and key["image"] not in saved
    ]
    models = [
        RequestedModel(desired["source"], desired["revision"], tuple(desired["files"]), desired.get("token"))
        for _, desired in _desired_states(checked, "ModelFiles")
        if str(desired.get("source")).startswith(_URL_SCHEMES)
    ]
    models += [
        RequestedModel(desired["source"], None, tuple(desired["wheels"]))
        for _, desired in _desired_states(checked, "PythonVenv")
        if str(desired.get("source")).startswith(_URL_SCHEMES)
    ]
    for _, desired in _desired_states(checked, "ReleaseFile"):
        source, _, name = str(desired.get("source")).rpartition("/")
        if source.startswith(_URL_SCHEMES):
            line = f"sha256:{desired['sha256']} {desired['bytes']} {name}"
            models.append(RequestedModel(source, None, (line,), folder="releases"))
    pinned, guest = pinned_image(checked.request), None
    if pinned is not None and pinned.place.startswith(_URL_SCHEMES):
        guest = RemoteImage(pinned.place, pinned.sha256, pinned.bytes)
    with show_progress() as watch:
        collection = Collection(folder, options.there, lambda *done: watch(disk_progress(checked.host, *done)))
        with watch.activity(checked.host, "asking registries and hubs"):
            collection.collect(images, models, guest, options.platform)
            for name, image in saved.items():
                collection.add_archive(name, image, plan_folder)
            packages = tuple(dict.fromkeys(_planned_packages(checked)))
            if options.release:
                packages = _fetch_packages(collection, checked, packages, options)
    files = [*collection.copied, *_copy_attachments(checked, plan_folder, folder)]
    plan = folder / _PLAN
    write_whole(plan, [write_document(use_copies_in_plan(checked.plan, collection.offline))])
    files.append(_file_entry(plan, folder))
    write_whole(folder / _SUMS, [f"{each.sha256}  {each.path}\n" for each in files])
    return FetchedFolder(str(folder), options.there, tuple(files), packages, tuple(_open_downloads(checked)))


def _fetch_packages(
    collection: Collection, checked: CheckedPlan, packages: tuple[str, ...], options: FetchOptions
) -> tuple[str, ...]:
    """Collect packages and return those that were not found. Packages of a source in the plan get a folder of their
    own, the others go into the folder for apt's cache.
    """
    collected, machine = set[str](), options.platform.partition("/")[2]
    for key, desired in _desired_states(checked, "AptSource"):
        uri, suite = str(desired.get("uri")), str(desired.get("suite"))
        if desired.get("present") and uri.startswith(_URL_SCHEMES):
            base, keys = uri.replace("$(ARCH)", machine), (str(desired["key"]).encode("ascii"),)
            source = PackageSource(base, suite, tuple(desired.get("components") or ()), keys)
            collected |= collection.add_apt_source(key["name"], uri, source, packages, machine)
    remaining = [each for each in packages if each not in collected]
    return collection.packages(package_sources(str(options.release), options.archive), remaining, machine)


def _copy_attachments(checked: CheckedPlan, plan_folder: Path, folder: Path) -> list[CopiedFile]:
    """Copy the plan's attachments from its folder. The disk of a new VM is not copied, but made from its image
    later.
    """
    copied: list[CopiedFile] = []
    for name in dict.fromkeys(each.name for each in filter(None, map(attachment_of, checked.plan.steps))):
        if (plan_folder / name).is_file():
            if plan_folder.resolve() != folder.resolve():
                shutil.copyfile(plan_folder / name, folder / name)
            copied.append(_file_entry(folder / name, folder))
    return copied


def _file_entry(path: Path, folder: Path) -> CopiedFile:
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    return CopiedFile(path.relative_to(folder).as_posix(), path.stat().st_size, digest)


def _show(fetched: FetchedFolder) -> None:
    table(("file", "size"), [(each.path, _size(each.bytes)) for each in fetched.files])
    count, total = len(fetched.files), _size(sum(each.bytes for each in fetched.files))
    say(f"{count} file{'s' * (count != 1)}, {total} in all, checked by their hashes.")
    if fetched.packages:
        packages = ", ".join(fetched.packages)
        say(f"Not fetched: {len(fetched.packages)} packages. That Linux needs a source of them: {packages}", hang=2)
    if any(each.path.startswith("packages/") for each in fetched.files):
        say(f"Where apt looks for them first: cp {fetched.there}/packages/*.deb /var/cache/apt/archives/", hang=2)
    for each in fetched.not_known:
        say(f"Not known yet, and not fetched: {each}. Plan again after that stage, and fetch again.", hang=2)
    say(f"On the Linux that serves, copy the folder to {fetched.there} and check it: sha256sum --quiet -c {_SUMS}")
    show_next(("apply", str(Path(fetched.folder, _PLAN))))


def _size(bytes_: Bytes) -> str:
    return about(bytes_) if bytes_ >= 10**7 else f"{bytes_:,} bytes"


# ---- the downloads of a plan, in all its stages

_DOWNLOADED_RESOURCES = ("ContainerImage", "ModelFiles", "ReleaseFile")


DesiredState = tuple[Mapping[str, str], Mapping[str, Json]]
"""Key and desired state."""


def _desired_states(checked: CheckedPlan, resource: str) -> tuple[DesiredState, ...]:
    """Return every desired state of this resource type once: those of the planned stages, and those of the playbook,
    which later stages use, unless they refer to values that are not known yet.
    """
    stages = [each for stage in checked.plan.stages for each in stage.desired if each.resource == resource]
    entries = [each for each in checked.request.playbook.resources if each.resource == resource]
    states: list[DesiredState] = []
    for key, desired in (
        *((each.key, each.desired) for each in stages),
        *((each.key, each.desired) for each in entries),
    ):
        if not REFERENCE.search(f"{key}{desired}") and (key, desired) not in states:
            states.append((key, desired))
    return tuple(states)


def _open_downloads(checked: CheckedPlan) -> Iterator[str]:
    """Yield the titles of downloads that a later stage decides."""
    for deferred in checked.plan.deferred:
        entries = [each for each in checked.request.playbook.resources if each.resource == deferred.resource]
        if deferred.resource in _DOWNLOADED_RESOURCES and any(
            REFERENCE.search(f"{each.key}{each.desired}") for each in entries
        ):
            yield f"{deferred.title} ({deferred.resource})"


def _planned_packages(checked: CheckedPlan) -> Iterator[str]:
    """Yield the packages that the plan installs from the package sources of the Linux that serves, as NAME=VERSION."""
    for step in checked.plan.steps:
        if step.resource == "DebianPackage" and step.desired.get("version"):
            yield f"{step.key['package']}={step.desired['version']}"
        if step.resource == "AptPackages" and step.role == "desired":
            for line in (*(step.before.get("to_add") or ()), *(step.before.get("to_change") or ())):
                fields = str(line).split()  # NAME VERSION, or NAME OLD -> NEW
                yield f"{fields[0]}={fields[-1]}" if len(fields) > 1 else str(line)
