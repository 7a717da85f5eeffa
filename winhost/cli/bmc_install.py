"""winhost install bmc: media through the BMC of a host that is read in the same run."""

from pathlib import Path

import click

from winhost.autoinstall.facts_manifest import machine_of
from winhost.autoinstall.virtual_media import Bmc, BmcSession, BmcSystem, bmc_session
from winhost.cli.envelope import show_results
from winhost.cli.live_hosts import read_live
from winhost.cli.named_hosts import hosts_named
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.watch import watching
from winhost.core.dataclass import dataclass
from winhost.model.fleet import LinuxHost
from winhost.model.secrets import SecretRef
from winhost.resources.host import HostFacts, of_other_system

RESTART = "restart"


@dataclass(frozen=True)
class InsertedMedia:
    """image: what is in the drive, null where it was taken out; restarted: by force, now."""

    host: str
    bmc: str
    image: str | None
    restarted: bool


def bmc(
    host: str,
    url: str,
    user: str,
    password: str,
    ca: Path | None,
    image: str | None,
    take_back: bool,
    accepted: tuple[str, ...],
    fleet_file: Path | None,
    output: Output,
) -> int:
    """Insert media through the BMC of a host."""
    if (image is None) != take_back:
        raise click.UsageError("Either --image names the media, or --take-back takes them out")
    try:
        reference = SecretRef.parse(password)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--bmc-password") from None
    (here,) = hosts_named((host,), fleet_file)
    with watching() as watch:
        facts = HostFacts(read_live(here, watch))
        if isinstance(here, LinuxHost):
            raise of_other_system(facts, "a BMC's identity")
        identity = machine_of(facts)
        known = Bmc(url, user, reference.resolve(), str(ca) if ca else None)
        with watch.at(here.name, "asking its BMC"), bmc_session(known) as session:
            done = _done(session, session.system(identity, free=not take_back), image, RESTART in accepted)
    result = InsertedMedia(here.name, url, image, done)

    def show(_: InsertedMedia) -> None:
        say(f"{here.name} starts from {image} once." if image else f"No media are in {here.name}; it starts as usual.")
        say("It restarts now." if done else "Restart it, or add --accept restart.") if image else None

    show_results("install-bmc", output.shape, [(here.name, result)], show)
    return 0


def _done(session: BmcSession, system: BmcSystem, image: str | None, restart: bool) -> bool:
    if image is None:
        session.take_back(system)
        return False
    session.insert(system, image)
    session.start_once(system)
    if restart:
        session.restart(system)
    return restart
