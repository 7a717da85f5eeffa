"""winhost install: the plan with what is lost, media that install what was planned, and their start by a BMC."""

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
    whole_disks_of,
    windows_esp_of,
)
from winhost.autoinstall.guard_order import Scheme, WholeDisk
from winhost.autoinstall.install_plan import (
    ON_MEDIUM,
    InstallPlan,
    NewSystem,
    afterwards,
    install_document,
    new_host_key,
    read_install_plan,
    settings_to_fetch,
    written_install_plan,
)
from winhost.autoinstall.medium_files import (
    SHIM,
    MediumFile,
    copy_out,
    read_from_image,
    remastered,
    staged,
    staging_size,
    with_settings,
    without_settings,
)
from winhost.autoinstall.settings_server import InstallEvent, InstallProgress, heard_progress, offered_settings
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
from winhost.connect.host_keys import shown_host_key
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
from winhost.resources.host import HostFacts, of_other_system

if TYPE_CHECKING:
    from winhost.engine.keys import SshKey


@dataclass(frozen=True)
class PlannedInstall:
    """The plan for people. writes: the partition or the disks that the installer writes to; lost: what is on them;
    heed: reasons of the verdict; then: what to do once the new system has started.
    """

    file: str
    host: str
    writes: tuple[str, ...]
    lost: tuple[str, ...]
    heed: tuple[str, ...]
    then: tuple[str, ...]


def plan(facts: Path, asked: InstallOptions, force: bool, output: Output) -> int:
    known, disks, keys = HostFacts(read_facts(single_file(facts, Facts))), asked.disks, asked.keys
    refuse_other_kind(output.required_path, "install-plan", force)
    if (asked.raid is not None or asked.lvm) and not disks:
        raise click.UsageError("--raid and --lvm are for whole disks: name them with --disk")
    heeded = _judged(known, "bare-metal" if disks else "dual-boot", asked.allow_unverified)
    resolvers = tuple(filter(None, (asked.dns or "").split(",")))
    with usage_errors("--ssh-key"):
        given, own = tuple(public_key(read_option_file(file, "--ssh-key")) for file in keys), None
    if not given:  # beside Windows it is under the same name in fleet.yaml
        own = FleetKeys(None).key_of(asked.hostname if disks else known.host)
        given = (own.line,)
    new = NewSystem(
        asked.hostname,
        asked.user,
        given,
        asked.mac,
        asked.address,
        asked.gateway,
        resolvers,
        asked.kernel,
        asked.timezone,
    )
    try:
        made = InstallPlan(
            known.host,
            machine_of(known),
            new,
            asked.installer,
            None if disks else manifest_of_facts(known),
            tuple(whole_disks_of(known, disks)),
            Scheme(asked.raid, asked.lvm),
            authorities_of(known),
            tuple(gpu.pci.key["device"] for gpu in known.gpus),
            asked.extras,
            None if disks else windows_esp_of(known),
            keeps_local_time(known, disks),
        )
        made.storage()
    except MissingFact as missing:
        hint = f"Read the host again: winhost detect {visible(known.host)} -o facts"
        raise UsageError("FactMissing", what=f"{missing}", hint=hint) from missing
    except ValueError as wrong:
        raise click.UsageError(visible(str(wrong))) from None
    if keys and not disks:
        heeded = (*heeded, *FleetKeys(None).check(known.host, dict.fromkeys(new.keys, "--ssh-key")))
    write_whole(output.required_path, [written_install_plan(made)])
    _show_planned(made, heeded, own, output)
    return 0


