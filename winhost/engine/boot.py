"""Switching a machine between its systems, once: read, match, set, read back, restart, and see which one came up."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress

from winhost.compat.common import forgetful_firmware
from winhost.connect import reboot
from winhost.connect.agent import Agent, Connector
from winhost.connect.checked_answers import one_answer
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
_WITHIN = 60.0
# What starts each system, by the end of its path: numbers change, and descriptions are in a language.
_LOADERS: Mapping[str, Sequence[str]] = {
    WINDOWS: ("\\microsoft\\boot\\bootmgfw.efi",),
    LINUX: ("\\ubuntu\\shimx64.efi", "\\ubuntu\\grubx64.efi", "\\debian\\shimx64.efi"),
}
_OF_INSTALLER = "winhost-installer"


@dataclass(frozen=True)
class LinuxFirmware:
    """The firmware as a Linux beside Windows reads it. timer: minutes after which it starts Windows by itself."""

    boot_id: str
    current: str | None
    next: str | None
    order: tuple[str, ...]
    entries: tuple[BootEntry, ...]
    timer: int | None
    ok: bool = True


@dataclass(frozen=True)
class Switched:
    """The outcome of a switch. entry: the one to be started once; came_up: the system that did, where that was waited
    for; told: what to know of this firmware.
    """

    host: str
    to: str
    entry: BootEntry
    windows_first: bool
    restarted: bool
    came_up: str | None = None
    told: tuple[str, ...] = ()


def not_switched(host: str, why: str) -> WinhostError:
    """The machine could not be told to start the system that was asked for."""
    return WinhostError("NotSwitched", what=f"{host}: {why}", meaning="Nothing was restarted.", host=host)


def entry_of(host: str, system: str, entries: Sequence[BootEntry]) -> BootEntry:
    """The one entry that starts this system. Raises WinhostError (NotSwitched)."""
    found = [each for each in entries if _starts(each, system)]
    if len(found) != 1:
        told = ", ".join(f"{each.entry} {visible(each.description)}" for each in entries) or "none"
        raise not_switched(host, f"{len(found)} boot entries start {system}, and one is needed; there are: {told}")
    return found[0]


def _starts(entry: BootEntry, system: str) -> bool:
    if system == INSTALLER:
        return entry.description == _OF_INSTALLER
    return (entry.path or "").casefold().endswith(tuple(_LOADERS[system]))


# ---- from Windows


def from_windows(connector: Connector, facts: Facts, system: str, *, restart: bool) -> tuple[Switched, str]:
    """Switch, and return the boot id of before. Raises WinhostError (NotSwitched), WireError, RemoteError."""
    with closing(connector.open()) as agent:
        found = _firmware(agent)
        entry = entry_of(facts.host, system, found.entries)
        if found.next != entry.entry:
            agent.set(
                "FirmwareBoot", {}, {"next": entry.entry}, {"next": found.next}, {"accept": [], "within": _WITHIN}
            )
        now = _firmware(agent)
        if now.next != entry.entry:
            raise not_switched(
                facts.host, f"the firmware was told to start {entry.entry} once, and will start {now.next}"
            )
        boot = str(agent.boot().get("boot_id"))
        if restart:
            reboot.ask(agent)
    told: tuple[str, ...] = ()
    with suppress(MissingFact):
        if made_by := forgetful_firmware(HostFacts(facts)):
            told = (f"{made_by}: machines of this maker were reported to forget or reorder what is to be started",)
    windows_first = first_is_windows(now.order, now.entries)
    return Switched(facts.host, system, entry, windows_first, restart, None, told), boot


def windows_is_first(agent: Agent) -> bool:
    """Tell whether Windows is first in the firmware's boot order, as Windows reads it. Raises RemoteError, WireError,
    MissingFact.
    """
    found = _firmware(agent)
    return first_is_windows(found.order, found.entries)


def _firmware(agent: Agent) -> FirmwareBoot:
    """Read FirmwareBoot by its name: Windows reads the variables only then."""
    state = agent.get("FirmwareBoot", {})
    assert state is not None
    return typed_instance(FirmwareBoot, Record(state)).state


def first_is_windows(order: Sequence[str], entries: Sequence[BootEntry]) -> bool:
    first = next((each for each in entries if order and each.entry == order[0]), None)
    return first is not None and _starts(first, WINDOWS)


# ---- from Linux


def on_linux(wire: SshWire, **request: Json) -> LinuxFirmware:
    """One request to the Linux beside Windows. Raises RemoteError, WireError."""
    return one_answer(wire.host, wire.invoke(json.dumps(request), _WITHIN), LinuxFirmware, "boot")


def from_linux(wire: SshWire, name: str, *, restart: bool) -> tuple[Switched, str]:
    """Switch to Windows, and return the boot id of before. Raises WinhostError (NotSwitched), RemoteError,
    WireError.
    """
    found = on_linux(wire, to=WINDOWS, restart=restart)
    entry = entry_of(name, WINDOWS, found.entries)
    if found.next != entry.entry:
        raise not_switched(name, f"the firmware was told to start {entry.entry} once, and will start {found.next}")
    return Switched(name, WINDOWS, entry, first_is_windows(found.order, found.entries), restart), found.boot_id


# ---- afterwards


def came_up(same: Callable[[], str | None], other: Callable[[], bool], patience: Patience) -> bool | None:
    """Wait until the other system is up: True; False where the one of before is, in another boot; None where neither
    was.

    same: the boot id of the one of before, or None where it does not answer; other: whether the other one answers.
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


def runs(connector: Connector, *systems: str) -> bool:
    """Tell whether a session opens, with one of these systems."""
    try:
        with closing(connector.open()) as agent:
            return agent.system in systems
    except WireError:
        return False


def another_boot(connector: Connector, before: str, *but: str) -> str | None:
    """The id of a boot that is another than before, and of none of the systems `but`, where a session tells one."""
    try:
        with closing(connector.open()) as agent:
            boot = str(agent.boot().get("boot_id"))
            return None if boot == before or agent.system in but else boot
    except WinhostError:
        return None
