"""The hosts of the fleet file that words on the command line name."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from winhost.cli.output import say
from winhost.model.errors import UsageError
from winhost.model.fleet import AnyHost, Host, find_fleet
from winhost.model.fleetfile import UNVERIFIED, load_fleet

log = logging.getLogger(__name__)


def hosts_named(words: Sequence[str], fleet_file: Path | None) -> list[AnyHost]:
    """Those that are to be reached; warns of each whose certificate is not checked.

    Raises UsageError for no words, no fleet file, faults in it, or an unknown host.
    """

    if not words:
        raise nothing_named(offline=False)
    file = find_fleet(fleet_file)
    log.debug("the fleet file is %s", file.absolute())
    hosts = load_fleet(file).select(words)
    _warn_of_unverified(hosts)
    return hosts


def nothing_named(*, offline: bool) -> UsageError:
    """offline: whether facts files would do as well."""
    hosts = "Name hosts of fleet.yaml, a pattern ('gpu-*') or a group ('@lab')"
    return UsageError(
        "NothingNamed",
        what="no host named, and no --facts file" if offline else "no host named",
        hint=f"{hosts}, or a facts file." if offline else f"{hosts}.",
    )


def _warn_of_unverified(hosts: Iterable[AnyHost]) -> None:
    """On every command, once for each host."""
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