def _judged(facts: HostFacts, path: str, allow_unverified: bool) -> tuple[str, ...]:
    """The reasons to heed. Raises RefusedError (NotForThisHost) if a rule speaks against the path."""
    found = judge(facts, path)
    grave = [each for each in found.every_reason if each.severity.rank >= Severity.UNVERIFIED.rank]
    bad = {Verdict.UNSUPPORTED} if allow_unverified else {Verdict.UNSUPPORTED, Verdict.UNVERIFIED}
    if found.verdict in bad:
        helps = dict.fromkeys(each.remedy.do for each in grave if each.remedy)
        accept = [] if found.verdict is Verdict.UNSUPPORTED else ["Or go on all the same: --allow-unverified"]
        raise RefusedError(
            "NotForThisHost",
            what=f"{path} is {found.verdict} on {visible(facts.host)}",
            meaning="\n".join(map(format_reason, grave)),
            hint="\n".join([*helps, *accept]) or None,
            host=facts.host,
        )
    return tuple(map(format_reason, found.every_reason))


def written_to(plan: InstallPlan) -> tuple[str, ...]:
    """The partition or disks that the installer writes to, in words."""
    if plan.beside is not None:
        target = next(each for each in plan.beside.partitions if each.role == "target")
        return (f"partition {target.guid}, {size(target.size)} of {plan.beside.model} ({plan.beside.guid})",)
    return tuple(each.line for each in plan.whole)


def _show_planned(made: InstallPlan, heeded: tuple[str, ...], own: "SshKey | None", output: Output) -> None:
    """Show the plan. own: the key that is used because none was named."""
    lost = tuple(each for disk in made.whole for each in lost_on(disk))
    heed = (*heeded, *(f"{disk.model}: {each}" for disk in made.whole for each in disk.heed))
    then = afterwards(made)
    if own is not None and own.ours and made.beside is None:
        then[0] += f", and with the key for SSH that winhost made: key: {own.key}"
    planned = PlannedInstall(str(output.path), made.host, written_to(made), lost, heed, tuple(then))

    def show(_: PlannedInstall) -> None:
        say(f"Ubuntu {made.installer} on {planned.host} writes to {'; '.join(planned.writes)}.")
        say("Everything else on that disk stays." if made.beside else f"Lost: {'; '.join(lost) or 'nothing is on it'}.")
        for reason in planned.heed:
            say(f"  {reason}")
        say("Afterwards:")
        for number, step in enumerate(planned.then, 1):
            say(f"  {number}. {step}")
        show_command("Media:", "winhost", "install", "media", planned.file, "-o", "ubuntu.iso")

    show_results("install-plan", output.shape, [(made.host, planned)], show)


_LARGEST = 64 * KiB


def consented(host: str, disks: Sequence[WholeDisk], file: Path | None) -> list[str]:
    """Ask for the loss of each disk, and return the names of the disks. Raises RefusedError (NotTyped)."""
    for disk in disks:
        click.echo(f"Everything on this disk of {visible(host)} will be lost:\n  {visible(disk.line)}", err=True)
        for each in (*lost_on(disk), *disk.heed):
            click.echo(f"  - {visible(each)}", err=True)
        if file is None and sys.stdin.isatty():
            _ask(disk)
    if file is not None:
        _compare(_lines(file), disks, file)
    elif disks and not sys.stdin.isatty():
        lines = "\n".join(visible(disk.line) for disk in disks)
        hint = f"Start this command at a terminal, or name a file with these lines: --consent-file FILE\n{lines}"
        raise _not_typed("nobody is at a terminal to consent to the loss of each disk", hint)
    return [disk.name for disk in disks]


def lost_on(disk: WholeDisk) -> tuple[str, ...]:
    """The partitions of a disk that Ubuntu gets, in words."""
    return tuple(f"{each.role} partition {each.guid}, {size(each.size)}" for each in disk.partitions)


def _ask(disk: WholeDisk) -> None:
    """Raises click.Abort for Ctrl-C."""
    kind = "GUID" if disk.choice.guid else "serial number"
    typed = str(click.prompt(f"To go on, type its {kind}", err=True, default="", show_default=False))
    if not _quotes(typed, disk):
        raise _not_typed("that is not the disk", f"Type its {kind} as it is shown: {visible(disk.name)}")


def _quotes(text: str, disk: WholeDisk) -> bool:
    """Tell whether a text names the disk as it is shown."""
    return text.strip() in (visible(disk.name), visible(disk.line))


