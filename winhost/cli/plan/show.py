"""Show a plan: each change, its approvals, the order, and what cannot be undone."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

from winhost.cli.groups import is_verbose
from winhost.cli.output import say, show_command, show_error_text
from winhost.cli.snapshots import worst
from winhost.cli.tables import WIDE, format_full_value, format_two, format_value, table
from winhost.cli.terminal import columns
from winhost.core.dataclass import dataclass
from winhost.core.steps import Step
from winhost.engine.disk_images import pinned_image, upload_of
from winhost.engine.planning import request_of
from winhost.engine.uploads import attachment_of
from winhost.knowledge import catalogue
from winhost.model.errors import WinhostError, visible
from winhost.model.plan import RISKS, Deferred, Plan, Stage, in_order
from winhost.model.reason import Verdict
from winhost.paths.new_vm import Pinned
from winhost.resources.registry import title_of
from winhost.resources.windows.vms import assigned_vm


@dataclass(frozen=True)
class PlannedHost:
    """A plan, and the file that it was written to, if any. The file holds only the plan.

    recommended: the verdict by which the path was chosen, if the user named none.
    """

    host: str
    path: str
    variant: str | None
    recommended: Verdict | None
    file: str | None
    plan: Plan


_MANY = 4  # deferred steps of one reason, of which only the first is named
_WIRE_RATES = (5e6, 1e6)  # bytes a second that PowerShell remoting brings, as users report
ROLES = {"desired": "", "need": "needed by later steps", "restore": "restored", "undo": ""}


def show_short(plan: Plan) -> None:
    """Show a plan in groups, and all that it asks for."""
    _show_head(plan)
    for stage in plan.stages:
        _show_stage_in_groups(stage)
    for step in plan.steps:
        if step.irreversible:
            say(f"Cannot be undone: {short(step.title)}: {step.irreversible}", hang=2, fg="red")
    _show_sent(plan, is_verbose())
    show_consents(plan.risks, plan.possible_risks)
    show_notes(plan.notes)


def show_whole(plan: Plan, wide: bool = False) -> None:
    """Show all that a plan does and asks for. wide: with whole values, and the reason of every step."""
    _show_head(plan)
    for stage in plan.stages:
        show_stage(stage, wide)
    if plan.unchecked:
        say("Not checked yet. If one of these turns out to be wrong, the run stops there and you can choose another:")
    for each in plan.unchecked:
        value = "the only one" if each.value is None else format_value(each.value)
        say(f"  {each.name}: {value} (once {title_of(each.until)} is available)", hang=2)
    _show_sent(plan, True)
    show_consents(plan.risks, plan.possible_risks)
    if plan.notes:
        say("Notes:")
    for note in plan.notes:
        say(f"  {note}", hang=2)


def _show_head(plan: Plan) -> None:
    simulated = "  (from simulated facts)" if plan.origin == "synthetic" else ""
    say(f"{plan.host}: {_option(plan)}{simulated}", bold=True)


def _option(plan: Plan) -> str:
    """Return the name of the option as `assess` shows it."""
    return f"{plan.request.path}/{plan.variant}" if plan.variant else plan.request.path


def show_planned(made: PlannedHost, details: bool, wide: bool, fleet_file: Path | None = None) -> None:
    """Show a plan, why it has its path, and how it is applied. details: every step; wide: also whole values and every
    reason.
    """
    if made.recommended:
        option = _option(made.plan)
        say(f"{made.host}: {option} is recommended here ({made.recommended}). To choose another option, use --path.")
    if details or wide:
        show_whole(made.plan, wide)
    else:
        show_short(made.plan)
        say("Every step, with reasons: --details")
    _show_next(made.plan, made.file, fleet_file)


def show_plans(results: "Sequence[tuple[str, PlannedHost | WinhostError]]", wide: bool = False) -> int:
    """Show a row for each of several hosts, then what went wrong. Returns the exit code. wide: with what is changed."""
    found = [made for _, made in results if not isinstance(made, WinhostError)]
    errors = [made for _, made in results if isinstance(made, WinhostError)]
    if found:
        more = ("restarts", "changes", "cannot be undone") if wide else ()
        table(("host", "option", "steps", "approvals", "file", *more), (_planned_row(made, wide) for made in found))
    for error in errors:
        show_error_text(error)
    if any(made.file is None for made in found):
        say("Save them with -o FOLDER/; --details shows each in full.")
    return worst(errors)


def _planned_row(made: PlannedHost, wide: bool) -> tuple[object, ...]:
    steps, option = tuple(made.plan.steps), _option(made.plan)
    option += " (recommended)" if made.recommended else ""
    count = f"{len(steps)}, {len(made.plan.deferred)} later" if made.plan.deferred else str(len(steps))
    approvals = _approvals(made.plan.risks, made.plan.possible_risks)
    row = (made.host, option, count, approvals, made.file or "")
    if not wide:
        return row
    restarts = sum(stage.restarts for stage in made.plan.stages)
    lasting = (step.title for step in steps if step.irreversible)
    return (*row, restarts, "; ".join(dict.fromkeys(step.title for step in steps)), "; ".join(dict.fromkeys(lasting)))


def show_stage(stage: Stage, wide: bool = False) -> None:
    """Show the steps of a stage, and what waits for its end."""
    if not stage.steps and not stage.deferred:
        say("  Nothing to do: everything is already as planned.")
    if stage.steps:
        show_steps(stage.steps, f"Stage {stage.number}" + (", ends with a restart" if stage.restarts else ""), wide)
    if stage.deferred:
        waits = list(dict.fromkeys(title_of(d.until) for d in stage.deferred))
        until = f"{' and '.join(waits)} {'are' if len(waits) > 1 else 'is'}"
        say(
            f"  Stage {stage.number + 1} can be planned only once {until} available. The host is then read and "
            "evaluated again, and if that brings a refusal, the run stops and can be rolled back:"
        )
        _show_deferred(stage.deferred)


def _show_deferred(deferred: Sequence[Deferred]) -> None:
    """Show deferred steps by what they wait for. Many with the same reason share a line."""
    by_until = {each.until: [other for other in deferred if other.until == each.until] for each in deferred}
    for until, waiting in by_until.items():
        if len(by_until) > 1:
            say(f"   With {title_of(until)}:")
        for why, group in groupby(waiting, key=lambda each: each.why):
            first, *more = group
            shown = (first, *more) if len(more) < _MANY else (first,)
            for each in shown:
                count = f" and {len(more)} more" if shown == (first,) and more else ""
                say(f"    {visible(each.title)}{count}: {visible(why)}", hang=2)


def show_steps(steps: Iterable[Step], title: str, wide: bool = False) -> None:
    """Show a row per property, or one for a new resource, and reasons. wide: all of them, with whole values."""
    steps = tuple(steps)
    rows = [
        (step.id, step.title, name, change, _approvals(step.risks, step.may_need), ROLES[step.role])
        for step in steps
        for name, change in _changes(step, wide)
    ]
    table(("step", "what", "property", "before → after", "approvals", ""), rows, title=title)
    told = [step for step in steps if step.role == "desired" or wide]
    for why, group in groupby(told, key=lambda step: step.why):
        _say_why([step.id for step in group], why)
    for step in steps:
        if step.irreversible:
            say(f"  {step.id} cannot be undone: {step.irreversible}", hang=len(step.id) + 1, fg="red")
    click.echo()


def _changes(step: Step, wide: bool) -> Iterator[tuple[str, str]]:
    wide = wide or is_verbose()
    format_ = format_full_value if wide else format_value
    if not wide and len(step.desired) > 1 and all(step.before[name] is None for name in step.desired):
        yield ", ".join(step.desired), f"none → {', '.join(map(format_, step.desired.values()))}"
        return
    for name, desired in step.desired.items():
        yield name, " → ".join(format_two(step.before[name], desired, format_))


def _say_why(numbers: Sequence[str], why: str) -> None:
    """Show the reason of consecutive steps."""
    named = numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    first, *more = why.splitlines() or [""]
    say(f"  {named} {first}", hang=len(named) + 1)
    for line in more:
        say(f"  {' ' * len(named)} {line}")


def _approvals(needed: Iterable[str], maybe: Iterable[str]) -> str:
    return ", ".join((*needed, *(f"possibly {risk}" for risk in maybe)))


def _show_sent(plan: Plan, hashed: bool) -> None:
    sent = {desired for desired in map(attachment_of, plan.steps) if desired}
    pinned = pinned_image(request_of(plan)) if sent else None
    names = sorted(desired.name for desired in sent if pinned is None or desired.sha256 != pinned.disk_sha256)
    if pinned is not None and len(names) < len(sent):
        say(f"The disk of the new VM is made of {visible(pinned.place)} ({pinned.bytes / 1e6:,.0f} MB).")
        if hashed:
            say(f"  Its SHA-256 is {pinned.sha256}.")
        say(f"  {pinned.disk_bytes / 1e6:,.0f} MB are uploaded: {_how_sent(plan, pinned)}")
    if names:
        say(f"These files are uploaded and must be in the same folder as the plan: {', '.join(map(visible, names))}")


def _how_sent(plan: Plan, pinned: Pinned) -> str:
    match upload_of(request_of(plan)):
        case "http":
            return "the host fetches it from the computer that runs winhost."
        case "smb":
            return "written to the administrative share of the host."
        case "sftp":
            return "written by SFTP, through the OpenSSH server of the host."
    least, most = (pinned.disk_bytes / rate / 60 for rate in _WIRE_RATES)
    long = "" if most < 1 else f" That takes {least:.0f} to {most:.0f} min; --upload http, sftp and smb are faster."
    return f"over the connection to the host.{long}"


def show_consents(needed: Iterable[str], maybe: Iterable[str]) -> None:
    """Show the approvals that are needed, and those that may be needed later, as the questions word them."""
    for title, risks in (("Approvals needed:", tuple(needed)), ("Approvals that may be needed later:", tuple(maybe))):
        if risks:
            say(title)
        for risk in risks:
            say(f"  {risk}: {RISKS[risk]}", hang=2)


def _show_next(plan: Plan, written_to: str | None, fleet_file: Path | None) -> None:
    if not any(True for _ in plan.steps) and not plan.deferred:
        return
    if written_to is None:
        say("Save it with -o plan.json, then run: winhost apply plan.json")
        return
    accept = ("--accept", ",".join(plan.risks)) if plan.risks else ()
    fleet = ("--fleet", str(fleet_file)) if fleet_file else ()
    show_command(f"Written to {written_to}. To apply it:", "winhost", "apply", written_to, *accept, *fleet)
    if plan.deferred and plan.possible_risks:
        say("To apply it without stopping for the approvals of a later stage:")
        click.echo(f"  --accept {','.join((*plan.risks, *plan.possible_risks))}")


# ---- on one screen: a line for each group of steps that belong together

GROUPS = {
    "downloads": ("StagedFile", "ReleaseFile", "ContainerImage", "ModelFiles", "PackedModel"),
    "Windows": ("HyperVRole", "VirtualMachinePlatform", "PowerPlan", "FastStartup"),
    "account": ("LocalAccount", "AccountRight", "AccountTasks"),
    "network": ("ExternalSwitch", "NatSwitch", "HyperVFirewall", "PortForward", "FirewallPort"),
    "GPUs": ("AssignableDevice", "GpuDriverModel", "ShownGpus"),
    "VM": ("OwnVm", "VmDisk", "VmSeed", "VmActions", "VmCheckpoints", "VmMemory", "VmMmio", "VmPower"),
    "WSL": ("Wsl", "WslConfig", "WslVm", "WslDistro", "WslConf", "WslAccess", "YieldWatcher"),
    "disks": ("Partition", "OwnPartition", "BitLocker", "KeyEscrow", "DataDisk", "Mount"),
    "start of the machine": ("EfiBackup", "OwnBootEntry", "FirmwareBoot", "UbuntuInstaller", "RunningSystem"),
    "packages": ("AptSource", "AptPackages", "DebianPackage", "PythonVenv"),
    "users and keys": ("LinuxUser", "LinuxGroup", "SshKey", "SshHostKey", "SecretFile"),
    "files and settings": ("LinuxFile", "LinuxFolder", "DockerSetting", "CdiSpec", "Sysctl", "KernelModule"),
    "services": ("SystemdUnit", "EngineUnit", "ClusterNode", "ClusterObjects", "ServingReady"),
}
_GROUP_OF = {resource: group for group, resources in GROUPS.items() for resource in resources}
_MOST_TITLES = 5  # of a group, before the rest is counted
_LONGEST_VALUE = 48
NOTE = re.compile(r"(?P<severity>\w+): (?P<subject>.+?): (?P<text>.*) \[(?P<code>[\w.-]+)\]", re.DOTALL)
_LOCATION = re.compile(r" at PCIROOT\S+")


def show_notes(notes: Iterable[str]) -> None:
    """Show the limits of a host, each once with all that it applies to. Notes are left to the details, unless they are
    about the host's network.
    """
    said: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        found = NOTE.fullmatch(note)
        if found is None:
            said[note, ""] = []
            continue
        # A caution of the request has no entry.
        entry, noted = catalogue.entries().get(found["code"]), found["severity"] == "note"
        # The observation is shown with the details.
        brief = entry is not None and found["text"].endswith(entry.sentence) and not noted
        text = entry.sentence if entry is not None and brief else found["text"]
        if not noted or (entry is not None and "network" in entry.risks):
            said.setdefault((found["severity"], f"{text} [{found['code']}]"), []).append(found["subject"])
    for (severity, text), subjects in said.items():
        named = dict.fromkeys(short(each) for each in subjects if each not in ("host", "the request"))
        say(": ".join(filter(None, (severity, ", ".join(named), text))), hang=2)


def _show_stage_in_groups(stage: Stage) -> None:
    if not stage.steps and not stage.deferred:
        say("Nothing to do: everything is already as planned.")
    if stage.steps:
        head = f"Stage {stage.number}{', ends with a restart' if stage.restarts else ''}"
        table((head, "what changes", "approvals"), _rows(stage.steps))
    if stage.deferred:
        say(f"Stage {stage.number + 1} is planned from the host as it is then; a refusal stops the run:")
    for until in dict.fromkeys(each.until for each in stage.deferred):
        waiting = dict.fromkeys(title_without_name(each) for each in stage.deferred if each.until == until)
        say(_on_a_line(f"  With {title_of(until)}: ", [*waiting]), hang=2)


def _rows(steps: Sequence[Step]) -> Iterator[tuple[str, str, str]]:
    groups: dict[str, list[Step]] = {}
    for step in steps:
        groups.setdefault(_GROUP_OF[step.resource], []).append(step)
    for group, members in groups.items():
        risks = in_order(risk for step in members for risk in step.risks)
        maybe = in_order(risk for step in members for risk in step.may_need if risk not in risks)
        yield group, _what(members), _approvals(risks, maybe)


def group_changes(steps: Sequence[Step]) -> Iterator[tuple[str, str]]:
    """Yield groups of steps, and what changes in each."""
    for group, what, _ in _rows(steps):
        yield group, what


def grouped_titles(things: Iterable[Step | Deferred]) -> Iterator[tuple[str, str]]:
    """Yield groups of steps, or of what is planned only later, with their titles."""
    groups: dict[str, list[str]] = {}
    for each in things:
        title = title_without_name(each) if isinstance(each, Deferred) else short(each.title)
        groups.setdefault(_GROUP_OF[each.resource], []).append(title)
    for group, titles in groups.items():
        yield group, ", ".join(dict.fromkeys(titles))


def _what(steps: Sequence[Step]) -> str:
    """List titles with what changes, equal ones together. What needs approval comes first and is always named."""
    changes: dict[tuple[str, str], list[str]] = {}
    for step in sorted(steps, key=lambda each: not each.risks):
        changes.setdefault((step.title, str(step.key)), []).extend(_in_brief(step))
    titles: dict[str, Counter[str]] = {}
    for (title, _), each in changes.items():
        titles.setdefault(", ".join(dict.fromkeys(each)), Counter())[short(title)] += 1
    asking = {short(step.title) for step in steps if step.risks}
    shown = []
    for what, counts in titles.items():
        named = [title if count == 1 else f"{title} ({count} times)" for title, count in counts.items()]
        most = max(len(asking & counts.keys()), _MOST_TITLES)
        listed = _cut(named, len(named) if len(named) < most + 2 else most)
        shown.append(f"{listed}: {what}" if what else listed)
    return "; ".join(shown)


def _on_a_line(head: str, titles: Sequence[str]) -> str:
    """List as many titles as fit on a line of the terminal, and say how many more there are."""
    most = len(titles)
    room = (columns(sys.stdout) or WIDE) - len(head)
    while most > 1 and len(_cut(titles, most)) > room:
        most -= 1
    return head + _cut(titles, most)


def _cut(titles: Sequence[str], most: int) -> str:
    left = len(titles) - most
    return ", ".join(titles[:most]) + (f" and {left} more" if left else "")


def _in_brief(step: Step) -> Iterator[str]:
    """Yield changes that people understand without context: no switches, no hashes, no whole files."""
    for name, desired in step.desired.items():
        before, after = step.before[name], format_value(desired)
        if name.startswith("to_") and isinstance(before, list) and not desired:
            if before:
                names = ", ".join(str(each).split()[0] for each in before)
                names = names if len(names) <= _LONGEST_VALUE else f"{len(before)} packages"
                yield f"{name.removeprefix('to_').replace('_', ' ')} {names}"
            continue
        hashed = isinstance(desired, str) and "…" in after and assigned_vm(desired) is None
        if isinstance(desired, bool) or hashed or len(after) > _LONGEST_VALUE:
            continue
        if before not in (None, "absent", []):
            yield f"{format_value(before)} → {after}"
        elif "network" in step.risks and desired:
            yield after


def title_without_name(deferred: Deferred) -> str:
    """Return the title of a deferred step, without the `…` of a name that only later facts tell, at its end."""
    told = short(deferred.title)
    return told.removesuffix(" of …").removesuffix("…").rstrip() or title_of(deferred.resource)


def short(title: str) -> str:
    return visible(_LOCATION.sub("", title))
