"""winhost install media and winhost install bmc: media that install what was planned, and only on that machine."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import click

from winhost.autoinstall.facts_manifest import machine_of
from winhost.autoinstall.install_plan import (
    ON_MEDIUM,
    InstallPlan,
    install_document,
    new_host_key,
    read_install_plan,
    settings_to_fetch,
)
from winhost.autoinstall.install_progress import InstallEvent, InstallProgress
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
from winhost.autoinstall.settings_server import heard_progress, offered_settings
from winhost.autoinstall.shim_signers import check_starts
from winhost.autoinstall.virtual_media import Bmc, BmcSession, BmcSystem, bmc_session
from winhost.cli.commands.install import BmcOptions, MediaOptions
from winhost.cli.envelope import show_results
from winhost.cli.errors import os_errors, secret_reference
from winhost.cli.live_hosts import read_live
from winhost.cli.named_hosts import hosts_named
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.plan_install import consented
from winhost.cli.watch import watching
from winhost.connect.shown_key import shown_host_key
from winhost.core.dataclass import dataclass
from winhost.images.guest_disk import image_cache
from winhost.images.installer_media import MEDIA_MIRROR, InstallerRelease
from winhost.model.documents import write_document
from winhost.model.errors import Exit, UsageError, visible
from winhost.model.files import write_whole
from winhost.model.fleet import LinuxHost
from winhost.model.units import size
from winhost.resources.host import HostFacts, of_other_system

_LIST = "files.json"


@dataclass(frozen=True)
class MadeMedia:
    """The media. place: the image or the folder; host_key: the new system's host key; installed: whether a system with
    that key was seen, null if nobody waited for it.
    """

    place: str
    host: str
    host_key: str
    size: int
    installed: bool | None


def media(plan_file: Path, asked: MediaOptions, force: bool, output: Output) -> int:
    plan, out = read_install_plan(plan_file), output.required_path
    _check_path(out, output.folder, force)
    wiped = consented(plan.host, plan.whole, asked.consent_file)
    with os_errors():
        image = InstallerRelease(plan.installer, asked.mirror or MEDIA_MIRROR).fetched(image_cache())
        if plan.authorities is not None:
            check_starts(read_from_image(image, SHIM), plan.authorities, secure_boot=True)
        with ExitStack() as stack:
            return _made(plan, wiped, image, asked, output, stack)


def _check_path(out: Path, folder: bool, force: bool) -> None:
    """Raises UsageError (MediaThere): media with a key never replace something that may be of use to somebody."""
    there = any(out.iterdir()) if folder and out.is_dir() else out.exists()
    if there and not (force and out.is_file()):
        hint = "Name another place with -o" + ("" if folder else ", or write over the file with --force")
        raise UsageError("MediaThere", what=f"{visible(str(out))} is there already", hint=hint)
    out.unlink(missing_ok=True) if out.is_file() else None


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
    before = os.umask(0o077)
    try:
        return _written_for_us(image, added, output.required_path, folder=output.folder)
    finally:
        os.umask(before)


def _written_for_us(image: Path, added: dict[str, bytes], out: Path, *, folder: bool) -> int:
    if not folder:
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
    (here,) = hosts_named((asked.host,), asked.fleet_file)
    with watching() as watch:
        facts = HostFacts(read_live(here, watch))
        if isinstance(here, LinuxHost):
            raise of_other_system(facts, "a BMC's identity")
        identity = machine_of(facts)
        known = Bmc(asked.url, asked.user, reference.resolve(), str(asked.ca) if asked.ca else None)
        with watch.at(here.name, "asking its BMC"), bmc_session(known) as session:
            system = session.system(identity, free=not asked.take_back)
            done = _done(session, system, image, RESTART in asked.accepted)
    result = InsertedMedia(here.name, asked.url, image, done)

    def show(_: InsertedMedia) -> None:
        say(f"{here.name} starts from {image} once." if image else f"No media are in {here.name}; it starts as usual.")
        say("It restarts now." if done else "Restart it, or add --accept restart.") if image else None

    return show_results("install-bmc", output.shape, [(here.name, result)], show)


def _done(session: BmcSession, system: BmcSystem, image: str | None, restart: bool) -> bool:
    if image is None:
        session.take_back(system)
        return False
    session.insert(system, image)
    session.start_once(system)
    if restart:
        session.restart(system)
    return restart
