"""winhost down: roll back the runs of `winhost up` on a host, newest first."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from winhost.cli.change.running import (
    ask_for_consents,
    consent_request_for_steps,
    no_terminal_error,
    resume_or_roll_back,
    show_outcomes,
)
from winhost.cli.named_hosts import check_rights, local_host
from winhost.cli.options import RunOptions
from winhost.cli.output import say
from winhost.cli.plan.show import grouped_titles, short_title
from winhost.cli.shells import command_line
from winhost.cli.up.choice import format_size
from winhost.cli.up.runs import UpRun, delete_unused_folders, hosts_of_up_runs, standing_runs, suggest_up_commands
from winhost.cli.up.up import host_of, several_hosts
from winhost.core.answers import MissingFact
from winhost.core.rules import RESTART
from winhost.core.steps import Step
from winhost.engine.rollback import RollbackOutlook, preview_on_host
from winhost.engine.rollback import rollback as roll_back
from winhost.engine.run_context import Outcome, RunContext
from winhost.engine.run_state import RunState
from winhost.engine.store import Store
from winhost.model.fleet import AnyHost
from winhost.model.plan import sort_risks
from winhost.resources.host import HostFacts
from winhost.resources.windows.distros import WslDistro
from winhost.resources.windows.vms import VmDisk

EXPORTS = "%ProgramData%\\winhost\\exports"
_ROLE = "HyperVRole"
_DATA_RESOURCES = ("WslDistro", "OwnVm", "VmDisk", "OwnPartition", "Partition", "DataDisk")


def down(name: str | None, options: RunOptions) -> int:
    store = Store()
    host = _host(name, store, options.fleet_file)
    with store.lock(host.name, "winhost down", command=True):
        store.refuse_locked(host.name)
        runs = [each for each in standing_runs(store, host.name) if each.by_up]
        delete_unused_folders(store, host.name)
        if not runs and options.document:
            return show_outcomes((), options)
        if not runs:
            say(f"{host.name}: there is no run of winhost up to undo; nothing was changed. Other runs: winhost runs")
            return 0
        check_rights(host)
        with suggest_up_commands(host):
            return show_outcomes(_roll_back_runs(runs, options, name), options, brief=True)


def _roll_back_runs(runs: Sequence[UpRun], options: RunOptions, name: str | None) -> Iterator[tuple[str, Outcome]]:
    """Roll back runs, newest first, and end with the first that cannot be rolled back entirely, because what remains of
    it may depend on older runs.
    """
    preview = _RollbackPreview(options, name)
    for each in runs:
        outcome = resume_or_roll_back(roll_back, "Undo", each.state.run, options, preview.show_and_ask, brief=True)
        yield outcome.host, outcome
        if outcome.exit_code:
            return


def _host(name: str | None, store: Store, fleet_file: Path | None) -> AnyHost:
    """Return the host with this name. Without a name, return this machine if it has a run of `up`, else the only other
    host that has one, else this machine. Raises UsageError: SeveralHosts.
    """
    if name is not None:
        return host_of(name, fleet_file)
    local, hosts = local_host(fleet_file), hosts_of_up_runs(store)
    if local.name in hosts or not hosts:
        return local
    if len(hosts) == 1:
        return host_of(hosts[0], fleet_file)
    raise several_hosts(f"{len(hosts)} hosts have a run of winhost up", hosts)


class _RollbackPreview:
    """Shows what a rollback does, and asks for its consents. name: of the host, as it was typed."""

    def __init__(self, options: RunOptions, name: str | None) -> None:
        self._yes, self._name, self._fleet = options.yes, name, options.fleet_file

    def show_and_ask(self, record: RunState, context: RunContext, accepted: tuple[str, ...]) -> tuple[str, ...]:
        if self._yes:
            return accepted
        steps, outlook, facts = preview_on_host(record.run, context)
        self._show(record, steps, outlook, HostFacts(facts))
        needed = _needed_consents(record, steps)
        missing = tuple(risk for risk in needed if risk not in accepted)
        if not sys.stdin.isatty():
            accept = ("--accept", ",".join(needed)) if needed else ()
            fleet = ("--fleet", str(self._fleet)) if self._fleet else ()
            command = ("winhost", "down", *((self._name,) if self._name else ()), *fleet, "--yes", *accept)
            raise no_terminal_error(f"To do it without questions: {command_line(command)}", host=record.host)
        if "data" in missing:
            request = consent_request_for_steps(
                record.host, [step for step in steps if "data" in step.risks], run=record.run
            )
            accepted = ask_for_consents(request, accepted, True)
        elif "data" not in accepted and any(
            step.resource == "WslDistro" and step.desired.get("installed") is False for step in steps
        ):
            question = f"Export the distro to {EXPORTS} first? Without that its data are deleted"
            accepted = accepted if click.confirm(question, True, err=True) else (*accepted, "data")
        return (*accepted, *(risk for risk in missing if risk not in accepted))

    def _show(self, record: RunState, steps: Sequence[Step], outlook: RollbackOutlook, host: HostFacts) -> None:
        say(f"Undo {record.run} on {record.host}: {len(steps)} steps", bold=True)
        for group, titles in grouped_titles(steps):
            say(f"  {group}: {titles}", hang=4)
        for each in deletions(record, steps, host):
            say(f"  data: {each}", hang=4, fg="yellow")
        role = _removed_role(record, steps)
        for sentence in outlook.kept:
            remark = ", which is looked at again once winhost's VM is gone"
            say(f"  {sentence}{remark if role and sentence.startswith(role) else ''}", hang=4)
        for sentence in outlook.removed_with_parent:
            say(f"  {sentence}", hang=4)
        for unchecked in outlook.missing:
            say(f"  {unchecked.title}: cannot be checked: {unchecked.why}", hang=4)
        needed = [risk for risk in _needed_consents(record, steps) if risk != "data"]
        if needed:
            say(f"  Approvals: {', '.join(needed)} (your answer below covers them)")
        say("  Stays: the keys that winhost made for this host, in its own state")


def _needed_consents(record: RunState, steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the consents that are needed, including the restart that removes the Hyper-V role."""
    restart = (RESTART,) if _removed_role(record, steps) else ()
    return sort_risks((*(risk for step in steps for risk in step.risks), *restart))


