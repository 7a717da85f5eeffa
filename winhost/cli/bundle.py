"""winhost bundle: a plan as files for a person to run."""

import shutil
import subprocess
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from winhost.bundle.bundle_files import SUMS, facts_bundle, sums
from winhost.bundle.bundle_files import bundle as render
from winhost.cli.envelope import show_results
from winhost.cli.named_files import the_file
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.watch import watching
from winhost.core.dataclass import dataclass
from winhost.engine.disk_images import made_disk, pinned_image, told
from winhost.engine.planfile import read_plan
from winhost.engine.planning import CheckedPlan
from winhost.engine.uploads import attachment_of
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.plan import Plan
from winhost.paths.dual_boot import DualBootSettings


@dataclass(frozen=True)
class Bundled:
    """A bundle. sha256sums: the SHA-256 of its list of checksums."""

    folder: str
    files: tuple[str, ...]
    sha256sums: str


def bundle(plan_file: Path | None, signing: tuple[str, ...], output: Output) -> int:
    checked = None if plan_file is None else read_plan(the_file(plan_file, Plan))
    if checked is not None:
        _refuse_installing(checked)
    disks = {} if plan_file is None or checked is None else _disks(checked, plan_file.parent)
    files = facts_bundle() if checked is None else render(checked.plan, brought=frozenset(disks))
    if signing and not any(name.endswith(".ps1") for name in files):
        hint = "What runs on a Linux is known by its checksums: leave --sign-with out."
        raise UsageError("NothingToSign", what="this bundle has no PowerShell scripts to sign", hint=hint)
    folder = output.required_path
    written = _write(folder, files, signing, disks)
    digest = sha256(written[SUMS]).hexdigest()

    def show(made: Bundled) -> None:
        say(f"Written to {folder}: {', '.join((*made.files, *disks))}")
        say(f"Checksum of {SUMS}, to compare on the host: {digest}")

    show_results("bundle", output.shape, [(str(folder), Bundled(str(folder), tuple(sorted(written)), digest))], show)
    return 0


def _refuse_installing(checked: CheckedPlan) -> None:
    """Raises UsageError (NotByHand): the settings of an installer are made only when it starts, and nobody could hand
    them out.
    """
    settings = checked.request.playbook.parsed_settings
    if isinstance(settings, DualBootSettings) and settings.system is not None:
        raise UsageError(
            "NotByHand",
            what=f"the plan for {visible(checked.host)} installs Ubuntu, whose settings are made at that moment",
            meaning="They hold the host key of the new system, which lies in no file.",
            hint="By hand: plan without system, and bundle that; then winhost install plan and winhost install media",
            host=checked.host,
        )


def _disks(checked: CheckedPlan, folder: Path) -> dict[str, Path]:
    """The disk of a new VM by its name, made from its image, since the user has no other way to make it. Raises as
    `guest_disk`.
    """
    pinned = pinned_image(checked.request)
    steps = [attachment for attachment in map(attachment_of, checked.plan.steps) if attachment and pinned]
    with watching() as watch:
        return {
            each.name: made_disk(pinned, lambda *done: watch(told(checked.host, *done)), folder).path
            for each in steps
            if pinned is not None and each.sha256 == pinned.disk_sha256
        }


def _write(
    output: Path, files: Mapping[str, bytes], signing: tuple[str, ...], disks: Mapping[str, Path]
) -> dict[str, bytes]:
    """Make the whole folder or nothing. Returns its content. Raises WinhostError: InTheWay, NotSigned."""
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
        error.filename = str(output)  # as it was named
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
        done = subprocess.run(  # noqa: S603 - the user's own command, and no shell
            [*command, str(script)], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise _not_signed(script.name, command[0], str(error)) from error
    if done.returncode != 0:
        message = (done.stderr or done.stdout).strip() or f"exit {done.returncode}"
        raise _not_signed(script.name, command[0], message)


def _not_signed(script: str, command: str, output: str) -> WinhostError:
    return WinhostError(
        "NotSigned",
        what=f"{script} was not signed: {visible(command)} failed",
        meaning="\n".join(map(visible, output.splitlines())),
        hint="No bundle was made. "
        "The command gets the script's path as its last argument and changes the file in place.",
    )
