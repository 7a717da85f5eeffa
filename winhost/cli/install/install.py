"""winhost install: plan an installation and list the data that is lost, make its media, and start them by a BMC."""

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.autoinstall.facts_manifest import (
    authorities_of,
    keeps_local_time,
    machine_of,
    manifest_of_facts,
    read_whole_disks,
    windows_esp_of,
)
from winhost.autoinstall.guard_order import Scheme, WholeDisk
from winhost.autoinstall.install_plan import (
    ON_MEDIUM,
    InstallPlan,
    NewSystem,
    format_install_plan,
    install_document,
    new_host_key,
    next_steps,
    read_install_plan,
    settings_to_fetch,
)
from winhost.autoinstall.medium_files import (
    SHIM,
    MediumFile,
    copy_out,
    files_with_settings,
    files_without_settings,
    read_from_image,
    remaster,
    staged_files,
    staging_size,
)
from winhost.autoinstall.settings_server import InstallEvent, InstallProgress, offer_settings, receive_progress
from winhost.autoinstall.shim_signers import check_starts
from winhost.autoinstall.virtual_media import Bmc, bmc_session
from winhost.cli.envelope import show_results
from winhost.cli.errors import os_errors, read_option_file, secret_reference, usage_errors
from winhost.cli.install.commands import BmcOptions, InstallOptions, MediaOptions
from winhost.cli.live_hosts import read_live
from winhost.cli.named_files import single_file
from winhost.cli.named_hosts import resolve_hosts
from winhost.cli.options import Output
from winhost.cli.output import refuse_other_kind, say, show_command
from winhost.cli.plan.options import FleetKeys
from winhost.cli.watch import show_progress
from winhost.compat.assess import judge
from winhost.connect.host_keys import fetch_host_key
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.engine.planning import format_reason
from winhost.images.guest_disk import image_cache
from winhost.images.ubuntu_releases import MEDIA_MIRROR, InstallerRelease
from winhost.model.documents import write_document
from winhost.model.errors import Exit, RefusedError, UsageError, visible
from winhost.model.facts import Facts
from winhost.model.files import TooLarge, read_within, write_whole
from winhost.model.fleet import LinuxHost
from winhost.model.reason import Severity, Verdict
from winhost.model.units import KiB, size
from winhost.paths.setting_values import public_key
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts, other_system_error

if TYPE_CHECKING:
    from winhost.engine.keys import SshKey


@dataclass(frozen=True)
class PlannedInstall:
    """The plan for people. writes: the partition or the disks that the installer writes to; lost: the partitions that
    it deletes; heed: reasons of the verdict; then: the steps after the new system has started.
    """

    file: str
    host: str
    writes: tuple[str, ...]
    lost: tuple[str, ...]
    heed: tuple[str, ...]
    then: tuple[str, ...]


def plan(facts: Path, options: InstallOptions, force: bool, output: Output) -> int:
    host, disks, keys = HostFacts(read_facts(single_file(facts, Facts))), options.disks, options.keys
    refuse_other_kind(output.required_path, "install-plan", force)
    if (options.raid is not None or options.lvm) and not disks:
        raise click.UsageError("--raid and --lvm are for whole disks: name them with --disk")
    warnings = _check_verdict(host, "bare-metal" if disks else "dual-boot", options.allow_unverified)
    resolvers = tuple(filter(None, (options.dns or "").split(",")))
    with usage_errors("--ssh-key"):
        public_keys, own_key = tuple(public_key(read_option_file(file, "--ssh-key")) for file in keys), None
    if not public_keys:  # an Ubuntu beside Windows has the name of that host in fleet.yaml
        own_key = FleetKeys(None).key_of(options.hostname if disks else host.host)
        public_keys = (own_key.line,)
    system = NewSystem(
        options.hostname,
        options.user,
        public_keys,
        options.mac,
        options.address,
        options.gateway,
        resolvers,
        options.kernel,
        options.timezone,
    )
    try:
        install_plan = InstallPlan(
            host.host,
            machine_of(host),
            system,
            options.installer,
            None if disks else manifest_of_facts(host),
            tuple(read_whole_disks(host, disks)),
            Scheme(options.raid, options.lvm),
            authorities_of(host),
            tuple(gpu.pci.key["device"] for gpu in host.gpus),
            options.extras,
            None if disks else windows_esp_of(host),
            keeps_local_time(host, disks),
        )
        install_plan.storage()
    except MissingFact as missing:
        hint = f"Read the host again: winhost detect {visible(host.host)} -o facts"
        raise UsageError("FactMissing", what=f"{missing}", hint=hint) from missing
    except ValueError as error:
        raise click.UsageError(visible(str(error))) from None
    if keys and not disks:
        warnings = (*warnings, *FleetKeys(None).check(host.host, dict.fromkeys(system.keys, "--ssh-key")))
    write_whole(output.required_path, [format_install_plan(install_plan)])
    _show_plan(install_plan, warnings, own_key, output)
    return 0


