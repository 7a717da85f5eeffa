"""Switch a machine between Windows and Linux once: read the boot entries, choose one, set it, verify it, restart, and
wait for the system that boots.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress

from winhost.compat.common import forgetful_firmware
from winhost.connect import reboot
from winhost.connect.agent import Agent, Connector
from winhost.connect.checked_answers import parse_one_answer
from winhost.connect.patience import Patience
from winhost.connect.ssh import SshWire
from winhost.connect.wire_errors import WireError
from winhost.core.answers import Json, MissingFact, Record
from winhost.core.dataclass import dataclass
from winhost.model.errors import WinhostError, visible
from winhost.model.facts import Facts
from winhost.resources.host import HostFacts, typed_instance
from winhost.resources.windows.boot_entries import BootEntry, FirmwareBoot

WINDOWS, LINUX, INSTALLER = "windows", "linux", "installer"
_TIMEOUT_S = 60.0
# The boot loader of each system, by the end of its path: numbers change, and descriptions are localized.
_LOADERS: Mapping[str, Sequence[str]] = {
    WINDOWS: ("\\microsoft\\boot\\bootmgfw.efi",),
    LINUX: ("\\ubuntu\\shimx64.efi", "\\ubuntu\\grubx64.efi", "\\debian\\shimx64.efi"),
}
_INSTALLER_DESCRIPTION = "winhost-installer"


@dataclass(frozen=True)
class LinuxFirmware:
    """The firmware as a Linux next to Windows reads it. timer: minutes after which this Linux restarts into Windows."""

    boot_id: str
    current: str | None
    next: str | None
    order: tuple[str, ...]
    entries: tuple[BootEntry, ...]
    timer: int | None
    ok: bool = True


@dataclass(frozen=True)
class SwitchResult:
    """The outcome of a switch. entry: the boot entry that is started once; came_up: the system that booted, if the
    command waited for it; told: known problems of this firmware.
    """

    host: str
    to: str
    entry: BootEntry
    windows_first: bool
    restarted: bool
    came_up: str | None = None
    told: tuple[str, ...] = ()


def not_switched_error(host: str, why: str) -> WinhostError:
    """Make the error for a machine that could not be set to boot the requested system."""
    return WinhostError("NotSwitched", what=f"{host}: {why}", meaning="Nothing was restarted.", host=host)


def find_entry(host: str, system: str, entries: Sequence[BootEntry]) -> BootEntry:
    """Find the one boot entry that starts this system. Raises WinhostError (NotSwitched)."""
    matches = [each for each in entries if _starts(each, system)]
    if len(matches) != 1:
        listed = ", ".join(f"{each.entry} {visible(each.description)}" for each in entries) or "none"
        raise not_switched_error(
            host, f"{len(matches)} boot entries start {system}, and one is needed; there are: {listed}"
        )
    return matches[0]


def _starts(entry: BootEntry, system: str) -> bool:
    if system == INSTALLER:
        return entry.description == _INSTALLER_DESCRIPTION
    return (entry.path or "").casefold().endswith(tuple(_LOADERS[system]))


# ---- from Windows


def switch_from_windows(connector: Connector, facts: Facts, system: str, *, restart: bool) -> tuple[SwitchResult, str]:
    """Switch to `system`. Also returns the id of the present boot. Raises WinhostError (NotSwitched), WireError,
    RemoteError.
    """
    with closing(connector.open()) as agent:
        firmware = _firmware(agent)
        entry = find_entry(facts.host, system, firmware.entries)
        if firmware.next != entry.entry:
            agent.set(
                "FirmwareBoot", {}, {"next": entry.entry}, {"next": firmware.next}, {"accept": [], "within": _TIMEOUT_S}
            )
        firmware_now = _firmware(agent)
        if firmware_now.next != entry.entry:
            raise not_switched_error(
                facts.host, f"the firmware was told to start {entry.entry} once, and will start {firmware_now.next}"
            )
        boot = str(agent.boot().get("boot_id"))
        if restart:
            reboot.request_restart(agent)
    notes: tuple[str, ...] = ()
    with suppress(MissingFact):
        if vendor := forgetful_firmware(HostFacts(facts)):
            notes = (f"{vendor}: machines of this maker were reported to forget or reorder what is to be started",)
    windows_first = first_is_windows(firmware_now.order, firmware_now.entries)
    return SwitchResult(facts.host, system, entry, windows_first, restart, None, notes), boot


def windows_is_first(agent: Agent) -> bool:
    """Tell whether Windows is first in the firmware's boot order, as Windows reads it. Raises RemoteError, WireError,
    MissingFact.
    """
    firmware = _firmware(agent)
    return first_is_windows(firmware.order, firmware.entries)


def _firmware(agent: Agent) -> FirmwareBoot:
    """Read FirmwareBoot by name: only then the host reads the firmware's variables."""
    state = agent.get("FirmwareBoot", {})
    assert state is not None
    return typed_instance(FirmwareBoot, Record(state)).state


def first_is_windows(order: Sequence[str], entries: Sequence[BootEntry]) -> bool:
    first = next((each for each in entries if order and each.entry == order[0]), None)
    return first is not None and _starts(first, WINDOWS)


# ---- from Linux


def query_linux_boot(wire: SshWire, **request: Json) -> LinuxFirmware:
    """Send one request to the Linux next to Windows. Raises RemoteError, WireError."""
    return parse_one_answer(wire.host, wire.invoke(json.dumps(request), _TIMEOUT_S), LinuxFirmware, "boot")


def switch_from_linux(wire: SshWire, name: str, *, restart: bool) -> tuple[SwitchResult, str]:
    """Switch to Windows. Also returns the id of the present boot. Raises WinhostError (NotSwitched), RemoteError,
    WireError.
    """
    firmware = query_linux_boot(wire, to=WINDOWS, restart=restart)
    entry = find_entry(name, WINDOWS, firmware.entries)
    if firmware.next != entry.entry:
        raise not_switched_error(
            name, f"the firmware was told to start {entry.entry} once, and will start {firmware.next}"
        )
    return SwitchResult(
        name, WINDOWS, entry, first_is_windows(firmware.order, firmware.entries), restart
    ), firmware.boot_id


# ---- afterwards


def wait_for_other_system(same: Callable[[], str | None], other: Callable[[], bool], patience: Patience) -> bool | None:
    """Wait for a system to boot. Returns True if the other system is up, False if the previous one booted again, None
    if neither answers in time.

    same: returns the boot id of the previous system if it answers in another boot; other: whether the other answers.
    """
    end, pause = time.monotonic() + patience.deadline, patience.first
    while time.monotonic() < end:
        if other():
            return True
        if same() is not None:
            return False
        time.sleep(pause)
        pause = min(pause * 2, patience.longest)
    return None


def is_running(connector: Connector, *systems: str) -> bool:
    """Tell whether a session can be opened, and one of these systems answers."""
    try:
        with closing(connector.open()) as agent:
            return agent.system in systems
    except WireError:
        return False


def find_other_boot(connector: Connector, old_boot: str, *other_systems: str) -> str | None:
    """Return the id of a boot that is another than before, and of none of the systems `other_systems`, where a session
    tells one.
    """
    try:
        with closing(connector.open()) as agent:
            boot = str(agent.boot().get("boot_id"))
            return None if boot == old_boot or agent.system in other_systems else boot
    except WinhostError:
        return None
