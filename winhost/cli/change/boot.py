"""winhost boot: start the other system of a machine with two, once."""

from contextlib import closing
from dataclasses import replace

import click

from winhost.cli.change.commands import BootOptions
from winhost.cli.envelope import show_results
from winhost.cli.live_hosts import connector_for, linux_beside, read_live
from winhost.cli.named_hosts import hosts_named
from winhost.cli.options import Output
from winhost.cli.output import say
from winhost.cli.watch import Watch, watching
from winhost.connect.patience import Patience
from winhost.connect.ssh import SshWire
from winhost.core.answers import MissingFact
from winhost.engine import boot as switching
from winhost.engine.boot import LINUX, WINDOWS, SwitchResult, not_switched_error
from winhost.model.errors import WinhostError, visible
from winhost.model.fleet import AnyHost, Host, LinuxHost
from winhost.resources.linux import linux_scripts

RESTART = "restart"


def boot(asked: BootOptions, output: Output) -> int:
    system = asked.system
    here, *others = hosts_named((asked.host, asked.other) if asked.other else (asked.host,), asked.fleet_file)
    beside = here if isinstance(here, LinuxHost) else linux_beside(here)
    linux = (
        beside if isinstance(here, LinuxHost) or (beside and switching.is_running(connector_for(here), LINUX)) else None
    )
    if linux and system == LINUX:
        return _stay(here.name, linux, asked.return_after, output)
    if asked.return_after is not None:
        raise click.UsageError(
            "--return-after is for the Linux that runs: winhost boot LINUX-HOST linux --return-after 30"
        )
    if RESTART not in asked.accepted:
        raise click.UsageError(f"{here.name} restarts: add --accept restart")
    if asked.console is None:
        raise click.UsageError(
            "If the other system hangs, somebody has to turn the machine off and on: say --console where somebody can, "
            "or --without-console to go on all the same"
        )
    with watching() as watch:
        done = _switch(here, linux, system, watch)
        # The two systems of one machine may stand in the fleet under one name, or under two.
        there = others[0] if others else here if beside and isinstance(here, Host) else None
        switched = _seen(done, here, there, asked.restart_deadline, watch) if there else done[0]
    show_results("boot", output.shape, [(here.name, switched)], _show)
    return 0 if switched.came_up in (None, system) else 1


def _switch(here: AnyHost, linux: LinuxHost | None, system: str, watch: Watch) -> tuple[SwitchResult, str]:
    """Tell the firmware to start the other system once, and restart. linux: its address, if Linux runs there."""
    if linux is not None:
        if system != WINDOWS:
            raise not_switched_error(here.name, f"a Linux starts Windows, and not {system}")
        with watch.at(here.name, "telling the firmware"), closing(_wire(linux)) as wire:
            return switching.switch_from_linux(wire, here.name, restart=True)
    if system == WINDOWS:
        raise not_switched_error(here.name, "Windows is what runs there")
    facts = read_live(here, watch)
    with watch.at(here.name, "telling the firmware"):
        return switching.switch_from_windows(connector_for(here), facts, system, restart=True)


def _seen(done: tuple[SwitchResult, str], here: AnyHost, other: AnyHost, deadline: float, watch: Watch) -> SwitchResult:
    switched, before = done
    same, awaited = connector_for(here), connector_for(other)
    # With one name for both, the system that answers tells; with two, it tells that the other host answers.
    systems = (switched.to,) if other is here else (LINUX, WINDOWS)
    with watch.at(switched.host, f"waiting for {switched.to}"):
        up = switching.wait_for_other_system(
            lambda: switching.find_other_boot(same, before, *(systems if other is here else ())),
            lambda: switching.is_running(awaited, *systems),
            Patience(deadline=deadline),
        )
    if up is None:
        return switched
    if not up:
        return replace(switched, came_up=LINUX if switched.to == WINDOWS else WINDOWS)
    return replace(switched, came_up=switched.to, windows_first=_order_after(other, switched))


def _order_after(there: AnyHost, switched: SwitchResult) -> bool:
    """Read the boot order again, which some firmware changes. On Linux, this also answers its timer."""
    try:
        linux = there if isinstance(there, LinuxHost) else linux_beside(there)
        if linux is not None and switched.to == LINUX:
            with closing(_wire(linux)) as wire:
                found = switching.query_linux_boot(wire, heartbeat=True)
            return switching.first_is_windows(found.order, found.entries)
        with closing(connector_for(there).open()) as agent:
            return switching.windows_is_first(agent)
    except (WinhostError, MissingFact):
        return switched.windows_first


def _stay(name: str, here: LinuxHost, return_after: int | None, output: Output) -> int:
    """Answer for a host that runs this Linux already, whose timer does nothing before the next start."""
    request = {} if return_after is None else {"timer": return_after or None}
    with closing(_wire(here)) as wire:
        found = switching.query_linux_boot(wire, heartbeat=True, **request)
    timer = "No timer goes back to Windows by itself."
    if found.timer is not None:
        timer = f"It goes back to Windows if winhost does not come within {found.timer} minutes of a start."
    shown = f"{visible(name)} runs Linux. {timer}"
    return show_results("boot-linux", output.shape, [(name, found)], lambda _: say(shown))


def _wire(linux: LinuxHost) -> SshWire:
    return SshWire(linux, linux_scripts.boot_text())


def _show(switched: SwitchResult) -> None:
    name, entry = visible(switched.host), switched.entry
    say(f"{name}: the firmware starts {visible(entry.description)} ({entry.entry}) once, read back; restarting")
    for line in switched.notes:
        say(f"  {visible(line)}", hang=2)
    if not switched.windows_first:
        say("  Windows is not first in the boot order: the start after that is not of Windows", hang=2)
    if switched.came_up == switched.to:
        say(f"{name}: {switched.to} is up")
    elif switched.came_up:
        say(
            f"{name}: {switched.came_up} came up again. The firmware did not start what it was told to: choose "
            f"{visible(entry.description)} in its boot menu, at the console."
        )
