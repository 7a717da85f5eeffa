"""Add a host: ask for its password, try it, and on request write it to the keyring and to fleet.yaml.

`winhost host add` and `winhost up USER@ADDRESS` do the same. Neither ever writes a secret to a file.
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
from winhost.model.fleet_edit import Entry, fleet_to_change, write_added
from winhost.model.secrets import Secret, SecretRef, TypedSecret

_HTTPS, _HTTP, _SSH = 5986, 5985, 22
_WAYS: tuple[tuple[int, bool], ...] = ((_HTTPS, True), (_HTTP, False))  # to Windows, with TLS or without
_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_KEYRING = "winhost"  # the service under which passwords of hosts are kept


@dataclass(frozen=True)
class AddedHost:
    """A host that was tried. file: None if it was not written to one; this process can use it all the same."""

    host: AnyHost
    file: Path | None


def add_host(new: NewHost, fleet_file: Path | None, *, ask_to_add: bool = False) -> AddedHost:
    """Ask on the terminal, and tell on stderr what is done. ask_to_add: ask whether to write it to fleet.yaml at all.

    Raises UsageError (HostThere, NobodyTypes, HostKeyUnconfirmed), and the WinhostError of a host that cannot be used.
    """
    user, address, port = _account(new.account)
    name = _name(new.name or address)
    file = fleet_to_change(fleet_file)
    known = load_fleet(file).hosts if file.exists() else ()
    if name.lower() in {each.name.lower() for each in known}:
        other = "another" if new.name is not None else "a"
        raise UsageError(
            "HostThere",
            what=f"{name} is in {visible(str(file))} already",
            hint=f"Try it: winhost host test {name}\nOr give this one {other} name: --name NAME",
        )
    new = replace(new, port=new.port or port)
    if new.linux:
        host, entry = _linux(new, name, user, address)
    else:
        host, entry = _windows(new, name, user, address)
    if ask_to_add and not click.confirm(f"Add {name} to {visible(str(file))}, for the next time?", err=True):
        return AddedHost(host, None)
    entry = _with_reference(entry, host, name)
    if new.groups:
        entry = {**entry, "groups": list(new.groups)}
    write_added(file, name, entry)
    say(f"{name} is in {visible(str(file))}", err=True)
    return AddedHost(host, file)  # with the password as it was typed: the reference may be to a variable not set yet


def _account(text: str) -> tuple[str, str, int | None]:
    user, at, address = text.rpartition("@")
    found = re.fullmatch(
        r"\[(?P<v6>[0-9A-Fa-f:.]+)\](?::(?P<p6>\d{1,5}))?|(?P<name>[\w.-]+)(?::(?P<port>\d{1,5}))?", address
    )
    port = found and (found["p6"] or found["port"])
    if not (at and all(user.split("@")) and found) or (port and not 0 < int(port) < 65536):
        raise UsageError(
            "NotAnAccount",
            what=f"'{visible(text)[:80]}' is not USER@ADDRESS",
            hint="Write it as: winhost host add USER@ADDRESS\n"
            r"Quote an account of a domain and an IPv6 address: 'DOMAIN\USER@ADDRESS', 'USER@[ADDRESS]'",
        )
    return user, found["v6"] or found["name"], int(port) if port else None


def _name(text: str) -> str:
    """The first part of a DNS name; an address as it is, with `-` for `:` in IPv6."""
    if ":" in text:
        short = f"{'0' if text[0] == ':' else ''}{text.lower().replace(':', '-')}"  # 0::1 is ::1
    else:
        short = text if re.fullmatch(r"[0-9.]+", text) else text.partition(".")[0]
    try:
        return host_name(short.lower() if text == text.lower() or "." in text else short)
    except ValueError as wrong:
        raise UsageError("UnfitName", what=f"'{visible(short)[:80]}' {wrong}", hint="Name it with --name") from None


# ---- Windows


def _windows(new: NewHost, name: str, user: str, address: str) -> tuple[AnyHost, Entry]:
    password = _given(new) or _typed(f"Password of {visible(user)} on {visible(address)}", new)
    verify: bool | Path = new.ca.expanduser().absolute() if new.ca else True
    ways = _WAYS
    if new.port is not None:
        ways = tuple((new.port, tls) for tls in (True, False) if not (tls and new.port == _HTTP))
    for number, (port, tls) in enumerate(ways):
        # Not validated: what does not fit is refused when the entry is written.
        transport = Transport.model_construct(port=port, tls=tls, user=user, password=password, verify=verify)
        host = Host.model_construct(name=name, address=address, transport=transport)
        tested = check_host(host, new=True)
        if number + 1 == len(ways) or not _goes_elsewhere(tested, new.port is None):
            break
        why = next(each.found for each in tested.checked.steps if each.works is False)
        say(f"{why}; trying port {ways[number + 1][0]} without TLS, where the logon seals the messages", err=True)
    _refuse_unready(tested)
    written: dict[str, Any] = {"user": user}
    if not tls:
        written["tls"] = False
    if port not in (_HTTPS, _HTTP):
        written["port"] = port
    if new.ca:
        written["verify"] = str(verify)
    return host, {"address": address, "transport": written}


def _goes_elsewhere(tested: HostCheck, other_port: bool) -> bool:
    """Tell whether the next way may work. Nothing was sent on this one."""
    failed = next((each.step for each in tested.checked.steps if each.works is False), None)
    if failed == PORT:
        return other_port
    speaks_none = isinstance(tested.error, Unreachable) and tested.error.failure in (Failure.NO_TLS, Failure.CUT)
    return speaks_none or (failed == TLS and other_port)


def _refuse_unready(tested: HostCheck) -> None:
    show_check(tested.checked)
    if tested.error:
        tested.error.what = f"{tested.checked.host} was not added: {tested.error.what}"
        tested.error.meaning = tested.error.hint = None  # they stand with the step that failed
        raise tested.error
    if not tested.checked.ready:
        lacking = next(each for each in tested.checked.steps if each.works is False)
        raise WinhostError(
            "HostNotReady",
            what=f"{tested.checked.host} was not added: {lacking.found}",
            hint=lacking.do,
            host=tested.checked.host,
        )


# ---- Linux


def _linux(new: NewHost, name: str, user: str, address: str) -> tuple[AnyHost, Entry]:
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
    tested, host = None, None
    for proof in _proofs(new, user, address):
        host = linux.model_copy(update={"host_key": host_key, **proof})
        tested = check_host(host, new=True)
        if tested.error is not None and tested.error.code == "SudoNeedsPassword":
            own = host.password or _typed(f"Password of {visible(user)} for sudo", new)
            host = host.model_copy(update={"sudo_password": own})
            tested = check_host(host, new=True)
        if tested.error is None or tested.error.code not in ("KeyRefused", "KeyUnusable"):
            break
    assert tested is not None
    assert host is not None
    _refuse_unready(tested)
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
    """The host key to record; None if known_hosts has it. Raises UsageError (HostKeyUnconfirmed), Unreachable."""
    if load_known_keys(name, "", login).keys:
        return None
    shown = fetch_host_key(login.address, login.port)
    if shown is None:
        why = f"no SSH server with an Ed25519 key answers at {format_address(login.address, login.port)}"
        meaning = "It is off, SSH does not run there, or a firewall is in the way. Nothing was changed."
        raise Unreachable(name, why, code="NoSshServer", meaning=meaning, hint=START_SSHD)
    seen = fingerprint(parse_public_key(shown))
    if new.host_key is not None:
        if new.host_key not in (seen, shown):
            raise _unconfirmed(name, f"it shows {seen}, and not the key of --host-key")
        return shown
    say(f"{login.address} shows the host key {seen} (ssh-ed25519).", err=True)
    say("  Compare it on the machine itself:", err=True)
    click.echo("  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub", err=True)  # a command is copied whole
    if not sys.stdin.isatty():
        raise _unconfirmed(name, "nobody is there to confirm its host key", f"Give it: --host-key {seen}")
    if not click.confirm("Is it the same?", err=True):
        raise _unconfirmed(name, "its host key was not confirmed")
    return shown


def _unconfirmed(name: str, why: str, hint: str = "") -> UsageError:
    more = "On the machine itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
    return UsageError("HostKeyUnconfirmed", what=f"{name} was not added: {why}", hint=hint or more, host=name)


def _proofs(new: NewHost, user: str, address: str) -> Iterator[dict[str, Any]]:
    """Ways to log on, to be tried one after the other: keys, then the password."""
    if new.key:
        yield {"key": SecretRef.parse(f"file:{new.key.expanduser().absolute()}")}
        return
    if given := _given(new):
        yield {"password": given}
        return
    for each in _KEYS:
        if Path("~/.ssh", each).expanduser().is_file():
            yield {"key": SecretRef.parse(f"file:~/.ssh/{each}")}
    yield {"password": _typed(f"Password of {visible(user)} on {visible(address)}", new)}


# ---- secrets


def _given(new: NewHost) -> SecretRef | None:
    return secret_reference(new.password, "'--password'")


def _typed(question: str, new: NewHost) -> SecretRef:
    """Ask for a password. Raises UsageError (NobodyTypes), click.Abort for Ctrl-C."""
    if not sys.stdin.isatty():
        port = () if new.port is None or new.account.endswith(f":{new.port}") else ("--port", str(new.port))
        words = ("winhost", "host", "add", new.account, *(("--linux",) if new.linux else ()), *port)
        raise UsageError(
            "NobodyTypes",
            what="nobody is there to type the password",
            hint="Say where it is, as env:NAME, file:/PATH, cmd:PROGRAM ARGUMENTS or keyring:SERVICE/USER: "
            + command_line((*words, "--password", "env:NAME")),
        )
    try:
        typed = str(click.prompt(question, hide_input=True, err=True))
    except click.Abort as stopped:
        raise click.Abort from stopped  # click has ended the line of a hidden prompt: see `winhost.cli.run`
    return TypedSecret("typed", "password", Secret(typed))


def _with_reference(entry: Entry, host: AnyHost, name: str) -> Entry:
    """The entry, with references to what was typed or named."""
    sudo = host.sudo_password if isinstance(host, LinuxHost) else None
    password = host.password if isinstance(host, LinuxHost) else host.transport.password
    secret = password or sudo
    if secret is None:
        return entry
    written = _kept(secret, name) if isinstance(secret, TypedSecret) else secret.written
    part = "ssh" if isinstance(host, LinuxHost) else "transport"
    options = dict(entry[part])
    if password:
        options["password"] = written
    if sudo:
        options["sudo_password"] = written
    return {**entry, part: options}


def _kept(secret: TypedSecret, name: str) -> str:
    """The reference under which the password is to be found from now on."""
    why = None
    try:
        keyring = import_module("keyring")
        if keyring.get_keyring().priority < 1:
            why = "this computer has no keyring that could keep it"
    except ImportError:
        why = "keyring support is not installed (pip install 'winhost[keyring]')"
    if why is None and click.confirm("Keep the password in the keyring of this computer?", default=True, err=True):
        try:
            keyring.set_password(_KEYRING, name, secret.value.reveal())
        except Exception as error:  # noqa: BLE001 - each backend has errors of its own, and their words may hold it
            why = f"the keyring refused ({type(error).__name__})"
        else:
            return f"keyring:{_KEYRING}/{name}"
    variable = re.sub(r"\W", "_", name).upper() + "_PASSWORD"
    variable = f"_{variable}" if variable[0].isdigit() else variable
    if why:
        say(f"The password is not kept: {why}.", err=True)
    example = f"$env:{variable} = Read-Host" if sys.platform == "win32" else f"read -rs {variable}; export {variable}"
    say(f"fleet.yaml refers to env:{variable}. In each shell that runs winhost:", err=True)
    click.echo(f"  {example}", err=True)
    say("  A program that prints the password does as well: password: cmd:PROGRAM ARGUMENTS", err=True)
    return f"env:{variable}"
