"""Show a plan: its changes in their order, the approvals that they need, and what cannot be undone."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

from winhost.cli.groups import is_verbose
from winhost.cli.output import say, show_command, show_error_text
from winhost.cli.snapshots import highest_exit_code
from winhost.cli.tables import FILE_WIDTH, format_full_value, format_pair, format_value, table
from winhost.cli.terminal import terminal_width
from winhost.core.dataclass import dataclass
from winhost.core.steps import Step
from winhost.engine.disk_images import pinned_image, upload_transport
from winhost.engine.planning import request_of
from winhost.engine.uploads import attachment_of
from winhost.knowledge import catalogue
from winhost.model.errors import WinhostError, visible
from winhost.model.plan import RISKS, Deferred, Plan, Stage, sort_risks
from winhost.model.reason import Verdict
from winhost.paths.new_vm import Pinned
from winhost.resources.registry import title_of
from winhost.resources.windows.vms import assigned_vm


@dataclass(frozen=True)
class PlannedHost:
    """A plan, and the file that it was written to, if any. recommended: the verdict of the recommended option, if the
    user named no path.
    """

    host: str
    path: str
    variant: str | None
    recommended: Verdict | None
    file: str | None
    plan: Plan


_GROUPED_FROM = 4  # further deferred steps with one reason, from which on they are only counted
_WIRE_RATES = (5e6, 1e6)  # bytes per second over PowerShell remoting, as users report
ROLES = {"desired": "", "need": "needed by later steps", "restore": "restored", "undo": ""}


def show_brief_plan(plan: Plan) -> None:
    """Show a plan as groups of changes, with its approvals and notes."""
    _show_head(plan)
    for stage in plan.stages:
        _show_stage_in_groups(stage)
    for step in plan.steps:
        if step.irreversible:
            say(f"Cannot be undone: {short_title(step.title)}: {step.irreversible}", hang=2, fg="red")
    _show_uploads(plan, is_verbose())
    show_consents(plan.risks, plan.possible_risks)
    show_notes(plan.notes)


def show_full_plan(plan: Plan, wide: bool = False) -> None:
    """Show every step of a plan, with its approvals and all notes. wide: with full values, and the reason of every
    step.
    """
    _show_head(plan)
    for stage in plan.stages:
        show_stage(stage, wide)
    if plan.unchecked:
        say("Not checked yet. If one of these turns out to be wrong, the run stops there and you can choose another:")
    for each in plan.unchecked:
        value = "the only one" if each.value is None else format_value(each.value)
        say(f"  {each.name}: {value} (once {title_of(each.until)} is available)", hang=2)
    _show_uploads(plan, True)
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
    """Show a plan, why its path was chosen, and the command that applies it. details: show every step; wide: also full
    values and every reason.
    """
    if made.recommended:
        option = _option(made.plan)
        say(f"{made.host}: {option} is recommended here ({made.recommended}). To choose another option, use --path.")
    if details or wide:
        show_full_plan(made.plan, wide)
    else:
        show_brief_plan(made.plan)
        say("Every step, with reasons: --details")
    _show_next(made.plan, made.file, fleet_file)


def show_plans(results: "Sequence[tuple[str, PlannedHost | WinhostError]]", wide: bool = False) -> int:
    """Show a row for each of several hosts, then the errors, and return the exit code. wide: with the changes."""
    planned = [made for _, made in results if not isinstance(made, WinhostError)]
    errors = [made for _, made in results if isinstance(made, WinhostError)]
    if planned:
        wide_columns = ("restarts", "changes", "cannot be undone") if wide else ()
        table(
            ("host", "option", "steps", "approvals", "file", *wide_columns),
            (_planned_row(made, wide) for made in planned),
        )
    for error in errors:
        show_error_text(error)
    if any(made.file is None for made in planned):
        say("Save them with -o FOLDER/; --details shows each in full.")
    return highest_exit_code(errors)


def _planned_row(made: PlannedHost, wide: bool) -> tuple[object, ...]:
    steps, option = tuple(made.plan.steps), _option(made.plan)
    option += " (recommended)" if made.recommended else ""
    count = f"{len(steps)}, {len(made.plan.deferred)} later" if made.plan.deferred else str(len(steps))
    approvals = _approvals(made.plan.risks, made.plan.possible_risks)
    row = (made.host, option, count, approvals, made.file or "")
    if not wide:
        return row
    restarts = sum(stage.restarts for stage in made.plan.stages)
    irreversible = (step.title for step in steps if step.irreversible)
    return (
        *row,
        restarts,
        "; ".join(dict.fromkeys(step.title for step in steps)),
        "; ".join(dict.fromkeys(irreversible)),
    )


def show_stage(stage: Stage, wide: bool = False) -> None:
    """Show the steps of a stage, and the steps that can be planned only after it."""
    if not stage.steps and not stage.deferred:
        say("  Nothing to do: everything is already as planned.")
    if stage.steps:
        show_steps(stage.steps, f"Stage {stage.number}" + (", ends with a restart" if stage.restarts else ""), wide)
    if stage.deferred:
        awaited = list(dict.fromkeys(title_of(d.until) for d in stage.deferred))
        condition = f"{' and '.join(awaited)} {'are' if len(awaited) > 1 else 'is'}"
        say(
            f"  Stage {stage.number + 1} can be planned only once {condition} available. The host is then read and "
            "evaluated again, and if that brings a refusal, the run stops and can be rolled back:"
        )
        _show_deferred(stage.deferred)


def _show_deferred(deferred: Sequence[Deferred]) -> None:
    """Show deferred steps by the resource that they wait for. Many steps with the same reason share a line."""
    by_until = {each.until: [other for other in deferred if other.until == each.until] for each in deferred}
    for until, deferred_steps in by_until.items():
        if len(by_until) > 1:
            say(f"   With {title_of(until)}:")
        for why, group in groupby(deferred_steps, key=lambda each: each.why):
            first, *others = group
            shown = (first, *others) if len(others) < _GROUPED_FROM else (first,)
            for each in shown:
                count = f" and {len(others)} more" if shown == (first,) and others else ""
                say(f"    {visible(each.title)}{count}: {visible(why)}", hang=2)


def show_steps(steps: Iterable[Step], title: str, wide: bool = False) -> None:
    """Show a row for each property, or one for a new resource, and the reasons of desired steps. wide: the reasons of
    all steps, and full values.
    """
    steps = tuple(steps)
    rows = [
        (step.id, step.title, name, change, _approvals(step.risks, step.may_need), ROLES[step.role])
        for step in steps
        for name, change in _changes(step, wide)
    ]
    table(("step", "what", "property", "before → after", "approvals", ""), rows, title=title)
    explained = [step for step in steps if step.role == "desired" or wide]
    for why, group in groupby(explained, key=lambda step: step.why):
        _show_reason([step.id for step in group], why)
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
        yield name, " → ".join(format_pair(step.before[name], desired, format_))


def _show_reason(numbers: Sequence[str], reason: str) -> None:
    """Show the reason of consecutive steps."""
    range_ = numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    first, *other_lines = reason.splitlines() or [""]
    say(f"  {range_} {first}", hang=len(range_) + 1)
    for line in other_lines:
        say(f"  {' ' * len(range_)} {line}")


def _approvals(needed: Iterable[str], possible: Iterable[str]) -> str:
    return ", ".join((*needed, *(f"possibly {risk}" for risk in possible)))


def _show_uploads(plan: Plan, show_hash: bool) -> None:
    attachments = {attachment for attachment in map(attachment_of, plan.steps) if attachment}
    pinned = pinned_image(request_of(plan)) if attachments else None
    names = sorted(
        attachment.name for attachment in attachments if pinned is None or attachment.sha256 != pinned.disk_sha256
    )
    if pinned is not None and len(names) < len(attachments):
        say(f"The disk of the new VM is made of {visible(pinned.place)} ({pinned.bytes / 1e6:,.0f} MB).")
        if show_hash:
            say(f"  Its SHA-256 is {pinned.sha256}.")
        say(f"  {pinned.disk_bytes / 1e6:,.0f} MB are uploaded: {_upload_sentence(plan, pinned)}")
    if names:
        say(f"These files are uploaded and must be in the same folder as the plan: {', '.join(map(visible, names))}")


def _upload_sentence(plan: Plan, pinned: Pinned) -> str:
    match upload_transport(request_of(plan)):
        case "http":
            return "the host fetches it from the computer that runs winhost."
        case "smb":
            return "written to the administrative share of the host."
        case "sftp":
            return "written by SFTP, through the OpenSSH server of the host."
    min_minutes, max_minutes = (pinned.disk_bytes / rate / 60 for rate in _WIRE_RATES)
    duration = (
        ""
        if max_minutes < 1
        else f" That takes {min_minutes:.0f} to {max_minutes:.0f} min; --upload http, sftp and smb are faster."
    )
    return f"over the connection to the host.{duration}"


def show_consents(needed: Iterable[str], possible: Iterable[str]) -> None:
    """Show the approvals that are needed, and those that may be needed later."""
    for title, risks in (
        ("Approvals needed:", tuple(needed)),
        ("Approvals that may be needed later:", tuple(possible)),
    ):
        if risks:
            say(title)
        for risk in risks:
            say(f"  {risk}: {RISKS[risk]}", hang=2)


def _show_next(plan: Plan, file: str | None, fleet_file: Path | None) -> None:
    if not any(True for _ in plan.steps) and not plan.deferred:
        return
    if file is None:
        say("Save it with -o plan.json, then run: winhost apply plan.json")
        return
    accept = ("--accept", ",".join(plan.risks)) if plan.risks else ()
    fleet = ("--fleet", str(fleet_file)) if fleet_file else ()
    show_command(f"Written to {file}. To apply it:", "winhost", "apply", file, *accept, *fleet)
    if plan.deferred and plan.possible_risks:
        say("To apply it without stopping for the approvals of a later stage:")
        click.echo(f"  --accept {','.join((*plan.risks, *plan.possible_risks))}")


# ---- the brief form: a line for each group of steps

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
_MAX_TITLES = 5  # of a group; further ones are counted
_LONGEST_VALUE = 48
NOTE = re.compile(r"(?P<severity>\w+): (?P<subject>.+?): (?P<text>.*) \[(?P<code>[\w.-]+)\]", re.DOTALL)
_LOCATION = re.compile(r" at PCIROOT\S+")


def show_notes(notes: Iterable[str]) -> None:
    """Show the limits of a host, each once with all its subjects. Mere notes are shown only with --details, except
    those about the host's network.
    """
    subjects_by_note: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        match = NOTE.fullmatch(note)
        if match is None:
            subjects_by_note[note, ""] = []
            continue
        # A caution of the request has no entry.
        entry, is_note = catalogue.entries().get(match["code"]), match["severity"] == "note"
        # The observation is shown with the details.
        is_brief = entry is not None and match["text"].endswith(entry.sentence) and not is_note
        text = entry.sentence if entry is not None and is_brief else match["text"]
        if not is_note or (entry is not None and "network" in entry.risks):
            subjects_by_note.setdefault((match["severity"], f"{text} [{match['code']}]"), []).append(match["subject"])
    for (severity, text), subjects in subjects_by_note.items():
        names = dict.fromkeys(short_title(each) for each in subjects if each not in ("host", "the request"))
        say(": ".join(filter(None, (severity, ", ".join(names), text))), hang=2)


def _show_stage_in_groups(stage: Stage) -> None:
    if not stage.steps and not stage.deferred:
        say("Nothing to do: everything is already as planned.")
    if stage.steps:
        head = f"Stage {stage.number}{', ends with a restart' if stage.restarts else ''}"
        table((head, "what changes", "approvals"), _rows(stage.steps))
    if stage.deferred:
        say(f"Stage {stage.number + 1} is planned from the host as it is then; a refusal stops the run:")
    for until in dict.fromkeys(each.until for each in stage.deferred):
        titles = dict.fromkeys(title_without_name(each) for each in stage.deferred if each.until == until)
        say(_fit_on_line(f"  With {title_of(until)}: ", [*titles]), hang=2)


def _rows(steps: Sequence[Step]) -> Iterator[tuple[str, str, str]]:
    groups: dict[str, list[Step]] = {}
    for step in steps:
        groups.setdefault(_GROUP_OF[step.resource], []).append(step)
    for group, members in groups.items():
        risks = sort_risks(risk for step in members for risk in step.risks)
        possible_risks = sort_risks(risk for step in members for risk in step.may_need if risk not in risks)
        yield group, _changes_text(members), _approvals(risks, possible_risks)


def group_changes(steps: Sequence[Step]) -> Iterator[tuple[str, str]]:
    """Yield the name of each group of steps, with its changes."""
    for group, changes, _ in _rows(steps):
        yield group, changes


def grouped_titles(things: Iterable[Step | Deferred]) -> Iterator[tuple[str, str]]:
    """Yield the name of each group of steps or deferred steps, with their titles."""
    groups: dict[str, list[str]] = {}
    for each in things:
        title = title_without_name(each) if isinstance(each, Deferred) else short_title(each.title)
        groups.setdefault(_GROUP_OF[each.resource], []).append(title)
    for group, titles in groups.items():
        yield group, ", ".join(dict.fromkeys(titles))


def _changes_text(steps: Sequence[Step]) -> str:
    """List the titles of steps with their changes. Steps with the same change share an entry; those that need approval
    come first and are always named.
    """
    changes: dict[tuple[str, str], list[str]] = {}
    for step in sorted(steps, key=lambda each: not each.risks):
        changes.setdefault((step.title, str(step.key)), []).extend(_brief_changes(step))
    titles: dict[str, Counter[str]] = {}
    for (title, _), each in changes.items():
        titles.setdefault(", ".join(dict.fromkeys(each)), Counter())[short_title(title)] += 1
    risky_titles = {short_title(step.title) for step in steps if step.risks}
    texts = []
    for change, counts in titles.items():
        counted_titles = [title if count == 1 else f"{title} ({count} times)" for title, count in counts.items()]
        max_titles = max(len(risky_titles & counts.keys()), _MAX_TITLES)
        title_list = _cut_list(
            counted_titles, len(counted_titles) if len(counted_titles) < max_titles + 2 else max_titles
        )
        texts.append(f"{title_list}: {change}" if change else title_list)
    return "; ".join(texts)


def _fit_on_line(head: str, titles: Sequence[str]) -> str:
    """List as many titles as fit on a line of the terminal, and say how many more there are."""
    count = len(titles)
    width = (terminal_width(sys.stdout) or FILE_WIDTH) - len(head)
    while count > 1 and len(_cut_list(titles, count)) > width:
        count -= 1
    return head + _cut_list(titles, count)


def _cut_list(titles: Sequence[str], count: int) -> str:
    remaining = len(titles) - count
    return ", ".join(titles[:count]) + (f" and {remaining} more" if remaining else "")


def _brief_changes(step: Step) -> Iterator[str]:
    """Yield the changes of a step that people understand without context: no booleans, hashes or contents of files."""
    for name, desired in step.desired.items():
        before, after = step.before[name], format_value(desired)
        if name.startswith("to_") and isinstance(before, list) and not desired:
            if before:
                names = ", ".join(str(each).split()[0] for each in before)
                names = names if len(names) <= _LONGEST_VALUE else f"{len(before)} packages"
                yield f"{name.removeprefix('to_').replace('_', ' ')} {names}"
            continue
        is_hash = isinstance(desired, str) and "…" in after and assigned_vm(desired) is None
        if isinstance(desired, bool) or is_hash or len(after) > _LONGEST_VALUE:
            continue
        if before not in (None, "absent", []):
            yield f"{format_value(before)} → {after}"
        elif "network" in step.risks and desired:
            yield after


def title_without_name(deferred: Deferred) -> str:
    """Return the title of a deferred step without the `…` at its end, which stands for a name that is not known yet."""
    title = short_title(deferred.title)
    return title.removesuffix(" of …").removesuffix("…").rstrip() or title_of(deferred.resource)


def short_title(title: str) -> str:
    return visible(_LOCATION.sub("", title))
