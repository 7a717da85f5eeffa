"""Arguments, options and help of `winhost host`."""

from collections.abc import Sequence
from pathlib import Path

import click

from winhost.cli import completion, options
from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.options import declared, flag, option, options_object, repeated
from winhost.core.dataclass import dataclass


@click.group(cls=WinhostGroup)
def host() -> None:
    """Add, list, remove and test the hosts of fleet.yaml."""


@dataclass(frozen=True)
class NewHost:
    """A host as the command line describes it."""

    account: str = declared(click.argument("account", metavar="USER@ADDRESS"))
    name: str | None = option("NAME", "What to call it. Default: the first part of its DNS name, or its address.")
    groups: Sequence[str] = repeated("GROUP", "A group that it belongs to.", name="--group")
    linux: bool = flag("It is a Linux of its own, reached by SSH.")
    port: int | None = option(
        "PORT", "TCP port. Default: 5986 with TLS, then 5985; with --linux, 22.", type=options.WholeNumber(1, 65_535)
    )
    password: str | None = option(
        "REF", "A secret reference to the password, such as env:NAME. Default: it is asked for."
    )
    ca: Path | None = option("FILE", "The CA of a Windows host's certificate, as a PEM file.")
    key: Path | None = option(
        "FILE", "With --linux: a private key to log on with. Default: those in ~/.ssh, then the password."
    )
    host_key: str | None = option("SHA256:…", "With --linux: the host key that it must show. Default: it is confirmed.")


@host.command()
@options_object(NewHost, "new")
@options.fleet
@implemented_in("host.hosts")
def add() -> None:
    """Try a host, and add it to fleet.yaml.

    Asks for the password and offers to keep it in this computer's keyring; fleet.yaml gets a reference to it, never the
    password. Creates fleet.yaml if it does not exist, and keeps the rest of it. Changes nothing on the host.
    """


@host.command(name="list")
@options.fleet
@options.output_options(wide=True)
@implemented_in("host.hosts")
def list_() -> None:
    """List the hosts of fleet.yaml, and how each is reached."""


@host.command()
@click.argument("name", metavar="NAME", **completion.HOSTS)
@options.yes
@options.fleet
@implemented_in("host.hosts")
def remove() -> None:
    """Remove a host from fleet.yaml. Changes nothing on the host."""


@host.command()
@click.argument("hosts", metavar="[NAME]...", nargs=-1, **completion.HOSTS)
@options.at_once
@options.fleet
@options.output_options()
@implemented_in("host.hosts")
def test() -> None:
    """Check step by step whether hosts can be managed, and say what to do if not.

    Checks name, port, TLS, logon, rights and PowerShell; on a Linux its host key, the logon and sudo. Without NAME it
    checks all hosts. Changes nothing.
    """
