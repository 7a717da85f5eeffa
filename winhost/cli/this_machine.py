"""The machine that winhost runs on, as a host that no fleet.yaml has to name.

It is called what it calls itself. A host of fleet.yaml with this name, or the one with address: localhost, is meant
instead where there is one.
"""

import os
import shutil
import socket
import subprocess
from getpass import getuser
from pathlib import Path

from winhost.connect.this_computer import local_powershell
from winhost.model.errors import UsageError
from winhost.model.facts import Facts
from winhost.model.fleet import AnyHost, Host, LinuxHost, Login, Sudo, Transport, WireKind, find_fleet
from winhost.model.fleetfile import host_name, load_fleet

LOCALHOST = "localhost"
_UNNAMED = "this-machine"


def own_name() -> str:
    """The name of this machine, in lower case, without its domain."""
    try:
        return host_name(socket.gethostname().partition(".")[0].lower())
    except ValueError:
        return _UNNAMED


def is_own_name(word: str) -> bool:
    return word.lower() in (LOCALHOST, own_name())


def this_machine() -> AnyHost:
    """Its Windows, where winhost runs on it or in a distro of its WSL; else this Linux."""
    name = own_name()
    if local_powershell() is not None:
        return Host(name, LOCALHOST, Transport(port=0, kind=WireKind.LOCAL))
    user = getuser()
    return LinuxHost(name, Login(LOCALHOST, user), sudo=None if user == "root" else Sudo(), here=True)


def local_host(fleet_file: Path | None) -> AnyHost:
    """The host of fleet.yaml that is this machine, else this machine by its own name. Raises UsageError: FileFaults."""
    try:
        fleet = load_fleet(find_fleet(fleet_file))
    except UsageError as error:
        if fleet_file is not None or error.code != "NoFleet":
            raise
        return this_machine()
    return next((host for host in fleet.hosts if is_local(host)), None) or this_machine()


def is_local(host: AnyHost) -> bool:
    """Nothing is between it and winhost."""
    return host.here if isinstance(host, LinuxHost) else host.transport.kind is WireKind.LOCAL


def check_rights(host: AnyHost) -> None:
    """Check the rights of winhost here, as far as this process knows them itself. Raises UsageError:
    NotAdministrator.
    """
    if not is_local(host):
        return
    if isinstance(host, LinuxHost):
        if host.sudo is not None and host.sudo.password is None and not _becomes_root():
            raise _not_root(host.name)
    elif os.name == "nt" and not _is_elevated():
        raise not_administrator(host.name)


def check_rights_told(host: AnyHost, facts: Facts) -> None:
    """Check the rights that Windows reports. Raises UsageError: NotAdministrator."""
    sessions = facts.resources.get("Session")
    if is_local(host) and isinstance(sessions, tuple) and sessions and sessions[0].state.get("administrator") is False:
        raise not_administrator(host.name)


def not_administrator(host: str) -> UsageError:
    """Windows refuses every change without these rights."""
    hint = "Open a terminal with 'Run as administrator' and type it there again: winhost up"
    return _lacking(host, "this terminal has no administrator rights", hint)


def _not_root(host: str) -> UsageError:
    hint = 'Type it as root: sudo "$(command -v winhost)" up'
    return _lacking(host, f"{getuser()} is not root here, and sudo asks for a password", hint)


def _lacking(host: str, what: str, hint: str) -> UsageError:
    meaning = "Nothing was changed: no change that is needed can be made without them."
    return UsageError("NotAdministrator", what=what, meaning=meaning, hint=hint, host=host)


def _becomes_root() -> bool:
    sudo = shutil.which("sudo")
    if sudo is None:
        return False
    words = [sudo, "-n", "true"]
    return subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL).returncode == 0  # noqa: S603 - constant words


def _is_elevated() -> bool:
    import ctypes  # Windows alone has what is asked here

    shell: object = getattr(ctypes, "windll").shell32  # noqa: B009 - other systems' stubs lack it
    return bool(shell.IsUserAnAdmin())  # type: ignore[attr-defined]
