"""Resolve the names of hosts on the command line: hosts of the fleet file, and the machine that winhost runs on.

That machine has its own name. A host of fleet.yaml with this name, or the one with address: localhost, takes
precedence.
"""

import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from getpass import getuser
from pathlib import Path

import click

from winhost.cli.output import say
from winhost.connect.this_computer import local_powershell
from winhost.model.errors import UsageError
from winhost.model.facts import Facts
from winhost.model.fleet import (
    SKIP_VERIFICATION,
    AnyHost,
    Fleet,
    Host,
    LinuxHost,
    Transport,
    WireKind,
    bracket_ipv6,
    host_name,
    load_fleet,
)
from winhost.model.fleet_path import find_fleet

log = logging.getLogger(__name__)

LOCALHOST = "localhost"
_DEFAULT_PORTS = (22, 5985, 5986)
_FALLBACK_NAME = "this-machine"


def this_machine_name() -> str:
    """Return the name of this machine, in lower case, without its domain."""
    try:
        return host_name(socket.gethostname().partition(".")[0].lower())
    except ValueError:
        return _FALLBACK_NAME


def is_this_machine(name: str) -> bool:
    return name.lower() in (LOCALHOST, this_machine_name())


def this_machine() -> AnyHost:
    """Return this machine as a host: its Windows, even if winhost runs in a WSL distro; else this Linux."""
    name = this_machine_name()
    if local_powershell() is not None:
        return Host(name=name, address=LOCALHOST, transport=Transport(kind=WireKind.LOCAL))
    user = getuser()
    return LinuxHost(name=name, address=LOCALHOST, user=user, sudo=user != "root", is_this_computer=True)


def load_fleet_if_any(fleet_file: Path | None) -> Fleet | None:
    """Return the fleet; None if there is no fleet file and the user named none. Raises UsageError: NoFleet,
    FileFaults.
    """
    try:
        file = find_fleet(fleet_file)
    except UsageError as error:
        if fleet_file is None and error.code == "NoFleet":
            return None
        raise
    log.debug("the fleet file is %s", file.absolute())
    return load_fleet(file)


def local_host(fleet_file: Path | None) -> AnyHost:
    """Return the host of fleet.yaml that is this machine, else this machine. Raises as `load_fleet_if_any` does."""
    fleet = load_fleet_if_any(fleet_file)
    hosts = fleet.hosts if fleet else ()
    return next(filter(is_local, hosts), None) or this_machine()


def is_local(host: AnyHost) -> bool:
    """Tell whether winhost runs on this host."""
    return host.is_this_computer if isinstance(host, LinuxHost) else host.transport.kind is WireKind.LOCAL


def check_rights(host: AnyHost) -> None:
    """Check the rights of this process if the host is this machine. Raises UsageError: NotAdministrator."""
    if not is_local(host):
        return
    if isinstance(host, LinuxHost):
        if not host.sudo or host.sudo_password is not None:
            return
        program = shutil.which("sudo")
        command, nothing = [str(program), "-n", "true"], subprocess.DEVNULL
        if not program or subprocess.run(command, capture_output=True, check=False, stdin=nothing).returncode:  # noqa: S603 - constant words
            hint = 'Type it as root: sudo "$(command -v winhost)" up'
            raise _rights_error(host.name, f"{getuser()} is not root here, and sudo asks for a password", hint)
    elif os.name == "nt":
        import ctypes  # only Windows has `windll`

        shell32: object = getattr(ctypes, "windll").shell32  # noqa: B009 - other systems' stubs lack it
        if not shell32.IsUserAnAdmin():  # type: ignore[attr-defined]
            raise no_administrator_rights_error(host.name)


def check_reported_rights(host: AnyHost, facts: Facts) -> None:
    """Check the rights that the Windows of this machine reports. Raises UsageError: NotAdministrator."""
    sessions = facts.resources.get("Session")
    if is_local(host) and isinstance(sessions, tuple) and sessions and sessions[0].state.get("administrator") is False:
        raise no_administrator_rights_error(host.name)


def no_administrator_rights_error(host: str) -> UsageError:
    """Return the error for a terminal without administrator rights, which every change of Windows needs."""
    hint = "Open a terminal with 'Run as administrator' and type it there again: winhost up"
    return _rights_error(host, "this terminal has no administrator rights", hint)


