"""Arguments, options and help of `winhost install`."""

from pathlib import Path

import click

from winhost.cli import completion, options
from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.options import declared, flag, option, options_object, repeated
from winhost.core.dataclass import dataclass


@click.group(cls=WinhostGroup)
def install() -> None:
    """Install Ubuntu on a machine, beside Windows or instead of it, only on the disks that you name."""


@dataclass(frozen=True)
class InstallOptions:
    """The system to install, and the disks that it gets."""

    disks: tuple[str, ...] = repeated(
        "GUID",
        "Give this whole disk to Ubuntu: its GUID, or its unique id if it has no partition table; several with --raid.",
        name="--disk",
    )
    raid: int | None = option("LEVEL", "Join the disks to a RAID of this level: 0, 1, 5, 6 or 10.", type=int)
    lvm: bool = flag("Put the root into a volume group, on whole disks.")
    hostname: str = option("NAME", "The new system's name.", required=True)
    user: str = option("NAME", "The user account to create.", default="winhost")
    keys: tuple[Path, ...] = repeated(
        "FILE.pub",
        "A public key of that user, who has no password. Default: the public half of ssh.key of the host in "
        "fleet.yaml, else of a key pair that winhost makes.",
        name="--ssh-key",
    )
    mac: str = option("ADDRESS", "The MAC address of its network card.", required=True)
    address: str | None = option("ADDRESS", "Its address, as 192.0.2.10/24. Default: dhcp.")
    gateway: str | None = option("ADDRESS", "The gateway of its network.")
    dns: str | None = option("ADDRESSES", "Its name servers, with commas between them.")
    installer: str = option("VERSION", "The point release of Ubuntu Server.", default="24.04.4")
    kernel: str = option(None, "The kernel that it gets.", default="generic", type=click.Choice(("generic", "hwe")))
    timezone: str = option("NAME", "Its time zone.", default="Etc/UTC")
    extras: tuple[str, ...] = repeated(
        None,
        "List the steps that install this afterwards.",
        name="--with",
        type=click.Choice(("criu", "cuda-checkpoint")),
    )
    allow_unverified: bool = declared(options.allow_unverified, False)


@install.command()
@click.argument("facts", metavar="FACTS", type=options.PATH)
@options_object(InstallOptions, "options")
@options.force
@options.output_options("FILE", "The plan to write.", required=True)
@implemented_in("install.install")
def plan() -> None:
    """Plan the installation of Ubuntu on the host of FACTS. Changes nothing.

    For an Ubuntu beside Windows, first let Windows make the partition: winhost plan --path dual-boot. With --disk,
    everything on that disk is lost; you confirm that when you make the media.
    """  # fmt: skip


@dataclass(frozen=True)
class MediaOptions:
    """The source of the media, the delivery of the new system's settings, and how long to wait for that system."""

    mirror: str | None = option("URL|FOLDER", "A mirror of Ubuntu's releases, or a folder with a copy.")
    serve: str | None = option(
        "ADDRESS", "Hand out the settings once from this address of this computer, and keep them off the media."
    )
    report: str | None = option("ADDRESS", "Receive the installer's progress at this address of this computer.")
    reach: str | None = option("ADDRESS", "The address of the new system for this computer. Default: that of the plan.")
    minutes: int = option(
        "MINUTES",
        "How long to wait for the new system, with --serve or --report.",
        default=120,
        name="--wait",
        type=options.WholeNumber(1, 1440),
    )
    consent_file: Path | None = option(
        "FILE",
        "A file that names each disk whose data is lost, one per line, instead of typing the names at a terminal.",
    )


@install.command()
@click.argument("plan_file", metavar="PLAN", type=options.PATH)
@options_object(MediaOptions, "options")
@options.force
@options.output_options(
    "FILE", "The image to write; with a slash at its end, a folder with the files for a FAT32 partition.", required=True
)
@implemented_in("install.install")
def media() -> None:
    """Make installation media of PLAN, with a new host key.

    winhost verifies Canonical's signature of Ubuntu's image. For each whole disk that Ubuntu gets, type its GUID or
    serial number at a terminal, or give a file that names it.
    """  # fmt: skip


@dataclass(frozen=True)
class BmcOptions:
    """A host, its BMC, and the media to start from."""

    host: str = declared(click.argument("host", metavar="HOST", **completion.HOSTS))
    url: str = option("ADDRESS", "The host's BMC, as https://bmc-gpu-01.example.org.", name="--bmc", required=True)
    user: str = option("NAME", "The BMC account to log on with.", name="--bmc-user", required=True)
    password: str = option(
        "REF",
        "A secret reference to the password: env:NAME, file:/PATH, cmd:PROGRAM or keyring:SERVICE/USER.",
        name="--bmc-password",
        required=True,
    )
    ca: Path | None = option(
        "FILE",
        "The BMC's certificate, or that of its authority. Default: public authorities.",
        name="--bmc-ca",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
    )
    image: str | None = option("ADDRESS", "The media, at an https address that the BMC can read.")
    take_back: bool = flag("Eject the media, and start from the usual device again.")
    accepted: tuple[str, ...] = declared(options.accept, ())
    fleet_file: Path | None = declared(options.fleet)


@install.command()
@options_object(BmcOptions, "options")
@options.output_options()
@implemented_in("install.install")
def bmc() -> None:
    """Insert media through the BMC of HOST, and start from them once.

    winhost reads HOST first, and refuses a BMC that does not report the same SMBIOS UUID and serial number. With
    --accept restart, the BMC restarts the machine by force, without shutting down what runs on it.
    """  # fmt: skip