def _removed_role(record: RunState, steps: Sequence[Step]) -> str | None:
    """Return the title of the Hyper-V role if the rollback removes it after its last VM, for which no step is planned
    yet.
    """
    if not any(step.resource == "OwnVm" for step in steps):
        return None
    roles = (each for each in record.touched.values() if each.resource == _ROLE and not each.is_restored)
    return next((each.title for each in roles), None)


def deletions(record: RunState, steps: Sequence[Step], host: HostFacts) -> Iterator[str]:
    """Yield sentences about the distros and disks that are deleted, with their contents and sizes."""
    desired = (each for stage in record.stages for each in stage.desired if each.resource == "ModelFiles")
    lines = {str(line) for each in desired for line in each.desired.get("files") or ()}
    bytes_held = sum(int(line.split(" ")[1]) for line in lines)
    content = f", with {format_size(bytes_held)} of models that winhost downloaded" if bytes_held else ""
    for step in steps:
        is_deleted = any(step.desired.get(name) is False for name in ("installed", "made"))
        if step.resource not in _DATA_RESOURCES or not is_deleted:
            continue
        title = short_title(step.title)
        if step.resource == "WslDistro":
            yield (
                f"{title} goes{content}; {_size(host, WslDistro, step)}. It is exported first, without models and "
                f"images, to a .tar in {EXPORTS}\\{step.key['account']}"
            )
        elif step.resource == "VmDisk":
            size = _size(host, VmDisk, step)
            yield f"{title} is deleted{content}; {size}. It is not exported: copy what you need first"


def _size(host: HostFacts, kind: type[WslDistro] | type[VmDisk], step: Step) -> str:
    """Say which size a disk's file has now."""
    disk = "its disk ext4.vhdx" if kind is WslDistro else "its file"
    try:
        size = next(each.state.file_size for each in host.all(kind) if each.key == step.key)
    except (MissingFact, StopIteration):
        size = None
    # A host reports 0 for a file that it cannot see; no disk is that small.
    return f"{disk} has {format_size(size)}" if size else f"the size of {disk} is not known"