def _rights_error(host: str, what: str, hint: str) -> UsageError:
    meaning = "Nothing was changed: no change that is needed can be made without them."
    return UsageError("NotAdministrator", what=what, meaning=meaning, hint=hint, host=host)


def resolve_hosts(names: Sequence[str], fleet_file: Path | None) -> list[AnyHost]:
    """Return the hosts with these names, patterns or groups, and warn about each whose certificate is not checked. The
    name of this machine is always known.

    Raises UsageError (NothingNamed, NoFleet, FileFaults, UnknownHost).
    """
    if not names:
        raise no_host_named_error(accepts_facts=False)
    added_hosts, fleet = _added_hosts(), load_fleet_if_any(fleet_file)
    if fleet is None:
        if not all(name in added_hosts or is_this_machine(name) for name in names):
            find_fleet(fleet_file)  # raises NoFleet
        fleet = Fleet(Path("fleet.yaml"), ())
    hosts_by_name: dict[str, AnyHost] = {}
    for name in names:
        if name in added_hosts:
            hosts_by_name[name] = added_hosts[name]
            continue
        in_fleet = any(host.name.lower() == name.lower() for host in fleet.hosts)
        matches = fleet.select([name]) if in_fleet or not is_this_machine(name) else [local_host(fleet_file)]
        hosts_by_name.update((host.name, host) for host in matches)
    hosts = [*hosts_by_name.values()]
    _warn_of_unverified(hosts)
    return hosts


def resolve_account(account: str, fleet_file: Path | None) -> AnyHost:
    """Return the host at USER@ADDRESS: one of fleet.yaml, or else a new one, for which the user is asked for the
    password. `resolve_hosts` of this process then knows the new host, too. Raises as `add_host` does.
    """
    try:
        fleet_hosts = load_fleet(find_fleet(fleet_file)).hosts
    except UsageError as error:
        if error.code != "NoFleet":
            raise
        fleet_hosts = ()
    host = next((host for host in fleet_hosts if account.lower() in _accounts(host)), None)
    if host is None:
        from winhost.cli.host.add import add_host  # loads the checks of a new host, which a known one does not need
        from winhost.cli.host.commands import NewHost  # needed only for a new host

        host = add_host(NewHost(account), fleet_file, ask_to_add=True).host
        _added_hosts()[host.name] = host
    return host


def _accounts(host: AnyHost) -> Iterator[str]:
    """Yield the forms of USER@ADDRESS:PORT for a host, and those without the port if it is a default one."""
    login = host.transport if isinstance(host, Host) else host
    for address in (bracket_ipv6(host.address), host.name):
        yield f"{login.user}@{address}:{login.port}".lower()
        if login.port in _DEFAULT_PORTS:
            yield f"{login.user}@{address}".lower()


def _added_hosts() -> dict[str, AnyHost]:
    """Return the hosts that `resolve_account` added to this process, by name."""
    context = click.get_current_context(silent=True)
    hosts: dict[str, AnyHost] = context.find_root().meta.setdefault("winhost.told", {}) if context else {}
    return hosts


def no_host_named_error(*, accepts_facts: bool) -> UsageError:
    """Return the error for a command without hosts. accepts_facts: the command also takes facts files."""
    advice = "Name localhost (this machine), hosts of fleet.yaml, a pattern ('gpu-*') or a group ('@lab')"
    return UsageError(
        "NothingNamed",
        what="no host named, and no --facts file" if accepts_facts else "no host named",
        hint=f"{advice}, or a facts file." if accepts_facts else f"{advice}.",
    )


def _warn_of_unverified(hosts: Iterable[AnyHost]) -> None:
    """Warn about hosts whose certificate is not checked, once for each host and command."""
    context = click.get_current_context(silent=True)
    warned_hosts: set[str] = context.meta.setdefault("winhost.unverified", set()) if context else set()
    for host in hosts:
        if not isinstance(host, Host):
            continue  # SSH refuses an unknown host key by itself
        transport = host.transport
        if transport.tls and transport.verify is False and host.name not in warned_hosts:
            warned_hosts.add(host.name)
            setting = f"{transport.position_of('verify')} is {SKIP_VERIFICATION}"
            say(f"warning: the certificate of {host.name} is not checked: {setting}", err=True)
            say("  Anyone on the network path can read and change what is sent, the logon included.", err=True)
            say("  Name its CA there instead: the path of a PEM file.", err=True)
