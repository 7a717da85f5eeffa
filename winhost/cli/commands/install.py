"""Arguments, options and help of `winhost install`."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostGroup, does
from winhost.cli.options import accept_option, fleet_option, force_option, option, options_object
from winhost.cli.outputs import answers
from winhost.core.dataclass import dataclass


@click.group(cls=WinhostGroup)
def install() -> None:
    """Install Ubuntu on a machine, beside Windows or instead of it, on exactly the disks that were named."""


@dataclass(frozen=True)
class InstallOptions:
    """The system that is to be installed, and on which disks."""

    disks: tuple[str, ...] = option(
        "--disk",
        "disks",
        metavar="GUID",
        multiple=True,
        help="Give this disk to Ubuntu whole, by its unique id if it has no table; several with --raid.",
    )
    raid: int | None = option("--raid", type=int, metavar="LEVEL", help="Join the disks: 0, 1, 5, 6 or 10.")
    lvm: bool = option("--lvm", is_flag=True, help="Put the root into a volume group, on whole disks.")
    hostname: str = option("--hostname", metavar="NAME", required=True, help="The new system's name.")
    user: str = option("--user", metavar="NAME", default="winhost", show_default=True, help="Who logs on to it.")
    keys: tuple[Path, ...] = option(
        "--ssh-key",
        "keys",
        metavar="FILE.pub",
        multiple=True,
        type=click.Path(path_type=Path),
        help="A public key of that user. There is no password. Default: that of ssh.key of the host in fleet.yaml, "
        "else of a pair that winhost makes.",
    )
    mac: str = option("--mac", metavar="ADDRESS", required=True, help="The MAC address of its network card.")
    address: str | None = option("--address", metavar="ADDRESS", help="As 192.0.2.10/24. Default: by DHCP.")
    gateway: str | None = option("--gateway", metavar="ADDRESS", help="The gateway of its network.")
    dns: str | None = option("--dns", metavar="ADDRESSES", help="Its name servers, with commas between them.")
    installer: str = option(
        "--installer",
        metavar="VERSION",
        default="24.04.4",
        show_default=True,
        help="The point release of Ubuntu Server.",
    )
    kernel: str = option(
        "--kernel",
        type=click.Choice(("generic", "hwe")),
        default="generic",
        show_default=True,
        help="The kernel that it gets.",
    )
    timezone: str = option("--timezone", metavar="NAME", default="Etc/UTC", show_default=True, help="Its time zone.")
    extras: tuple[str, ...] = option(
        "--with",
        "extras",
        multiple=True,
        type=click.Choice(("criu", "cuda-checkpoint")),
        help="Say how to install this afterwards.",
    )
    allow_unverified: bool = option(
        "--allow-unverified",
        is_flag=True,
        help="Plan even if a required fact could not be read or the option is unproven.",
    )


@install.command()
@click.argument("facts", metavar="FACTS", type=click.Path(path_type=Path))
@options_object(InstallOptions, "asked")
@force_option
@answers("FILE", "The plan to write.", required=True)
@does("plan_install")
def plan() -> None:
    """Plan the installation of Ubuntu on the host of FACTS. Changes nothing.

    Beside Windows, Windows makes the partition first: winhost plan --path dual-boot. With --disk, everything on that
    disk is lost; the consent to that is typed when media are made.
    """  # fmt: skip


@dataclass(frozen=True)
class MediaOptions:
    """The source of media, the delivery of the new system's settings, and how long to wait for it."""

    mirror: str | None = option(
        "--mirror", metavar="PLACE", help="Another place of Ubuntu's releases, or a folder with a copy."
    )
    serve: str | None = option(
        "--serve",
        metavar="ADDRESS",
        help="Hand out the settings once from this address of this computer, and keep them off the media.",
    )
    report: str | None = option(
        "--report", metavar="ADDRESS", help="Hear at this address of this computer how far the installer is."
    )
    reach: str | None = option(
        "--reach", metavar="ADDRESS", help="Where the new system answers. Default: the address of the plan."
    )
    minutes: int = option(
        "--wait",
        "minutes",
        type=click.IntRange(1, 1440),
        default=120,
        show_default=True,
        metavar="MINUTES",
        help="How long to wait for the new system, with --serve or --report.",
    )
    consent_file: Path | None = option(
        "--consent-file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="A file that quotes each disk that is lost, one a line, in place of typing them at a terminal.",
    )


@install.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@options_object(MediaOptions, "asked")
@force_option
@answers("FILE", "The image to write; with a slash at its end, a folder of what a FAT32 partition gets.", required=True)
@does("media_install")
def media() -> None:
    """Make installation media of PLAN, with a host key that is made now.

    The image of Ubuntu is taken by Canonical's signature. The GUID or serial number of each disk that Ubuntu gets whole
    is to be typed at a terminal, or quoted in a file.
    """  # fmt: skip


@install.command()
@click.argument("host", metavar="HOST", **completion.HOSTS)
@click.option(
    "--bmc", "url", metavar="ADDRESS", required=True, help="The host's BMC, as https://bmc-gpu-01.example.org."
)
@click.option("--bmc-user", "user", metavar="NAME", required=True, help="Who logs on to it.")
@click.option(
    "--bmc-password",
    "password",
    metavar="REFERENCE",
    required=True,
    help="Where the password is: env:NAME, file:/PATH, cmd:PROGRAM or keyring:SERVICE/USER.",
)
@click.option(
    "--bmc-ca",
    "ca",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The certificate that it shows, or of who signed that. Default: public authorities.",
)
@click.option("--image", metavar="ADDRESS", help="The media, at an https address that the BMC can read.")
@click.option("--take-back", is_flag=True, help="Take the media out, and start as usual again.")
@accept_option
@fleet_option
@answers()
@does("media_install")
def bmc() -> None:
    """Insert media through the BMC of HOST, and start from them once.

    HOST is read first: a BMC that does not say the same SMBIOS UUID and serial number gets nothing. With --accept
    restart, the machine restarts by force, whatever runs on it.
    """  # fmt: skip
