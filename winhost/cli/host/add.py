"""Add a host: ask for its password, check the host, and on request write the password to the keyring and the host to
fleet.yaml.

`winhost host add` and `winhost up USER@ADDRESS` use this. No secret is ever written to a file.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from winhost.cli.errors import secret_reference
from winhost.cli.host.check import PORT, TLS, HostCheck, check_host, show_check
from winhost.cli.host.commands import NewHost
from winhost.cli.output import say
from winhost.cli.shells import command_line
from winhost.connect.guard import format_address
from winhost.connect.host_keys import fetch_host_key, load_known_keys
from winhost.connect.own_key import fingerprint, parse_public_key
from winhost.connect.ssh_logon import START_SSHD
from winhost.connect.wire_errors import Failure, Unreachable
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.fleet import AnyHost, Host, LinuxHost, Login, Transport, host_name, load_fleet
from winhost.model.fleet_edit import Entry, fleet_to_change, write_added_host
from winhost.model.secrets import Secret, SecretRef, TypedSecret

_HTTPS, _HTTP, _SSH = 5986, 5985, 22
_WINDOWS_PORTS: tuple[tuple[int, bool], ...] = ((_HTTPS, True), (_HTTP, False))  # each port, and whether it has TLS
_KEY_FILES = ("id_ed25519", "id_ecdsa", "id_rsa")
_KEYRING_SERVICE = "winhost"  # the service under which passwords of hosts are kept


@dataclass(frozen=True)
class AddedHost:
    """A host that was checked. file: the fleet file that it was added to; None if the user declined that."""

    host: AnyHost
    file: Path | None


def add_host(new: NewHost, fleet_file: Path | None, *, ask_to_add: bool = False) -> AddedHost:
    """Check a host and add it to fleet.yaml. Asks on the terminal for what the options do not say.

    ask_to_add: ask whether to write the host to fleet.yaml. Raises UsageError (HostThere, NobodyTypes,
    HostKeyUnconfirmed), and the WinhostError of a host that cannot be used.
    """
    user, address, port = _split_account(new.account)
    name = _host_name(new.name or address)
    file = fleet_to_change(fleet_file)
    fleet_hosts = load_fleet(file).hosts if file.exists() else ()
    if name.lower() in {each.name.lower() for each in fleet_hosts}:
        article = "another" if new.name is not None else "a"
        raise UsageError(
            "HostThere",
            what=f"{name} is in {visible(str(file))} already",
            hint=f"Try it: winhost host test {name}\nOr give this one {article} name: --name NAME",
        )
    new = replace(new, port=new.port or port)
    if new.linux:
        host, entry = _add_linux(new, name, user, address)
    else:
        host, entry = _add_windows(new, name, user, address)
    if ask_to_add and not click.confirm(f"Add {name} to {visible(str(file))}, for the next time?", err=True):
        return AddedHost(host, None)
    entry = _add_secret_references(entry, host, name)
    if new.groups:
        entry = {**entry, "groups": list(new.groups)}
    write_added_host(file, name, entry)
    say(f"{name} is in {visible(str(file))}", err=True)
    return AddedHost(host, file)  # with the typed password: its reference may name a variable that is not set yet


def _split_account(text: str) -> tuple[str, str, int | None]:
    user, at_sign, address = text.rpartition("@")
    match = re.fullmatch(
        r"\[(?P<v6>[0-9A-Fa-f:.]+)\](?::(?P<p6>\d{1,5}))?|(?P<name>[\w.-]+)(?::(?P<port>\d{1,5}))?", address
    )
    port = match and (match["p6"] or match["port"])
    if not (at_sign and all(user.split("@")) and match) or (port and not 0 < int(port) < 65536):
        raise UsageError(
            "NotAnAccount",
            what=f"'{visible(text)[:80]}' is not USER@ADDRESS",
            hint="Write it as: winhost host add USER@ADDRESS\n"
            r"Quote an account of a domain and an IPv6 address: 'DOMAIN\USER@ADDRESS', 'USER@[ADDRESS]'",
        )
    return user, match["v6"] or match["name"], int(port) if port else None


def _host_name(text: str) -> str:
    """Return the name of a host in fleet.yaml: the first part of a DNS name, or an address, with `-` for `:` in
    IPv6.
    """
    if ":" in text:
        short = f"{'0' if text[0] == ':' else ''}{text.lower().replace(':', '-')}"  # 0::1 is ::1
    else:
        short = text if re.fullmatch(r"[0-9.]+", text) else text.partition(".")[0]
    try:
        return host_name(short.lower() if text == text.lower() or "." in text else short)
    except ValueError as error:
        raise UsageError("UnfitName", what=f"'{visible(short)[:80]}' {error}", hint="Name it with --name") from None


# ---- Windows


def _add_windows(new: NewHost, name: str, user: str, address: str) -> tuple[AnyHost, Entry]:
    password = _password_option(new) or _prompt_for_password(f"Password of {visible(user)} on {visible(address)}", new)
    verify: bool | Path = new.ca.expanduser().absolute() if new.ca else True
    ports = _WINDOWS_PORTS
    if new.port is not None:
        ports = tuple((new.port, tls) for tls in (True, False) if not (tls and new.port == _HTTP))
    for index, (port, tls) in enumerate(ports):
        # Not validated here: `write_added_host` refuses values that the schema does not allow.
        transport = Transport.model_construct(port=port, tls=tls, user=user, password=password, verify=verify)
        host = Host.model_construct(name=name, address=address, transport=transport)
        check = check_host(host, new=True)
        if index + 1 == len(ports) or not _can_try_next_port(check, new.port is None):
            break
        reason = next(each.found for each in check.checked.steps if each.works is False)
        say(f"{reason}; trying port {ports[index + 1][0]} without TLS, where the logon seals the messages", err=True)
    _refuse_unready(check)
    transport_entry: dict[str, Any] = {"user": user}
    if not tls:
        transport_entry["tls"] = False
    if port not in (_HTTPS, _HTTP):
        transport_entry["port"] = port
    if new.ca:
        transport_entry["verify"] = str(verify)
    return host, {"address": address, "transport": transport_entry}


def _can_try_next_port(check: HostCheck, has_other_port: bool) -> bool:
    """Tell whether the next port may work, and no credentials were sent to this one."""
    failed_step = next((each.step for each in check.checked.steps if each.works is False), None)
    if failed_step == PORT:
        return has_other_port
    has_no_tls = isinstance(check.error, Unreachable) and check.error.failure in (Failure.NO_TLS, Failure.CUT)
    return has_no_tls or (failed_step == TLS and has_other_port)


def _refuse_unready(check: HostCheck) -> None:
    show_check(check.checked)
    if check.error:
        check.error.what = f"{check.checked.host} was not added: {check.error.what}"
        check.error.meaning = check.error.hint = None  # `show_check` has shown them with the failed step
        raise check.error
    if not check.checked.ready:
        failed = next(each for each in check.checked.steps if each.works is False)
        raise WinhostError(
            "HostNotReady",
            what=f"{check.checked.host} was not added: {failed.found}",
            hint=failed.do,
            host=check.checked.host,
        )


# ---- Linux


def _add_linux(new: NewHost, name: str, user: str, address: str) -> tuple[AnyHost, Entry]:
    port = new.port or _SSH
    linux = LinuxHost.model_construct(
        name=name,
        address=address,
        user=user,
        port=port,
        sudo=user != "root",
        written_at={"key": "the command line", "host_key": "--host-key"},
    )
    host_key = _host_key(new, name, linux)
    check, host = None, None
    for credentials in _credentials(new, user, address):
        host = linux.model_copy(update={"host_key": host_key, **credentials})
        check = check_host(host, new=True)
        if check.error is not None and check.error.code == "SudoNeedsPassword":
            sudo_password = host.password or _prompt_for_password(f"Password of {visible(user)} for sudo", new)
            host = host.model_copy(update={"sudo_password": sudo_password})
            check = check_host(host, new=True)
        if check.error is None or check.error.code not in ("KeyRefused", "KeyUnusable"):
            break
    assert check is not None
    assert host is not None
    _refuse_unready(check)
    ssh: dict[str, Any] = {"user": user}
    if port != _SSH:
        ssh["port"] = port
    if host_key:
        ssh["host_key"] = host_key
    if host.key:
        ssh["key"] = host.key.written
    if host.agent:
        ssh["agent"] = True
    return host, {"kind": "linux", "address": address, "ssh": ssh}


def _host_key(new: NewHost, name: str, login: Login) -> str | None:
    """Return the host key to record in fleet.yaml; None if known_hosts has it. Raises UsageError (HostKeyUnconfirmed),
    Unreachable.
    """
    if load_known_keys(name, "", login).keys:
        return None
    key = fetch_host_key(login.address, login.port)
    if key is None:
        reason = f"no SSH server with an Ed25519 key answers at {format_address(login.address, login.port)}"
        meaning = "It is off, SSH does not run there, or a firewall is in the way. Nothing was changed."
        raise Unreachable(name, reason, code="NoSshServer", meaning=meaning, hint=START_SSHD)
    fingerprint_ = fingerprint(parse_public_key(key))
    if new.host_key is not None:
        if new.host_key not in (fingerprint_, key):
            raise _host_key_error(name, f"it shows {fingerprint_}, and not the key of --host-key")
        return key
    say(f"{login.address} shows the host key {fingerprint_} (ssh-ed25519).", err=True)
    say("  Compare it on the machine itself:", err=True)
    click.echo("  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub", err=True)  # a command is copied whole
    if not sys.stdin.isatty():
        raise _host_key_error(
            name, "there is no terminal to confirm its host key", f"Give it: --host-key {fingerprint_}"
        )
    if not click.confirm("Is it the same?", err=True):
        raise _host_key_error(name, "its host key was not confirmed")
    return key


def _host_key_error(name: str, reason: str, hint: str = "") -> UsageError:
    check_hint = "On the machine itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
    return UsageError("HostKeyUnconfirmed", what=f"{name} was not added: {reason}", hint=hint or check_hint, host=name)


def _credentials(new: NewHost, user: str, address: str) -> Iterator[dict[str, Any]]:
    """Yield the credentials to try one after the other: keys, then the password."""
    if new.key:
        yield {"key": SecretRef.parse(f"file:{new.key.expanduser().absolute()}")}
        return
    if password := _password_option(new):
        yield {"password": password}
        return
    for file_name in _KEY_FILES:
        if Path("~/.ssh", file_name).expanduser().is_file():
            yield {"key": SecretRef.parse(f"file:~/.ssh/{file_name}")}
    yield {"password": _prompt_for_password(f"Password of {visible(user)} on {visible(address)}", new)}


# ---- secrets


def _password_option(new: NewHost) -> SecretRef | None:
    return secret_reference(new.password, "'--password'")


def _prompt_for_password(question: str, new: NewHost) -> SecretRef:
    """Ask for a password. Raises UsageError (NobodyTypes), click.Abort for Ctrl-C."""
    if not sys.stdin.isatty():
        port = () if new.port is None or new.account.endswith(f":{new.port}") else ("--port", str(new.port))
        command = ("winhost", "host", "add", new.account, *(("--linux",) if new.linux else ()), *port)
        raise UsageError(
            "NobodyTypes",
            what="there is no terminal to type the password",
            hint="Say where it is, as env:NAME, file:/PATH, cmd:PROGRAM ARGUMENTS or keyring:SERVICE/USER: "
            + command_line((*command, "--password", "env:NAME")),
        )
    try:
        typed = str(click.prompt(question, hide_input=True, err=True))
    except click.Abort as abort:
        raise click.Abort from abort  # with a cause, because click has ended the line already: see `winhost.cli.run`
    return TypedSecret("typed", "password", Secret(typed))


def _add_secret_references(entry: Entry, host: AnyHost, name: str) -> Entry:
    """Return the entry with references to the secrets that were typed or named."""
    sudo = host.sudo_password if isinstance(host, LinuxHost) else None
    password = host.password if isinstance(host, LinuxHost) else host.transport.password
    secret = password or sudo
    if secret is None:
        return entry
    reference = _store_password(secret, name) if isinstance(secret, TypedSecret) else secret.written
    section = "ssh" if isinstance(host, LinuxHost) else "transport"
    options = dict(entry[section])
    if password:
        options["password"] = reference
    if sudo:
        options["sudo_password"] = reference
    return {**entry, section: options}


def _store_password(secret: TypedSecret, name: str) -> str:
    """Store a typed password in the keyring, if there is one and the user agrees. Return the reference for fleet.yaml:
    to the keyring, or else to an environment variable that the user has to set.
    """
    problem = None
    try:
        keyring = import_module("keyring")
        if keyring.get_keyring().priority < 1:
            problem = "this computer has no keyring that could keep it"
    except ImportError:
        problem = "keyring support is not installed (pip install 'winhost[keyring]')"
    if problem is None and click.confirm("Keep the password in the keyring of this computer?", default=True, err=True):
        try:
            keyring.set_password(_KEYRING_SERVICE, name, secret.value.reveal())
        except Exception as error:  # noqa: BLE001 - each backend has its own errors, and their texts may contain the password
            problem = f"the keyring refused ({type(error).__name__})"
        else:
            return f"keyring:{_KEYRING_SERVICE}/{name}"
    variable = re.sub(r"\W", "_", name).upper() + "_PASSWORD"
    variable = f"_{variable}" if variable[0].isdigit() else variable
    if problem:
        say(f"The password is not kept: {problem}.", err=True)
    example = f"$env:{variable} = Read-Host" if sys.platform == "win32" else f"read -rs {variable}; export {variable}"
    say(f"fleet.yaml refers to env:{variable}. In each shell that runs winhost:", err=True)
    click.echo(f"  {example}", err=True)
    say("  A program that prints the password does as well: password: cmd:PROGRAM ARGUMENTS", err=True)
    return f"env:{variable}"
