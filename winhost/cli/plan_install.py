"""winhost install plan: the disks, the new system and what is lost, with the consent to that."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.autoinstall.facts_manifest import (
    authorities_of,
    keeps_local_time,
    machine_of,
    manifest_of_facts,
    whole_disks_of,
    windows_esp_of,
)
from winhost.autoinstall.guard_order import Scheme, WholeDisk
from winhost.autoinstall.install_plan import InstallPlan, NewSystem, afterwards, written_install_plan
from winhost.cli.commands.install import InstallOptions
from winhost.cli.envelope import show_results
from winhost.cli.errors import text_of, usage_errors
from winhost.cli.named_files import the_file
from winhost.cli.output import refuse_other_kind, say, show_command
from winhost.cli.outputs import Output
from winhost.cli.plan_options import FleetKeys
from winhost.compat.assess import judge
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.engine.planning import format_reason
from winhost.model.errors import RefusedError, UsageError, visible
from winhost.model.facts import Facts
from winhost.model.files import TooLarge, read_within, write_whole
from winhost.model.reason import Severity, Verdict
from winhost.model.units import KiB, size
from winhost.paths.public_key import public_key
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts

if TYPE_CHECKING:
    from winhost.engine.keys import SshKey


@dataclass(frozen=True)
class PlannedInstall:
    """The plan for people. writes: the partition or the disks that the installer writes to; lost: what is on them;
    heed: reasons of the verdict; then: what to do once the new system has started.
    """

    file: str
    host: str
    writes: tuple[str, ...]
    lost: tuple[str, ...]
    heed: tuple[str, ...]
    then: tuple[str, ...]


def plan(facts: Path, asked: InstallOptions, force: bool, output: Output) -> int:
    known, disks, keys = HostFacts(read_facts(the_file(facts, Facts))), asked.disks, asked.keys
    refuse_other_kind(output.required_path, "install-plan", force)
    if (asked.raid is not None or asked.lvm) and not disks:
        raise click.UsageError("--raid and --lvm are for whole disks: name them with --disk")
    heeded = _judged(known, "bare-metal" if disks else "dual-boot", asked.allow_unverified)
    resolvers = tuple(filter(None, (asked.dns or "").split(",")))
    given, own = tuple(map(_key, keys)), None
    if not given:  # beside Windows it is under the same name in fleet.yaml
        own = FleetKeys(None).of(asked.hostname if disks else known.host)
        given = (own.line,)
    new = NewSystem(
        asked.hostname,
        asked.user,
        given,
        asked.mac,
        asked.address,
        asked.gateway,
        resolvers,
        asked.kernel,
        asked.timezone,
    )
    try:
        made = InstallPlan(
            known.host,
            machine_of(known),
            new,
            asked.installer,
            None if disks else manifest_of_facts(known),
            tuple(whole_disks_of(known, disks)),
            Scheme(asked.raid, asked.lvm),
            authorities_of(known),
            tuple(gpu.pci.key["device"] for gpu in known.gpus),
            asked.extras,
            None if disks else windows_esp_of(known),
            keeps_local_time(known, disks),
        )
        made.storage()
    except MissingFact as missing:
        hint = f"Read the host again: winhost detect {visible(known.host)} -o facts"
        raise UsageError("FactMissing", what=f"{missing}", hint=hint) from missing
    except ValueError as wrong:
        raise click.UsageError(visible(str(wrong))) from None
    if keys and not disks:
        heeded = (*heeded, *FleetKeys(None).check(known.host, dict.fromkeys(new.keys, "--ssh-key")))
    write_whole(output.required_path, [written_install_plan(made)])
    _show_planned(made, heeded, own, output)
    return 0


def _judged(facts: HostFacts, path: str, allow_unverified: bool) -> tuple[str, ...]:
    """The reasons to heed. Raises RefusedError (NotForThisHost) if a rule speaks against the path."""
    found = judge(facts, path)
    grave = [each for each in found.every_reason if each.severity.rank >= Severity.UNVERIFIED.rank]
    bad = {Verdict.UNSUPPORTED} if allow_unverified else {Verdict.UNSUPPORTED, Verdict.UNVERIFIED}
    if found.verdict in bad:
        helps = dict.fromkeys(each.remedy.do for each in grave if each.remedy)
        accept = [] if found.verdict is Verdict.UNSUPPORTED else ["Or go on all the same: --allow-unverified"]
        raise RefusedError(
            "NotForThisHost",
            what=f"{path} is {found.verdict} on {visible(facts.host)}",
            meaning="\n".join(map(format_reason, grave)),
            hint="\n".join([*helps, *accept]) or None,
            host=facts.host,
        )
    return tuple(map(format_reason, found.every_reason))


def _key(file: Path) -> str:
    with usage_errors("--ssh-key"):
        return public_key(text_of(file, "--ssh-key"))


def written_to(plan: InstallPlan) -> tuple[str, ...]:
    """The partition or disks that the installer writes to, in words."""
    if plan.beside is not None:
        target = next(each for each in plan.beside.partitions if each.role == "target")
        return (f"partition {target.guid}, {size(target.size)} of {plan.beside.model} ({plan.beside.guid})",)
    return tuple(each.line for each in plan.whole)


def _show_planned(made: InstallPlan, heeded: tuple[str, ...], own: "SshKey | None", output: Output) -> None:
    """Show the plan. own: the key that is used because none was named."""
    lost = tuple(each for disk in made.whole for each in lost_on(disk))
    heed = (*heeded, *(f"{disk.model}: {each}" for disk in made.whole for each in disk.heed))
    then = afterwards(made)
    if own is not None and own.ours and made.beside is None:
        then[0] += f", and with the key for SSH that winhost made: key: {own.key}"
    planned = PlannedInstall(str(output.path), made.host, written_to(made), lost, heed, tuple(then))

    def show(_: PlannedInstall) -> None:
        say(f"Ubuntu {made.installer} on {planned.host} writes to {'; '.join(planned.writes)}.")
        say("Everything else on that disk stays." if made.beside else f"Lost: {'; '.join(lost) or 'nothing is on it'}.")
        for reason in planned.heed:
            say(f"  {reason}")
        say("Afterwards:")
        for number, step in enumerate(planned.then, 1):
            say(f"  {number}. {step}")
        show_command("Media:", "winhost", "install", "media", planned.file, "-o", "ubuntu.iso")

    show_results("install-plan", output.shape, [(made.host, planned)], show)


_LARGEST = 64 * KiB


def consented(host: str, disks: Sequence[WholeDisk], file: Path | None) -> list[str]:
    """Ask for the loss of each disk, and return the names of the disks. Raises RefusedError (NotTyped)."""
    for disk in disks:
        _show_disk(host, disk)
        if file is None and sys.stdin.isatty():
            _ask(disk)
    if file is not None:
        _compare(_lines(file), disks, file)
    elif disks and not sys.stdin.isatty():
        lines = "\n".join(visible(disk.line) for disk in disks)
        hint = f"Start this command at a terminal, or name a file with these lines: --consent-file FILE\n{lines}"
        raise _not_typed("nobody is at a terminal to consent to the loss of each disk", hint)
    return [disk.name for disk in disks]


def lost_on(disk: WholeDisk) -> tuple[str, ...]:
    """The partitions of a disk that Ubuntu gets, in words."""
    return tuple(f"{each.role} partition {each.guid}, {size(each.size)}" for each in disk.partitions)


def _show_disk(host: str, disk: WholeDisk) -> None:
    click.echo(f"Everything on this disk of {visible(host)} will be lost:", err=True)
    click.echo(f"  {visible(disk.line)}", err=True)
    for each in (*lost_on(disk), *disk.heed):
        click.echo(f"  - {visible(each)}", err=True)


def _ask(disk: WholeDisk) -> None:
    """Raises click.Abort for Ctrl-C."""
    kind = "GUID" if disk.choice.guid else "serial number"
    typed = str(click.prompt(f"To go on, type its {kind}", err=True, default="", show_default=False))
    if not _quotes(typed, disk):
        raise _not_typed("that is not the disk", f"Type its {kind} as it is shown: {visible(disk.name)}")


def _quotes(text: str, disk: WholeDisk) -> bool:
    """Tell whether a text names the disk as it is shown."""
    return text.strip() in (visible(disk.name), visible(disk.line))


def _lines(file: Path) -> list[str]:
    try:
        text = read_within(file, _LARGEST).decode("utf-8-sig")
    except (OSError, TooLarge, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text, or too long"
        raise click.BadParameter(f"{visible(str(file))} cannot be read: {why}", param_hint="--consent-file") from None
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _compare(lines: Sequence[str], disks: Sequence[WholeDisk], file: Path) -> None:
    """Check that the file quotes each disk and nothing else: a file for other disks is no consent for these."""
    for disk in disks:
        if not any(_quotes(line, disk) for line in lines):
            what = f"{visible(str(file))} does not quote the disk {visible(disk.name)}"
            raise _not_typed(what, f"Once you know that it may be lost, add this line: {visible(disk.line)}")
    for line in lines:
        if not any(_quotes(line, disk) for disk in disks):
            what = f"{visible(str(file))} names something else: {visible(line)[:120]}"
            raise _not_typed(what, "Take out what is no disk of this plan")


def _not_typed(what: str, hint: str) -> RefusedError:
    return RefusedError("NotTyped", what=f"{what}; no media were made", hint=hint)
