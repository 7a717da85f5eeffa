"""A plan on one screen: a line for each group of steps that belong together, what it asks for, and what stays."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from winhost.cli.output import say
from winhost.cli.tables import WIDE, format_value, table
from winhost.cli.terminal import columns
from winhost.core.steps import Step
from winhost.knowledge import catalogue
from winhost.model.errors import UsageError, visible
from winhost.model.plan import Deferred, Plan, Stage, in_order
from winhost.resources.registry import titled
from winhost.resources.windows.assignable_device import owner

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


def show_groups(plan: Plan) -> None:
    """Show the stages of a plan, and what cannot be undone."""
    for stage in plan.stages:
        _show_stage(stage)
    for step in plan.steps:
        if step.irreversible:
            say(f"Cannot be undone: {short(step.title)}: {step.irreversible}", hang=2, fg="red")


def show_notes(notes: Iterable[str]) -> None:
    """Show the limits of a host, each once with all that it applies to. Notes are left to the details, except those
    about the host's network.
    """
    said: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        found = NOTE.fullmatch(note)
        if found is None:
            said[note, ""] = []
            continue
        entry, noted = _entry(found["code"]), found["severity"] == "note"
        # What was observed is among the details.
        brief = entry is not None and found["text"].endswith(entry.sentence) and not noted
        text = entry.sentence if entry is not None and brief else found["text"]
        if not noted or (entry is not None and "network" in entry.risks):
            said.setdefault((found["severity"], f"{text} [{found['code']}]"), []).append(found["subject"])
    for (severity, text), subjects in said.items():
        named = dict.fromkeys(short(each) for each in subjects if each not in ("host", "the request"))
        say(": ".join(filter(None, (severity, ", ".join(named), text))), hang=2)


def _entry(code: str) -> catalogue.CatalogueEntry | None:
    """Return the entry of a code; None for a caution of the request."""
    try:
        return catalogue.entry(code)
    except UsageError:
        return None


def _show_stage(stage: Stage) -> None:
    if not stage.steps and not stage.deferred:
        say("Nothing to do: everything is already as planned.")
    if stage.steps:
        head = f"Stage {stage.number}{', ends with a restart' if stage.restarts else ''}"
        table((head, "what changes", "approvals"), _rows(stage.steps))
    if stage.deferred:
        say(f"Stage {stage.number + 1} is planned from the host as it is then; a refusal stops the run:")
    for until in dict.fromkeys(each.until for each in stage.deferred):
        waiting = dict.fromkeys(_waiting(each) for each in stage.deferred if each.until == until)
        say(_on_a_line(f"  With {titled(until)}: ", [*waiting]), hang=2)


def _rows(steps: Sequence[Step]) -> Iterator[tuple[str, str, str]]:
    groups: dict[str, list[Step]] = {}
    for step in steps:
        groups.setdefault(_GROUP_OF[step.resource], []).append(step)
    for group, members in groups.items():
        risks = in_order(risk for step in members for risk in step.risks)
        maybe = in_order(risk for step in members for risk in step.may_need if risk not in risks)
        yield group, _what(members), ", ".join((*risks, *(f"possibly {risk}" for risk in maybe)))


def group_changes(steps: Sequence[Step]) -> Iterator[tuple[str, str]]:
    """Yield groups of steps, and what changes in each."""
    for group, what, _ in _rows(steps):
        yield group, what


def grouped_titles(things: Iterable[Step | Deferred]) -> Iterator[tuple[str, str]]:
    """Yield groups of steps, or of what is planned only later, with their titles."""
    groups: dict[str, list[str]] = {}
    for each in things:
        title = _waiting(each) if isinstance(each, Deferred) else short(each.title)
        groups.setdefault(_GROUP_OF[each.resource], []).append(title)
    for group, titles in groups.items():
        yield group, ", ".join(dict.fromkeys(titles))


def _what(steps: Sequence[Step]) -> str:
    """List titles with what changes, equal ones together. What needs approval comes first and is always named."""
    changes: dict[tuple[str, str], list[str]] = {}
    for step in sorted(steps, key=lambda each: not each.risks):
        changes.setdefault((step.title, str(step.key)), []).extend(_changes(step))
    titles: dict[str, Counter[str]] = {}
    for (title, _), each in changes.items():
        titles.setdefault(", ".join(dict.fromkeys(each)), Counter())[short(title)] += 1
    asking = {short(step.title) for step in steps if step.risks}
    return "; ".join(
        ": ".join(filter(None, (_listed([*map(_counted, each.items())], len(asking & each.keys())), what)))
        for what, each in titles.items()
    )


def _counted(title: tuple[str, int]) -> str:
    return title[0] if title[1] == 1 else f"{title[0]} ({title[1]} times)"


def _listed(shown: Sequence[str], least: int = 0) -> str:
    most = max(least, _MOST_TITLES)
    return _cut(shown, len(shown) if len(shown) < most + 2 else most)


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


def _changes(step: Step) -> Iterator[str]:
    """Yield changes that people understand without context: no switches, no hashes, no whole files."""
    for name, desired in step.desired.items():
        before, after = step.before[name], format_value(desired)
        if name.startswith("to_") and isinstance(before, list) and not desired:
            if before:
                yield _packages(name.removeprefix("to_").replace("_", " "), [str(each).split()[0] for each in before])
            continue
        hashed = isinstance(desired, str) and "…" in after and owner(desired) is None
        if isinstance(desired, bool) or hashed or len(after) > _LONGEST_VALUE:
            continue
        if before not in (None, "absent", []):
            yield f"{format_value(before)} → {after}"
        elif "network" in step.risks and desired:
            yield after


def _packages(verb: str, names: Sequence[str]) -> str:
    listed = ", ".join(names)
    return f"{verb} {listed if len(listed) <= _LONGEST_VALUE else f'{len(names)} packages'}"


def _waiting(deferred: Deferred) -> str:
    """Return the title of a deferred step, without the `…` of an unknown name at its end."""
    told = short(deferred.title)
    return told.removesuffix(" of …").removesuffix("…").rstrip() or titled(deferred.resource)


def short(title: str) -> str:
    return visible(_LOCATION.sub("", title))
