"""The hosts that words on the command line name: those of the fleet file, and the machine that winhost runs on.

That machine goes by its own name. A host of fleet.yaml with this name, or the one with address: localhost, takes
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
_USUAL_PORTS = (22, 5985, 5986)
_UNNAMED = "this-machine"


def own_name() -> str:
    """Return the name of this machine, in lower case, without its domain."""
    try:
        return host_name(socket.gethostname().partition(".")[0].lower())
    except ValueError:
        return _UNNAMED


def is_own_name(word: str) -> bool:
    return word.lower() in (LOCALHOST, own_name())


def this_machine() -> AnyHost:
    """Return this machine as a host: its Windows, also from a distro of its WSL; else this Linux."""
    name = own_name()
    if local_powershell() is not None:
        return Host(name=name, address=LOCALHOST, transport=Transport(kind=WireKind.LOCAL))
    user = getuser()
    return LinuxHost(name=name, address=LOCALHOST, user=user, sudo=user != "root", is_this_computer=True)


def known_fleet(fleet_file: Path | None) -> Fleet | None:
    """Return None if there is no fleet file and none was named. Raises UsageError: NoFleet, FileFaults."""
    try:
        file = find_fleet(fleet_file)
    except UsageError as error:
        if fleet_file is None and error.code == "NoFleet":
            return None
        raise
    log.debug("the fleet file is %s", file.absolute())
    return load_fleet(file)


def local_host(fleet_file: Path | None) -> AnyHost:
    """Return the host of fleet.yaml that is this machine, else this machine. Raises as `known_fleet` does."""
    fleet = known_fleet(fleet_file)
    hosts = fleet.hosts if fleet else ()
    return next(filter(is_local, hosts), None) or this_machine()


def is_local(host: AnyHost) -> bool:
    """Tell whether winhost runs on this host."""
    return host.is_this_computer if isinstance(host, LinuxHost) else host.transport.kind is WireKind.LOCAL


def check_rights(host: AnyHost) -> None:
    """Check the rights on this machine, as far as this process can tell. Raises UsageError: NotAdministrator."""
    if not is_local(host):
        return
    if isinstance(host, LinuxHost):
        if not host.sudo or host.sudo_password is not None:
            return
        program = shutil.which("sudo")
        words, nothing = [str(program), "-n", "true"], subprocess.DEVNULL
        if not program or subprocess.run(words, capture_output=True, check=False, stdin=nothing).returncode:  # noqa: S603 - constant words
            hint = 'Type it as root: sudo "$(command -v winhost)" up'
            raise _lacking(host.name, f"{getuser()} is not root here, and sudo asks for a password", hint)
    elif os.name == "nt":
        import ctypes  # Windows alone has what is asked here

        shell: object = getattr(ctypes, "windll").shell32  # noqa: B009 - other systems' stubs lack it
        if not shell.IsUserAnAdmin():  # type: ignore[attr-defined]
            raise not_administrator(host.name)


def check_rights_told(host: AnyHost, facts: Facts) -> None:
    """Check the rights that Windows reports. Raises UsageError: NotAdministrator."""
    sessions = facts.resources.get("Session")
    if is_local(host) and isinstance(sessions, tuple) and sessions and sessions[0].state.get("administrator") is False:
        raise not_administrator(host.name)


def not_administrator(host: str) -> UsageError:
    """Make the error for a terminal without the rights that every change of Windows needs."""
    hint = "Open a terminal with 'Run as administrator' and type it there again: winhost up"
    return _lacking(host, "this terminal has no administrator rights", hint)


def _lacking(host: str, what: str, hint: str) -> UsageError:
    meaning = "Nothing was changed: no change that is needed can be made without them."
    return UsageError("NotAdministrator", what=what, meaning=meaning, hint=hint, host=host)


def hosts_named(words: Sequence[str], fleet_file: Path | None) -> list[AnyHost]:
    """Return the hosts that words name, and warn of each whose certificate is not checked. This machine's own name
    means this machine, also if fleet.yaml does not have it.

    Raises UsageError for no words, no fleet file, faults in it, or an unknown host.
    """
    if not words:
        raise nothing_named(offline=False)
    told, fleet = _told_hosts(), known_fleet(fleet_file)
    if fleet is None:
        if not all(word in told or is_own_name(word) for word in words):
            find_fleet(fleet_file)  # raises NoFleet
        fleet = Fleet(Path("fleet.yaml"), ())
    chosen: dict[str, AnyHost] = {}
    for word in words:
        if word in told:
            chosen[word] = told[word]
            continue
        known = any(host.name.lower() == word.lower() for host in fleet.hosts)
        found = fleet.select([word]) if known or not is_own_name(word) else [local_host(fleet_file)]
        chosen.update((host.name, host) for host in found)
    hosts = [*chosen.values()]
    _warn_of_unverified(hosts)
    return hosts


def host_at(account: str, fleet_file: Path | None) -> AnyHost:
    """Return the host at USER@ADDRESS: one of fleet.yaml, or else a new one. For a new one the user is asked for the
    password, and this process knows it by its name from then on. Raises as `add_host` does.
    """
    try:
        known = load_fleet(find_fleet(fleet_file)).hosts
    except UsageError as error:
        if error.code != "NoFleet":
            raise
        known = ()
    found = next((host for host in known if account.lower() in _accounts(host)), None)
    if found is None:
        from winhost.cli.host.add import add_host  # with all that tries a new host
        from winhost.cli.host.commands import NewHost  # a host with a name needs neither

        found = add_host(NewHost(account), fleet_file, ask_to_add=True).host
        _told_hosts()[found.name] = found
    return found


def _accounts(host: AnyHost) -> Iterator[str]:
    """Yield the forms of USER@ADDRESS for a host; a usual port may be left out."""
    login = host.transport if isinstance(host, Host) else host
    for address in (bracket_ipv6(host.address), host.name):
        yield f"{login.user}@{address}:{login.port}".lower()
        if login.port in _USUAL_PORTS:
            yield f"{login.user}@{address}".lower()


def _told_hosts() -> dict[str, AnyHost]:
    """Return the hosts of this process that are in no file, by name."""
    context = click.get_current_context(silent=True)
    found: dict[str, AnyHost] = context.find_root().meta.setdefault("winhost.told", {}) if context else {}
    return found


def nothing_named(*, offline: bool) -> UsageError:
    """Make the error for a command without hosts. offline: facts files would do as well."""
    hosts = "Name localhost (this machine), hosts of fleet.yaml, a pattern ('gpu-*') or a group ('@lab')"
    return UsageError(
        "NothingNamed",
        what="no host named, and no --facts file" if offline else "no host named",
        hint=f"{hosts}, or a facts file." if offline else f"{hosts}.",
    )


def _warn_of_unverified(hosts: Iterable[AnyHost]) -> None:
    """Warn on every command, once for each host."""
    context = click.get_current_context(silent=True)
    warned: set[str] = context.meta.setdefault("winhost.unverified", set()) if context else set()
    for host in hosts:
        if not isinstance(host, Host):
            continue  # SSH refuses an unknown host key by itself
        transport = host.transport
        if transport.tls and transport.verify is False and host.name not in warned:
            warned.add(host.name)
            where = f"{transport.position_of('verify')} is {SKIP_VERIFICATION}"
            say(f"warning: the certificate of {host.name} is not checked: {where}", err=True)
            say("  Anyone on the network path can read and change what is sent, the logon included.", err=True)
            say("  Name its CA there instead: the path of a PEM file.", err=True)
