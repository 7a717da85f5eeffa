"""The start that installs Ubuntu: what its installer gets is made at that moment, and given out once, over TLS."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field
from hashlib import sha256

from winhost.autoinstall.install_plan import new_host_key, settings_to_fetch
from winhost.autoinstall.settings_server import InstallEvent, InstallProgress, heard_progress, offered_settings
from winhost.connect.guard import own_address
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

_NOT_SEALED = ("Winhost.NotAsStaged", "Winhost.StillWritable")
LONGEST = 2 * 3600  # seconds that an installation may take


@dataclass
class Installation:
    """An installation under way, and what was heard of it. longer: seconds to wait beside those of a restart."""

    longer: float = 0
    progress: InstallProgress = field(default_factory=InstallProgress)


@contextmanager
def installing(run: OpenRun) -> Iterator[Installation]:
    """Around a restart: where that starts the installer, its settings are offered meanwhile. Raises WinhostError."""
    asked = _system_to_install(run)
    if asked is None:
        yield Installation()
        return
    with ExitStack() as stack:
        try:
            now = _offered(run, asked, stack)
        except OSError as error:
            raise run.end_of_run(
                "NotOffered",
                f"the installer's settings cannot be handed out from this computer: {error.strerror}",
                "The machine was not restarted. The address is the one that leads to the host, or --set system.serve.",
            ) from error
        yield now


def _offered(run: OpenRun, asked: NewUbuntu, stack: ExitStack) -> Installation:
    """Offer the installer its settings. Windows knows of the Linux by then, and the key by which it is known is
    remembered. Raises OSError.
    """
    key, now = new_host_key(), Installation(LONGEST)
    plan = UbuntuDecisions(HostFacts(run.read()), asked, None).install_plan()
    machine = run.context.machine
    address = own_address(machine.address) if asked.serve == AUTO and machine else asked.serve

    def hear(event: InstallEvent) -> None:  # anybody on its network may have sent it, so it decides nothing
        if now.progress.hear(event):
            run.tell("waiting", f"installer: {now.progress.failure or now.progress.phase}")

    report = stack.enter_context(heard_progress(address, hear))
    settings = settings_to_fetch(plan, key, report=report)
    ticket = stack.enter_context(offered_settings(settings, address, LONGEST)).for_medium
    digest = sha256(ticket.encode("ascii")).hexdigest()
    run.session.hand_over(INSTALLER, {"name": UBUNTU}, {"host_key": key.public}, "")
    run.read()
    # Last before the restart: by it Windows stops writing to the installer's partition, and looks at what lies there.
    try:
        run.session.hand_over(INSTALLER, {"name": UBUNTU}, {"ticket": digest}, ticket)
    except RemoteError as error:
        if error.fault.code.partition(",")[0] in _NOT_SEALED:
            raise run.end_of_run(
                "NotSealed",
                f"the installer's partition is not what winhost made: {one_line(error.fault)}",
                "Whoever logs on to Windows could write to it. The machine was not restarted, and must not be before "
                "the rollback: its firmware starts this partition next. The rollback takes that back, and the "
                "partition away.",
                next_steps=(("Roll back", f"winhost rollback {run.name}"),),
            ) from error
        raise
    return now


def check_switched(run: OpenRun, installation: Installation) -> None:
    """After a restart, where the run decides which system runs. Raises EndOfRun (NotInstalled, FirmwareIgnored)."""
    if identity(RUNNING, {}) not in run.record.touched:
        return
    wanted = WINDOWS if run.record.going_back else LINUX
    found = _running(run).get("system")
    if found != wanted:
        if installation.longer:
            progress = installation.progress
            got = f"It got as far as: {progress.phase}"
            said = f"The installer said: {progress.failure}" if progress.failure else got
            raise run.end_of_run(
                "NotInstalled",
                "Windows came up again, and not the new Ubuntu",
                f"{said}. Before it finds exactly the machine and the disk that it was made for, it writes nothing.",
            )
        raise run.end_of_run(
            "FirmwareIgnored",
            f"{wanted} was to start, and the other system came up again",
            "The firmware did not start what it was told to, although that was read back before the restart. "
            f"Choose {wanted} in its boot menu, at the console, then continue.",
        )


def starts_other(run: OpenRun) -> bool:
    """Tell whether Windows runs and this run has the other system start next."""
    return identity(RUNNING, {}) in run.record.touched and _running(run).get("system") == LINUX_NEXT


def _system_to_install(run: OpenRun) -> NewUbuntu | None:
    """The system that the next start installs, if any."""
    if run.record.going_back or identity(RUNNING, {}) not in run.record.touched:
        return None
    settings = run.request.playbook.parsed_settings
    state = _running(run)
    starts = state.get("system") == LINUX_NEXT and state["linux"] is None
    return settings.system if starts and isinstance(settings, DualBootSettings) else None


def _running(run: OpenRun) -> dict[str, Json]:
    return dict(run.session.state(RUNNING, {}) or {})