def _check_verdict(facts: HostFacts, path: str, allow_unverified: bool) -> tuple[str, ...]:
    """Return the reasons of the verdict. Raises RefusedError (NotForThisHost) if the path is not supported here."""
    verdict = judge(facts, path)
    serious = [each for each in verdict.every_reason if each.severity.rank >= Severity.UNVERIFIED.rank]
    refused = {Verdict.UNSUPPORTED} if allow_unverified else {Verdict.UNSUPPORTED, Verdict.UNVERIFIED}
    if verdict.verdict in refused:
        remedies = dict.fromkeys(each.remedy.do for each in serious if each.remedy)
        override = [] if verdict.verdict is Verdict.UNSUPPORTED else ["Or go on anyway: --allow-unverified"]
        raise RefusedError(
            "NotForThisHost",
            what=f"{path} is {verdict.verdict} on {visible(facts.host)}",
            meaning="\n".join(map(format_reason, serious)),
            hint="\n".join([*remedies, *override]) or None,
            host=facts.host,
        )
    return tuple(map(format_reason, verdict.every_reason))


def format_targets(plan: InstallPlan) -> tuple[str, ...]:
    """Describe the partition or the disks that the installer writes to."""
    if plan.beside is not None:
        target = next(each for each in plan.beside.partitions if each.role == "target")
        return (f"partition {target.guid}, {size(target.size)} of {plan.beside.model} ({plan.beside.guid})",)
    return tuple(each.line for each in plan.whole)


def _show_plan(install_plan: InstallPlan, warnings: tuple[str, ...], own_key: "SshKey | None", output: Output) -> None:
    """Show the plan. own_key: the key that is used because the user named none."""
    lost = tuple(each for disk in install_plan.whole for each in format_partitions(disk))
    heed = (*warnings, *(f"{disk.model}: {each}" for disk in install_plan.whole for each in disk.heed))
    steps = next_steps(install_plan)
    if own_key is not None and own_key.is_managed and install_plan.beside is None:
        steps[0] += f", and with the key for SSH that winhost made: key: {own_key.key}"
    planned = PlannedInstall(
        str(output.path), install_plan.host, format_targets(install_plan), lost, heed, tuple(steps)
    )

    def show(_: PlannedInstall) -> None:
        say(f"Ubuntu {install_plan.installer} on {planned.host} writes to {'; '.join(planned.writes)}.")
        say(
            "Everything else on that disk is kept."
            if install_plan.beside
            else f"Lost: {'; '.join(lost) or 'nothing is on it'}."
        )
        for reason in planned.heed:
            say(f"  {reason}")
        say("Afterwards:")
        for number, step in enumerate(planned.then, 1):
            say(f"  {number}. {step}")
        show_command("Media:", "winhost", "install", "media", planned.file, "-o", "ubuntu.iso")

    show_results("install-plan", output.shape, [(install_plan.host, planned)], show)


_MAX_CONSENT_SIZE = 64 * KiB


def confirm_loss(host: str, disks: Sequence[WholeDisk], file: Path | None) -> list[str]:
    """Let the user confirm the loss of each disk, and return the names of the disks. Raises RefusedError (NotTyped)."""
    for disk in disks:
        click.echo(f"Everything on this disk of {visible(host)} will be lost:\n  {visible(disk.line)}", err=True)
        for each in (*format_partitions(disk), *disk.heed):
            click.echo(f"  - {visible(each)}", err=True)
        if file is None and sys.stdin.isatty():
            _prompt_for_disk(disk)
    if file is not None:
        _check_consent_file(_read_lines(file), disks, file)
    elif disks and not sys.stdin.isatty():
        lines = "\n".join(visible(disk.line) for disk in disks)
        hint = f"Start this command at a terminal, or name a file with these lines: --consent-file FILE\n{lines}"
        raise _consent_error("the loss of each disk has to be confirmed at a terminal", hint)
    return [disk.name for disk in disks]


def format_partitions(disk: WholeDisk) -> tuple[str, ...]:
    """Describe each partition of a disk that Ubuntu gets."""
    return tuple(f"{each.role} partition {each.guid}, {size(each.size)}" for each in disk.partitions)


