"""winhost boot: start the other system of a machine with two, once."""

from contextlib import closing
from dataclasses import replace

import click

from winhost.cli.change.commands import BootOptions
from winhost.cli.envelope import show_results
from winhost.cli.live_hosts import connector_for, dual_boot_linux, read_live
from winhost.cli.named_hosts import resolve_hosts
from winhost.cli.options import Output
from winhost.cli.output import say
from winhost.cli.watch import Watch, show_progress
from winhost.connect.patience import Patience
from winhost.connect.ssh import SshWire
from winhost.core.answers import MissingFact
from winhost.engine import boot as switching
from winhost.engine.boot import LINUX, WINDOWS, SwitchResult, not_switched_error
from winhost.model.errors import WinhostError, visible
from winhost.model.fleet import AnyHost, LinuxHost
from winhost.resources.linux import linux_scripts

RESTART = "restart"


def boot(options: BootOptions, output: Output) -> int:
    system = options.system
    names = (options.host, options.other) if options.other else (options.host,)
    host, *other_hosts = resolve_hosts(names, options.fleet_file)
    other_linux = None if isinstance(host, LinuxHost) else dual_boot_linux(host)
    linux = host if isinstance(host, LinuxHost) else None
    if other_linux and switching.is_running(connector_for(host), LINUX):
        linux = other_linux
    if linux and system == LINUX:
        return _show_running_linux(host.name, linux, options.return_after, output)
    if options.return_after is not None:
        raise click.UsageError(
            "--return-after is for the Linux that runs: winhost boot LINUX-HOST linux --return-after 30"
        )
    if RESTART not in options.accepted:
        raise click.UsageError(f"{host.name} restarts: add --accept restart")
    if options.console is None:
        raise click.UsageError(
            "If the other system hangs, someone has to turn the machine off and on: add --console if someone can, or "
            "--without-console to continue anyway"
        )
    with show_progress() as watch:
        switched, old_boot = _switch(host, linux, system, watch)
        # fleet.yaml may have the two systems of one machine under one name, or under two.
        other_host = other_hosts[0] if other_hosts else host if other_linux else None
        if other_host:
            switched = _wait_for_system(switched, old_boot, host, other_host, options.restart_deadline, watch)
    show_results("boot", output.shape, [(host.name, switched)], _show)
    return 0 if switched.came_up in (None, system) else 1


def _switch(host: AnyHost, linux: LinuxHost | None, system: str, watch: Watch) -> tuple[SwitchResult, str]:
    """Tell the firmware to start the other system once, and restart. linux: the Linux of the host, if that runs now.

    Return the result, and the boot that runs until the restart.
    """
    if linux is not None:
        if system != WINDOWS:
            raise not_switched_error(host.name, f"a Linux starts Windows, and not {system}")
        with watch.activity(host.name, "telling the firmware"), closing(_wire(linux)) as wire:
            return switching.switch_from_linux(wire, host.name, restart=True)
    if system == WINDOWS:
        raise not_switched_error(host.name, "Windows is what runs there")
    facts = read_live(host, watch)
    with watch.activity(host.name, "telling the firmware"):
        return switching.switch_from_windows(connector_for(host), facts, system, restart=True)


def _wait_for_system(
    switched: SwitchResult, old_boot: str, host: AnyHost, other_host: AnyHost, deadline: float, watch: Watch
) -> SwitchResult:
    """Wait until one of the two systems is up, and return the result with that. deadline: in seconds."""
    connector, other_connector = connector_for(host), connector_for(other_host)
    # If both systems have one name, only the expected system counts. If they have two, any answer of the other counts.
    systems = (switched.to,) if other_host is host else (LINUX, WINDOWS)
    with watch.activity(switched.host, f"waiting for {switched.to}"):
        is_up = switching.wait_for_other_system(
            lambda: switching.find_other_boot(connector, old_boot, *(systems if other_host is host else ())),
            lambda: switching.is_running(other_connector, *systems),
            Patience(deadline=deadline),
        )
    if is_up is None:
        return switched
    if not is_up:
        return replace(switched, came_up=LINUX if switched.to == WINDOWS else WINDOWS)
    return replace(switched, came_up=switched.to, windows_first=_is_windows_first(other_host, switched))


def _is_windows_first(other_host: AnyHost, switched: SwitchResult) -> bool:
    """Read the boot order again, because some firmware changes it. On Linux, this is also the heartbeat without which a
    timer would start Windows.
    """
    try:
        linux = other_host if isinstance(other_host, LinuxHost) else dual_boot_linux(other_host)
        if linux is not None and switched.to == LINUX:
            with closing(_wire(linux)) as wire:
                firmware = switching.query_linux_boot(wire, heartbeat=True)
            return switching.first_is_windows(firmware.order, firmware.entries)
        with closing(connector_for(other_host).open()) as agent:
            return switching.windows_is_first(agent)
    except (WinhostError, MissingFact):
        return switched.windows_first


def _show_running_linux(name: str, linux: LinuxHost, return_after: int | None, output: Output) -> int:
    """Show the state of a Linux that already runs, and set its timer, which takes effect at the next start."""
    request = {} if return_after is None else {"timer": return_after or None}
    with closing(_wire(linux)) as wire:
        firmware = switching.query_linux_boot(wire, heartbeat=True, **request)
    timer = "No timer starts Windows."
    if firmware.timer is not None:
        timer = f"Its timer starts Windows if winhost does not connect within {firmware.timer} minutes of a start."
    shown = f"{visible(name)} runs Linux. {timer}"
    return show_results("boot-linux", output.shape, [(name, firmware)], lambda _: say(shown))


def _wire(linux: LinuxHost) -> SshWire:
    return SshWire(linux, linux_scripts.boot_text())


def _show(switched: SwitchResult) -> None:
    name, entry = visible(switched.host), switched.entry
    say(f"{name}: the firmware starts {visible(entry.description)} ({entry.entry}) once, read back; restarting")
    for line in switched.told:
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