def _lines(file: Path) -> list[str]:
    try:
        text = read_within(file, _LARGEST).decode("utf-8-sig")
    except (OSError, TooLarge, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text, or too long"
        raise click.BadParameter(f"{visible(str(file))} cannot be read: {why}", param_hint="--consent-file") from None
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _compare(lines: Sequence[str], disks: Sequence[WholeDisk], file: Path) -> None:
    """Check that the file quotes each disk and nothing else: a file for other disks is no consent for these."""
    for disk in disks:
        if not any(_quotes(line, disk) for line in lines):
            what = f"{visible(str(file))} does not quote the disk {visible(disk.name)}"
            raise _not_typed(what, f"Once you know that it may be lost, add this line: {visible(disk.line)}")
    for line in lines:
        if not any(_quotes(line, disk) for disk in disks):
            what = f"{visible(str(file))} names something else: {visible(line)[:120]}"
            raise _not_typed(what, "Take out what is no disk of this plan")


def _not_typed(what: str, hint: str) -> RefusedError:
    return RefusedError("NotTyped", what=f"{what}; no media were made", hint=hint)


_LIST = "files.json"


@dataclass(frozen=True)
class MadeMedia:
    """The media. place: the image or the folder; host_key: the new system's host key; installed: whether a system with
    that key was seen, null if winhost did not wait for it.
    """

    place: str
    host: str
    host_key: str
    size: int
    installed: bool | None


def media(plan_file: Path, asked: MediaOptions, force: bool, output: Output) -> int:
    plan, out = read_install_plan(plan_file), output.required_path
    there = any(out.iterdir()) if output.folder and out.is_dir() else out.exists()
    # Media with a key replace nothing but a file, and that only with --force.
    if there and not (force and out.is_file()):
        hint = "Name another place with -o" + ("" if output.folder else ", or write over the file with --force")
        raise UsageError("MediaThere", what=f"{visible(str(out))} is there already", hint=hint)
    if there:
        out.unlink()
    wiped = consented(plan.host, plan.whole, asked.consent_file)
    with os_errors():
        image = InstallerRelease(plan.installer, asked.mirror or MEDIA_MIRROR).fetched(image_cache())
        if plan.authorities is not None:
            check_starts(read_from_image(image, SHIM), plan.authorities, secure_boot=True)
        with ExitStack() as stack:
            return _made(plan, wiped, image, asked, output, stack)


def _made(
    plan: InstallPlan, wiped: Sequence[str], image: Path, asked: MediaOptions, output: Output, stack: ExitStack
) -> int:
    key, waiting = new_host_key(), Waiting(asked.minutes)
    url = stack.enter_context(heard_progress(asked.report, waiting.hear)) if asked.report else None
    order = plan.order(wiped, url)
    if asked.serve:
        data = settings_to_fetch(plan, key, wiped, url)
        offer = stack.enter_context(offered_settings(data, asked.serve, asked.minutes * 60))
        added = without_settings(offer.for_medium, plan.system.kernel_words, order.get("windows_esp"))
    else:
        document = install_document(plan.settings(url), plan.storage(), key, ON_MEDIUM)
        added = with_settings(document, order, plan.system.kernel_words)
    total = _written(image, added, output)
    say_to = f"The new system is known by its host key: {key.public}"
    installed = None
    if asked.serve or asked.report:
        click.echo(say_to, err=True)
        target = asked.reach or (plan.system.address or plan.system.hostname).partition("/")[0]
        installed = waiting.until_it_shows(key.public, target)
    made = MadeMedia(str(output.path), plan.host, key.public, total, installed)

    def show(_: MadeMedia) -> None:
        say(
            f"{made.place}: {size(total)}"
            + ("" if asked.serve else "; it holds the host's private key: keep it to yourself.")
        )
        say(say_to)
        if installed is not None:
            say("It is installed: it shows that key." if installed else f"It did not show that key. {waiting.said}")

    show_results("install-media", output.shape, [(plan.host, made)], show)
    return int(Exit.FAILURE if installed is False else Exit.SUCCESS)


def _written(image: Path, added: dict[str, bytes], output: Output) -> int:
    """Write the image, or the folder with its files, for the own account alone. Returns its size."""
    out, before = output.required_path, os.umask(0o077)
    try:
        if not output.folder:
            remastered(image, added, out)
            return out.stat().st_size
        listed = staged(image, added)
        room = staging_size(listed)
        out.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # a mount may have no modes
            out.chmod(0o700)
        copy_out(image, out, listed, added)
        for path, data in added.items():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(out / path, [data], mode=0o600)
        document = write_document(StagedMedia(image.name, room, tuple(listed), tuple(sorted(added))))
        write_whole(out / _LIST, [document], mode=0o600)
        return room
    finally:
        os.umask(before)


@dataclass(frozen=True)
class StagedMedia:
    """The document files.json: the files for a FAT32 partition of this size, all of which lie beside it. ours: those
    that differ from the image.
    """

    image: str
    partition: int
    files: tuple[MediumFile, ...]
    ours: tuple[str, ...]


_PAUSE_S = 5.0


class Waiting:
    """Waits for the new system. minutes: how long at most."""

    def __init__(self, minutes: float) -> None:
        self._until = time.monotonic() + minutes * 60
        self._progress, self._lock = InstallProgress(), threading.Lock()

    def hear(self, event: InstallEvent) -> None:
        """Take an event of the installer. The listener calls this from several threads."""
        with self._lock:
            if self._progress.hear(event):
                click.echo(f"installer: {self._progress.failure or self._progress.phase}", err=True)

    @property
    def said(self) -> str:
        """The last news of the installer, in words."""
        with self._lock:
            progress = self._progress
        if progress.failure:
            return f"The installer said: {progress.failure}"
        heard = f"got as far as {progress.phase}" if progress.heard else "was not heard of; did the machine start it?"
        return f"The installer {heard}"

    def until_it_shows(self, key: str, address: str, port: int = 22, pause: float = _PAUSE_S) -> bool:
        """Wait until the machine there shows this host key. Another key there is another system, for now."""
        while True:
            if shown_host_key(address, port) == key:
                return True
            if time.monotonic() + pause > self._until:
                return False
            time.sleep(pause)


RESTART = "restart"


@dataclass(frozen=True)
class InsertedMedia:
    """The result of `install bmc`. image: what is in the drive, null if it was taken out; restarted: the machine was
    restarted by force.
    """

    host: str
    bmc: str
    image: str | None
    restarted: bool


def bmc(asked: BmcOptions, output: Output) -> int:
    image = asked.image
    if (image is None) != asked.take_back:
        raise click.UsageError("Either --image names the media, or --take-back takes them out")
    reference = secret_reference(asked.password, "--bmc-password")
    assert reference is not None
    (here,) = resolve_hosts((asked.host,), asked.fleet_file)
    with show_progress() as watch:
        facts = HostFacts(read_live(here, watch))
        if isinstance(here, LinuxHost):
            raise of_other_system(facts, "a BMC's identity")
        identity = machine_of(facts)
        known = Bmc(asked.url, asked.user, reference.resolve(), str(asked.ca) if asked.ca else None)
        with watch.activity(here.name, "asking its BMC"), bmc_session(known) as session:
            system = session.system(identity, free=not asked.take_back)
            restarted = image is not None and RESTART in asked.accepted
            if image is None:
                session.take_back(system)
            else:
                session.insert(system, image)
                session.start_once(system)
            if restarted:
                session.restart(system)
    result = InsertedMedia(here.name, asked.url, image, restarted)

    def show(_: InsertedMedia) -> None:
        say(f"{here.name} starts from {image} once." if image else f"No media are in {here.name}; it starts as usual.")
        if image:
            say("It restarts now." if restarted else "Restart it, or add --accept restart.")

    return show_results("install-bmc", output.shape, [(here.name, result)], show)
