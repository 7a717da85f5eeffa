"""The hosts of the fleet file that words on the command line name."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from winhost.cli.output import say
from winhost.cli.this_machine import is_own_name, local_host
from winhost.model.errors import UsageError
from winhost.model.fleet import AnyHost, Fleet, Host, find_fleet
from winhost.model.fleetfile import UNVERIFIED, load_fleet

log = logging.getLogger(__name__)

_USUAL_PORTS = (22, 5985, 5986)


def hosts_named(words: Sequence[str], fleet_file: Path | None) -> list[AnyHost]:
    """Those that are to be reached; warns of each whose certificate is not checked. What fleet.yaml does not know, and
    this machine calls itself, is this machine.

    Raises UsageError for no words, no fleet file, faults in it, or an unknown host.
    """

    if not words:
        raise nothing_named(offline=False)
    told = _told_hosts()
    fleet = _fleet([word for word in words if word not in told], fleet_file)
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
    """USER@ADDRESS: a host of fleet.yaml, else one that is asked for its password, and that the user may add. This
    process knows it by its name from then on. Raises as `add_host` does.
    """
    try:
        known = load_fleet(find_fleet(fleet_file)).hosts
    except UsageError as error:
        if error.code != "NoFleet":
            raise
        known = ()
    found = next((host for host in known if account.lower() in _accounts(host)), None)
    if found is None:
        from winhost.cli.host_add import NewHost, add_host  # with all that tries a new host

        found = add_host(NewHost(account), fleet_file, ask_to_add=True).host
        _told_hosts()[found.name] = found
    return found


def _accounts(host: AnyHost) -> Iterator[str]:
    """Ways to write it as USER@ADDRESS; without a port where that is a usual one."""
    user, port = (
        (host.transport.user, host.transport.port) if isinstance(host, Host) else (host.login.user, host.login.port)
    )
    for place in (f"[{host.address}]" if ":" in host.address else host.address, host.name):
        yield f"{user}@{place}:{port}".lower()
        if port in _USUAL_PORTS:
            yield f"{user}@{place}".lower()


def _told_hosts() -> dict[str, AnyHost]:
    """Those that are in no file, by name."""
    context = click.get_current_context(silent=True)
    found: dict[str, AnyHost] = context.find_root().meta.setdefault("winhost.told", {}) if context else {}
    return found


def _fleet(words: Sequence[str], fleet_file: Path | None) -> Fleet:
    """One without hosts where there is no file and every word means this machine."""
    try:
        file = find_fleet(fleet_file)
    except UsageError as error:
        if fleet_file is not None or error.code != "NoFleet" or not all(map(is_own_name, words)):
            raise
        return Fleet(Path("fleet.yaml"), ())
    log.debug("the fleet file is %s", file.absolute())
    return load_fleet(file)


def nothing_named(*, offline: bool) -> UsageError:
    """offline: whether facts files would do as well."""
    hosts = "Name hosts of fleet.yaml, a pattern ('gpu-*') or a group ('@lab')"
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
            continue  # what SSH does not know it refuses
        transport = host.transport
        if transport.tls and transport.verify is False and host.name not in warned:
            warned.add(host.name)
            where = f"{transport.verify_at} is {UNVERIFIED}"
            say(f"warning: the certificate of {host.name} is not checked: {where}", err=True)
            say("  Anyone on the network path can read and change what is sent, the logon included.", err=True)
            say("  Name its CA there instead: the path of a PEM file.", err=True)