def _prompt_for_disk(disk: WholeDisk) -> None:
    """Let the user type the name of a disk. Raises RefusedError (NotTyped), and click.Abort for Ctrl-C."""
    kind = "GUID" if disk.choice.guid else "serial number"
    typed = str(click.prompt(f"To go on, type its {kind}", err=True, default="", show_default=False))
    if not _names_disk(typed, disk):
        raise _consent_error("that is not the disk", f"Type its {kind} as it is shown: {visible(disk.name)}")


def _names_disk(text: str, disk: WholeDisk) -> bool:
    """Return whether a text is the name or the line of the disk, as winhost shows it."""
    return text.strip() in (visible(disk.name), visible(disk.line))


def _read_lines(file: Path) -> list[str]:
    try:
        text = read_within(file, _MAX_CONSENT_SIZE).decode("utf-8-sig")
    except (OSError, TooLarge, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text, or too long"
        raise click.BadParameter(f"{visible(str(file))} cannot be read: {why}", param_hint="--consent-file") from None
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _check_consent_file(lines: Sequence[str], disks: Sequence[WholeDisk], file: Path) -> None:
    """Check that the file names each of these disks and no other. Raises RefusedError (NotTyped)."""
    for disk in disks:
        if not any(_names_disk(line, disk) for line in lines):
            what = f"{visible(str(file))} does not name the disk {visible(disk.name)}"
            raise _consent_error(what, f"If its data may be lost, add this line: {visible(disk.line)}")
    for line in lines:
        if not any(_names_disk(line, disk) for disk in disks):
            what = f"{visible(str(file))} names something else: {visible(line)[:120]}"
            raise _consent_error(what, "Remove the lines that name no disk of this plan")


def _consent_error(what: str, hint: str) -> RefusedError:
    return RefusedError("NotTyped", what=f"{what}; no media were made", hint=hint)


_LIST = "files.json"


@dataclass(frozen=True)
class MadeMedia:
    """The media. place: the image or the folder; host_key: the new system's host key; installed: whether a system
    answered with that key, null if winhost did not wait for it.
    """

    place: str
    host: str
    host_key: str
    size: int
    installed: bool | None


def media(plan_file: Path, options: MediaOptions, force: bool, output: Output) -> int:
    plan, path = read_install_plan(plan_file), output.required_path
    exists = any(path.iterdir()) if output.folder and path.is_dir() else path.exists()
    # Media contain a private key. They may replace a file with --force, and never a folder.
    if exists and not (force and path.is_file()):
        hint = "Name another path with -o" + ("" if output.folder else ", or write over the file with --force")
        raise UsageError("MediaThere", what=f"{visible(str(path))} is there already", hint=hint)
    if exists:
        path.unlink()
    confirmed_disks = confirm_loss(plan.host, plan.whole, options.consent_file)
    with os_errors():
        image = InstallerRelease(plan.installer, options.mirror or MEDIA_MIRROR).fetched(image_cache())
        if plan.authorities is not None:
            check_starts(read_from_image(image, SHIM), plan.authorities, secure_boot=True)
        with ExitStack() as stack:
            return _make_media(plan, confirmed_disks, image, options, output, stack)


def _make_media(
    plan: InstallPlan,
    confirmed_disks: Sequence[str],
    image: Path,
    options: MediaOptions,
    output: Output,
    stack: ExitStack,
) -> int:
    key, wait = new_host_key(), InstallationWait(options.minutes)
    url = stack.enter_context(receive_progress(options.report, wait.hear)) if options.report else None
    guard_order = plan.order(confirmed_disks, url)
    if options.serve:
        data = settings_to_fetch(plan, key, confirmed_disks, url)
        offer = stack.enter_context(offer_settings(data, options.serve, options.minutes * 60))
        files = files_without_settings(offer.fetch_file, plan.system.kernel_ip_argument, guard_order.get("windows_esp"))
    else:
        document = install_document(plan.settings(url), plan.storage(), key, ON_MEDIUM)
        files = files_with_settings(document, guard_order, plan.system.kernel_ip_argument)
    total = _write_media(image, files, output)
    host_key_line = f"The new system is known by its host key: {key.public}"
    installed = None
    if options.serve or options.report:
        click.echo(host_key_line, err=True)
        target = options.reach or (plan.system.address or plan.system.hostname).partition("/")[0]
        installed = wait.wait_for_host_key(key.public, target)
    result = MadeMedia(str(output.path), plan.host, key.public, total, installed)

    def show(_: MadeMedia) -> None:
        say(
            f"{result.place}: {size(total)}"
            + ("" if options.serve else "; it holds the host's private key: keep it to yourself.")
        )
        say(host_key_line)
        if installed is not None:
            say(
                "It is installed: it answers with that key."
                if installed
                else f"It did not answer with that key. {wait.progress_text}"
            )

    show_results("install-media", output.shape, [(plan.host, result)], show)
    return int(Exit.FAILURE if installed is False else Exit.SUCCESS)


def _write_media(image: Path, new_files: dict[str, bytes], output: Output) -> int:
    """Write the image, or the folder with its files, readable by this account only. Return the size."""
    path, umask = output.required_path, os.umask(0o077)
    try:
        if not output.folder:
            remaster(image, new_files, path)
            return path.stat().st_size
        image_files = staged_files(image, new_files)
        partition_size = staging_size(image_files)
        path.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # the file system may have no modes
            path.chmod(0o700)
        copy_out(image, path, image_files, new_files)
        for name, data in new_files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(path / name, [data], mode=0o600)
        document = write_document(StagedMedia(image.name, partition_size, tuple(image_files), tuple(sorted(new_files))))
        write_whole(path / _LIST, [document], mode=0o600)
        return partition_size
    finally:
        os.umask(umask)


@dataclass(frozen=True)
class StagedMedia:
    """The document files.json: the files for a FAT32 partition of this size, in the same folder. ours: those that
    differ from the image.
    """

    image: str
    partition: int
    files: tuple[MediumFile, ...]
    ours: tuple[str, ...]


_PAUSE_S = 5.0


class InstallationWait:
    """Waits until the new system answers. minutes: the longest time."""

    def __init__(self, minutes: float) -> None:
        self._deadline = time.monotonic() + minutes * 60
        self._progress, self._lock = InstallProgress(), threading.Lock()

    def hear(self, event: InstallEvent) -> None:
        """Record an event of the installer. The listener calls this from several threads."""
        with self._lock:
            if self._progress.receive(event):
                click.echo(f"installer: {self._progress.failure or self._progress.phase}", err=True)

    @property
    def progress_text(self) -> str:
        """A sentence about the last event of the installer."""
        with self._lock:
            progress = self._progress
        if progress.failure:
            return f"The installer reported: {progress.failure}"
        status = (
            f"got as far as {progress.phase}"
            if progress.received_count
            else "did not report; did the machine start it?"
        )
        return f"The installer {status}"

    def wait_for_host_key(self, key: str, address: str, port: int = 22, pause: float = _PAUSE_S) -> bool:
        """Wait until the machine answers with this host key, and return whether it did. Until then, another system may
        answer with another key.
        """
        while True:
            if fetch_host_key(address, port) == key:
                return True
            if time.monotonic() + pause > self._deadline:
                return False
            time.sleep(pause)


RESTART = "restart"


@dataclass(frozen=True)
class InsertedMedia:
    """The result of `install bmc`. image: the media in the drive, null if they were ejected; restarted: the BMC
    restarted the machine by force.
    """

    host: str
    bmc: str
    image: str | None
    restarted: bool


def bmc(options: BmcOptions, output: Output) -> int:
    image = options.image
    if (image is None) != options.take_back:
        raise click.UsageError("Either --image names the media, or --take-back takes them out")
    reference = secret_reference(options.password, "--bmc-password")
    assert reference is not None
    (fleet_host,) = resolve_hosts((options.host,), options.fleet_file)
    with show_progress() as watch:
        facts = HostFacts(read_live(fleet_host, watch))
        if isinstance(fleet_host, LinuxHost):
            raise other_system_error(facts, "a BMC's identity")
        identity = machine_of(facts)
        bmc_access = Bmc(options.url, options.user, reference.resolve(), str(options.ca) if options.ca else None)
        with watch.activity(fleet_host.name, "asking its BMC"), bmc_session(bmc_access) as session:
            system = session.system(identity, free=not options.take_back)
            restarted = image is not None and RESTART in options.accepted
            if image is None:
                session.take_back(system)
            else:
                session.insert(system, image)
                session.start_once(system)
            if restarted:
                session.restart(system)
    result = InsertedMedia(fleet_host.name, options.url, image, restarted)

    def show(_: InsertedMedia) -> None:
        say(
            f"{fleet_host.name} starts from {image} once."
            if image
            else f"No media are in {fleet_host.name}; it starts as usual."
        )
        if image:
            say("It restarts now." if restarted else "Restart it, or add --accept restart.")

    return show_results("install-bmc", output.shape, [(fleet_host.name, result)], show)
