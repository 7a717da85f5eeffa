"""winhost down: roll back what `winhost up` made on a host, newest first."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from winhost.cli.change.running import asking_for_steps, consents, ended_run, not_asked, show_ends
from winhost.cli.named_hosts import check_rights, local_host
from winhost.cli.options import RunOptions
from winhost.cli.output import say
from winhost.cli.plan.show import grouped_titles, short
from winhost.cli.shells import command_line
from winhost.cli.up.choice import gb
from winhost.cli.up.runs import UpRun, forget_unused, hosts_of_ours, standing_runs, typed_again
from winhost.cli.up.up import host_of, several_hosts
from winhost.core.answers import MissingFact
from winhost.core.rules import RESTART
from winhost.core.steps import Step
from winhost.engine.rollback import RollbackOutlook, preview_on_host
from winhost.engine.rollback import rollback as go_back
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
_GOES_WITH_DATA = ("WslDistro", "OwnVm", "VmDisk", "OwnPartition", "Partition", "DataDisk")


def down(word: str | None, options: RunOptions) -> int:
    store = Store()
    host = _host(word, store, options.fleet_file)
    with store.lock(host.name, "winhost down", command=True):
        store.refuse_locked(host.name)
        runs = [each for each in standing_runs(store, host.name) if each.ours]
        forget_unused(store, host.name)
        if not runs and options.document:
            return show_ends((), options)
        if not runs:
            say(f"{host.name}: nothing of winhost up stands there; nothing was changed. Other runs: winhost runs")
            return 0
        check_rights(host)
        with typed_again(host):
            return show_ends(_undone(runs, options, word), options, brief=True)


def _undone(runs: Sequence[UpRun], options: RunOptions, word: str | None) -> Iterator[tuple[str, Outcome]]:
    """Undo runs, newest first, until one stays: it may depend on older ones."""
    for each in runs:
        outcome = ended_run(go_back, "Undo", each.state.run, options, _Down(each, options, word).ask, brief=True)
        yield outcome.host, outcome
        if outcome.exit_code:
            return


def _host(word: str | None, store: Store, fleet_file: Path | None) -> AnyHost:
    """Find the host that a word names; without one this machine, or the only host with a run of `up`. Raises
    UsageError: SeveralHosts.
    """
    if word is not None:
        return host_of(word, fleet_file)
    here, made = local_host(fleet_file), hosts_of_ours(store)
    if here.name in made or not made:
        return here
    if len(made) == 1:
        return host_of(made[0], fleet_file)
    raise several_hosts(f"what winhost made to serve stands on {len(made)} hosts", made)


class _Down:
    """Shows what undoing a run does, and asks for its consents."""

    def __init__(self, run: UpRun, options: RunOptions, word: str | None) -> None:
        self._run, self._yes, self._word, self._fleet = run, options.yes, word, options.fleet_file

    def ask(self, record: RunState, context: RunContext, given: tuple[str, ...]) -> tuple[str, ...]:
        if self._yes:
            return given
        steps, back, facts = preview_on_host(record.run, context)
        self._show(record, steps, back, HostFacts(facts))
        needed = _needed(record, steps)
        lacking = tuple(risk for risk in needed if risk not in given)
        if not sys.stdin.isatty():
            accept = ("--accept", ",".join(needed)) if needed else ()
            fleet = ("--fleet", str(self._fleet)) if self._fleet else ()
            words = ("winhost", "down", *((self._word,) if self._word else ()), *fleet, "--yes", *accept)
            raise not_asked(f"To do it without questions: {command_line(words)}", host=record.host)
        if "data" in lacking:
            asking = asking_for_steps(record.host, [step for step in steps if "data" in step.risks], run=record.run)
            given = consents(asking, given, True)
        elif "data" not in given and any(
            step.resource == "WslDistro" and step.desired.get("installed") is False for step in steps
        ):
            keep = f"Export the distro to {EXPORTS} first? Without that its data are deleted"
            given = given if click.confirm(keep, True, err=True) else (*given, "data")
        return (*given, *(risk for risk in lacking if risk not in given))

    def _show(self, record: RunState, steps: Sequence[Step], back: RollbackOutlook, host: HostFacts) -> None:
        say(f"Undo {record.run} on {record.host}: {len(steps)} steps", bold=True)
        for group, what in grouped_titles(steps):
            say(f"  {group}: {what}", hang=4)
        for each in what_goes(record, steps, host):
            say(f"  data: {each}", hang=4, fg="yellow")
        role = _waiting_role(record, steps)
        for sentence in back.kept:
            again = ", which is looked at again once winhost's VM is gone"
            say(f"  {sentence}{again if role and sentence.startswith(role) else ''}", hang=4)
        for sentence in back.removed_with_parent:
            say(f"  {sentence}", hang=4)
        for lacks in back.missing:
            say(f"  {lacks.title}: cannot be checked: {lacks.why}", hang=4)
        needed = [risk for risk in _needed(record, steps) if risk != "data"]
        if needed:
            say(f"  Approvals: {', '.join(needed)} (your answer below covers them)")
        say("  Stays: the keys that winhost made for this host, in its own state")


def _needed(record: RunState, steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the consents that are needed, including the restart that removes the Hyper-V role."""
    later = (RESTART,) if _waiting_role(record, steps) else ()
    return sort_risks((*(risk for step in steps for risk in step.risks), *later))


def _waiting_role(record: RunState, steps: Sequence[Step]) -> str | None:
    """Return the title of the Hyper-V role if it goes once its VMs are gone, which no step shows yet."""
    if not any(step.resource == "OwnVm" for step in steps):
        return None
    standing = (each for each in record.touched.values() if each.resource == _ROLE and not each.is_restored)
    return next((each.title for each in standing), None)


def what_goes(record: RunState, steps: Sequence[Step], host: HostFacts) -> Iterator[str]:
    """Name what is deleted with all its content, and its size."""
    desired = (each for stage in record.stages for each in stage.desired if each.resource == "ModelFiles")
    lines = {str(line) for each in desired for line in each.desired.get("files") or ()}
    held = sum(int(line.split(" ")[1]) for line in lines)
    inside = f", with {gb(held)} of models that winhost downloaded" if held else ""
    for step in steps:
        gone = any(step.desired.get(name) is False for name in ("installed", "made"))
        if step.resource not in _GOES_WITH_DATA or not gone:
            continue
        if step.resource == "WslDistro":
            yield (
                f"{short(step.title)} goes{inside}; {_size(host, WslDistro, step)}. It is exported first, without "
                f"models and images, to a .tar in {EXPORTS}\\{step.key['account']}"
            )
        elif step.resource == "VmDisk":
            yield (
                f"{short(step.title)} is deleted{inside}; {_size(host, VmDisk, step)}. It is not exported: copy what "
                "you need first"
            )


def _size(host: HostFacts, of: type[WslDistro] | type[VmDisk], step: Step) -> str:
    """Give the size of a disk's file as the host reports it now."""
    what = "its disk ext4.vhdx" if of is WslDistro else "its file"
    try:
        size = next(each.state.file_size for each in host.all(of) if each.key == step.key)
    except (MissingFact, StopIteration):
        size = None
    # A host says 0 of a file that it does not see, and no disk is that small.
    return f"{what} has {gb(size)}" if size else f"the size of {what} is not known"
