"""The restart that installs Ubuntu. The settings for the installer are made at that moment, and served once
over TLS.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field
from hashlib import sha256

from winhost.autoinstall.install_plan import new_host_key, settings_to_fetch
from winhost.autoinstall.settings_server import InstallEvent, InstallProgress, offer_settings, receive_progress
from winhost.connect.guard import local_address
from winhost.connect.wire_errors import RemoteError, one_line
from winhost.core.answers import Json, identity
from winhost.core.dataclass import dataclass
from winhost.engine.boot import LINUX, WINDOWS
from winhost.engine.open_run import OpenRun
from winhost.paths.dual_boot import DualBootSettings
from winhost.paths.new_ubuntu import AUTO, UBUNTU, NewUbuntu, UbuntuDecisions
from winhost.resources.host import HostFacts
from winhost.resources.shared import INSTALLER, RUNNING
from winhost.resources.windows.boot_entries import LINUX_NEXT

_UNSEALED_CODES = ("Winhost.NotAsStaged", "Winhost.StillWritable")
MAX_INSTALL_S = 2 * 3600  # seconds that an installation may take


@dataclass
class Installation:
    """An installation in progress. extra_wait: seconds to wait in addition to those for a restart."""

    extra_wait: float = 0
    progress: InstallProgress = field(default_factory=InstallProgress)


@contextmanager
def offering_settings(run: OpenRun) -> Iterator[Installation]:
    """Return a context for a restart: if that starts the installer, serve its settings. Raises WinhostError."""
    system = _system_to_install(run)
    if system is None:
        yield Installation()
        return
    with ExitStack() as stack:
        try:
            installation = _offer_settings(run, system, stack)
        except OSError as error:
            raise run.interrupted(
                "NotOffered",
                f"the installer's settings cannot be handed out from this computer: {error.strerror}",
                "The machine was not restarted. The address is the one that leads to the host, or --set system.serve.",
            ) from error
        yield installation


def _offer_settings(run: OpenRun, system: NewUbuntu, stack: ExitStack) -> Installation:
    """Serve the installer's settings, and store the host key of the new Linux in Windows, by which it is recognized
    later. Raises OSError, RunInterrupted (NotSealed).
    """
    key, installation = new_host_key(), Installation(MAX_INSTALL_S)
    plan = UbuntuDecisions(HostFacts(run.read()), system, None).install_plan()
    machine = run.context.machine
    address = local_address(machine.address) if system.serve == AUTO and machine else system.serve

    def receive(event: InstallEvent) -> None:  # anybody on the network may have sent it, so it is only shown
        if installation.progress.receive(event):
            run.report("waiting", f"installer: {installation.progress.failure or installation.progress.phase}")

    report = stack.enter_context(receive_progress(address, receive))
    settings = settings_to_fetch(plan, key, report=report)
    ticket = stack.enter_context(offer_settings(settings, address, MAX_INSTALL_S)).fetch_file
    digest = sha256(ticket.encode("ascii")).hexdigest()
    run.session.set_with_secret(INSTALLER, {"name": UBUNTU}, {"host_key": key.public}, "")
    run.read()
    # Last before the restart: Windows seals the installer's partition against writing, and checks its files.
    try:
        run.session.set_with_secret(INSTALLER, {"name": UBUNTU}, {"ticket": digest}, ticket)
    except RemoteError as error:
        if error.fault.code.partition(",")[0] in _UNSEALED_CODES:
            raise run.interrupted(
                "NotSealed",
                f"the installer's partition is not what winhost made: {one_line(error.fault)}",
                "Whoever logs on to Windows could write to it. The machine was not restarted, and must not be before "
                "the rollback: its firmware starts this partition next. The rollback takes that back, and the "
                "partition away.",
                next_steps=(("Roll back", f"winhost rollback {run.name}"),),
            ) from error
        raise
    return installation


def check_booted_system(run: OpenRun, installation: Installation) -> None:
    """Check that the expected system booted, if the run chooses it. Raises RunInterrupted (NotInstalled,
    FirmwareIgnored).
    """
    if identity(RUNNING, {}) not in run.record.touched:
        return
    expected = WINDOWS if run.record.going_back else LINUX
    system = _running_system(run).get("system")
    if system != expected:
        if installation.extra_wait:
            progress = installation.progress
            phase = f"It got as far as: {progress.phase}"
            detail = f"The installer said: {progress.failure}" if progress.failure else phase
            raise run.interrupted(
                "NotInstalled",
                "Windows came up again, and not the new Ubuntu",
                f"{detail}. Before it finds exactly the machine and the disk that it was made for, it writes nothing.",
            )
        raise run.interrupted(
            "FirmwareIgnored",
            f"{expected} was to start, and the other system came up again",
            "The firmware did not start what it was told to, although that was read back before the restart. "
            f"Choose {expected} in its boot menu, at the console, then continue.",
        )


def will_boot_linux(run: OpenRun) -> bool:
    """Tell whether Windows runs and this run has set Linux to boot next."""
    return identity(RUNNING, {}) in run.record.touched and _running_system(run).get("system") == LINUX_NEXT


def _system_to_install(run: OpenRun) -> NewUbuntu | None:
    """Return the system that the next boot installs, if any."""
    if run.record.going_back or identity(RUNNING, {}) not in run.record.touched:
        return None
    settings = run.request.playbook.parsed_settings
    state = _running_system(run)
    starts = state.get("system") == LINUX_NEXT and state["linux"] is None
    return settings.system if starts and isinstance(settings, DualBootSettings) else None


def _running_system(run: OpenRun) -> dict[str, Json]:
    return dict(run.session.state(RUNNING, {}) or {})
