"""winhost up: from a machine to a model that answers, by an ordinary plan and an ordinary run."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import click

from winhost.cli.change.running import (
    EndedHost,
    asking_for,
    begin,
    carried_through,
    consents,
    ended_run,
    not_asked,
    show_ends,
    show_served,
    shown_on,
)
from winhost.cli.envelope import show_results
from winhost.cli.jsonl import print_end
from winhost.cli.live_hosts import check_reach, read_live
from winhost.cli.named_hosts import check_rights, check_rights_told, host_at, hosts_named, is_local, local_host
from winhost.cli.output import say, show_command, with_fleet, write_file
from winhost.cli.plan.commands import UpOptions
from winhost.cli.plan.options import AskedPlan, FleetKeys, default_request, read_settings
from winhost.cli.plan.plan import Planner
from winhost.cli.plan.show import show_whole
from winhost.cli.plan.stack import PlannedStack
from winhost.cli.plan.stack_options import ClusterOptions
from winhost.cli.plan.stack_parts import show_new_key
from winhost.cli.shells import command_line
from winhost.cli.snapshots import Snapshot
from winhost.cli.tables import moment
from winhost.cli.up.choice import Choice, choose, gb, new_vm_settings, without_internet
from winhost.cli.up.first_completion import check_key
from winhost.cli.up.runs import (
    PENDING,
    PLAN,
    UNSEEN_KEY,
    WORKLOAD,
    UpRun,
    forget,
    forget_unused,
    is_planned,
    new_folder,
    standing_runs,
    typed_again,
)
from winhost.cli.up.show import Screen, likely_risks, resources_of, show_up, verdict_sentence
from winhost.cli.watch import watching
from winhost.compat.target import Target
from winhost.core.answers import MissingFact
from winhost.core.checks import Check
from winhost.engine.choosing import check_unasked, recommended
from winhost.engine.disk_images import pinned_image
from winhost.engine.failures import ConsentNeeded
from winhost.engine.failures import unfinished as end_unfinished
from winhost.engine.keys import is_pending, keep_pending
from winhost.engine.planfile import read_plan
from winhost.engine.planning import refuse_unsupported, request_of
from winhost.engine.run import apply as run
from winhost.engine.run import resume as go_on
from winhost.engine.run_context import Outcome, RunContext
from winhost.engine.store import Store
from winhost.engine.verify import verify_plan
from winhost.hub.catalogue import catalogue, named
from winhost.hub.repositories import ModelFolder
from winhost.model.documents import write_document
from winhost.model.errors import RefusedError, UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.files import write_whole
from winhost.model.fleet import AnyHost
from winhost.model.path import check_path, path_of
from winhost.model.plan import Plan, in_order
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes
from winhost.model.workload import is_folder
from winhost.model.workloadfile import load_workload
from winhost.resources.host import HostFacts
from winhost.resources.windows.disks import Partition
from winhost.resources.windows.read_only import ResizeLimit


def up(asked: UpOptions) -> int:
    check_path(asked.variant)
    if asked.model is not None and is_folder(asked.model):
        ModelFolder.at_path(asked.model)  # before a host is asked
    host = host_of(asked.on, asked.options.fleet_file)
    check_rights(host)
    store = Store()
    with store.lock(host.name, "winhost up", command=True):
        store.refuse_held(host.name)
        runs = standing_runs(store, host.name)
        forget_unused(store, host.name)
        unfinished = next((each for each in runs if not each.is_over), None)
        if unfinished is not None:
            return _go_on(host, unfinished, asked)
        served = next((each for each in runs if each.ours), None)
        if served is not None and (code := _still_served(host, served, asked)) is not None:
            return code
        return _anew(host, store, asked)


def host_of(word: str | None, fleet_file: Path | None) -> AnyHost:
    """Find the host. word: a name of fleet.yaml, or USER@ADDRESS. Raises UsageError (UnknownHost, SeveralHosts,
    NoFleet, FileFaults), and as `add_host` does.
    """
    if word is None:
        return local_host(fleet_file)
    if "@" in word[1:]:
        return host_at(word, fleet_file)
    found = hosts_named([word], fleet_file)
    if len(found) > 1:
        raise several_hosts(f"{visible(word)} means {len(found)} hosts", (host.name for host in found))
    return found[0]


def several_hosts(what: str, names: Iterable[str]) -> UsageError:
    """Make the error for a command that takes one host and got several."""
    listed = visible(", ".join(names))
    return UsageError("SeveralHosts", what=f"{what}, and this is for one", hint=f"Name one of them: {listed}")


# ---- what is there already


def _go_on(host: AnyHost, unfinished: UpRun, asked: UpOptions) -> int:
    """Continue a run that was killed, stopped, or ended by a restart of this machine."""
    state = unfinished.state
    name, here = state.run, visible(host.name)
    again = typed_again(host) if unfinished.ours else nullcontext()
    if state.going_back or state.outcome in ("partly rolled back", "not all rolled back"):
        with again:
            raise end_unfinished(host.name, name, True)
    _refuse_other_model(host, unfinished, asked)
    done = sum(not touched.is_restored for touched in state.touched.values())
    with shown_on(asked.options.document):
        say(f"{here}: {name} began at {moment(state.began)} and has not ended; it made {done} changes so far.")
    if not asked.options.yes:
        if not asked.asks:
            hint = f"Go on: {asked.command('--yes', *asked.answered)}\nOr go back: {_undo_command(unfinished)} --yes"
            raise not_asked(hint, f"whether to go on with {name}", host.name)
        if not click.confirm("Go on with it?", default=True, err=True):
            say(f"Nothing was changed. To undo it: {_undo_command(unfinished)}", err=True)
            return 1
    with again:
        outcome = ended_run(go_on, "Resume", name, replace(asked.options, yes=True), brief=not asked.details)
    return _ended(host, outcome, unfinished.folder, asked)


def _undo_command(run_: UpRun) -> str:
    return f"winhost down {visible(run_.state.host)}" if run_.ours else f"winhost rollback {run_.state.run}"


@contextmanager
def _undone_without(run_: UpRun) -> Iterator[None]:
    """Tell in an error about a file of a run how to undo the run, which needs only its journal."""
    try:
        yield
    except UsageError as error:
        if error.code == "FileFaults" or not error.hint:
            error.hint = f"To undo what it changed: {_undo_command(run_)}"
        raise


def _refuse_other_model(host: AnyHost, earlier: UpRun, asked: UpOptions) -> None:
    """Raises UsageError: OtherModel."""
    with _undone_without(earlier):
        workload = earlier.workload
    if asked.model is None or workload is None:
        return
    ids = [each.id for each in workload.models]
    meant = {asked.model.lower(), *(each.id.lower() for each in named(asked.model, catalogue().entries))}
    folder = Path(asked.model).resolve() if Path(asked.model).is_dir() else None
    if any(each.lower() in meant or Path(each) == folder for each in ids):
        return
    here = visible(host.name)
    raise UsageError(
        "OtherModel",
        what=f"{here} serves {visible(', '.join(ids))}, or is about to, and not {visible(asked.model)}",
        meaning="Nothing was changed.",
        hint=f"Undo that first: winhost down {here}\nThen: {asked.command(*asked.answered)}",
        host=host.name,
    )


def _still_served(host: AnyHost, served: UpRun, asked: UpOptions) -> int | None:
    """Say that there is nothing to do. Returns None if the host differs by now, which a new plan repairs."""
    _refuse_other_model(host, served, asked)
    with _undone_without(served):
        checked = read_plan(served.folder / PLAN)
    with watching(reads=True) as watch:
        facts = read_live(host, watch, checked.named)
    checks = tuple(verify_plan(checked, HostFacts(facts)))
    wrong = [each for each in checks if not each.holds]
    name = served.state.run
    if wrong:
        say(f"{host.name}: {name} served it, and {len(wrong)} of {len(checks)} properties differ by now:", err=True)
        for each in wrong[:3]:
            say(f"  {each.title}: {each.property}", err=True)
        return None
    outcome = Outcome(name, host.name, "applied", 0, checks)
    if asked.options.as_jsonl:
        print_end(host.name, outcome)
        return 0

    def show(_: EndedHost) -> None:
        since = moment(served.state.last)
        say(f"{host.name}: everything is served already, since {since}, by {name}. Nothing was changed.")
        _show_end(host, name, served.folder)

    show_results("outcome", asked.options.output.shape, [(host.name, EndedHost(host.name, outcome))], show)
    return 0


def _show_end(host: AnyHost, run_name: str, folder: Path, checks: Iterable[Check] = ()) -> None:
    """Show what to paste into the user's shell. folder: the folder of the run, which tells whether its API key was
    shown, because the `up` that made the key may have been interrupted; checks: those at the end of the run.
    """
    if sys.stderr.isatty() and (unseen := folder / UNSEEN_KEY).is_file():
        show_new_key(f"API key for {visible(host.name)}, new", SecretRef.parse(unseen.read_text("utf-8")).resolve())
        unseen.unlink()
    show_served(run_name, host, checks)
    here = () if is_local(host) else (host.name,)
    click.echo("To undo all of it:")
    click.echo(f"  {with_fleet(visible(command_line(('winhost', 'down', *here))))}")


# ---- a new plan


def _anew(host: AnyHost, store: Store, asked: UpOptions) -> int:
    with watching(reads=True) as watch:
        facts = read_live(host, watch)
    check_rights_told(host, facts)
    best = None
    if asked.variant:
        default_request(path_of(asked.variant), host.name)  # refuses a path that cannot be planned
        refuse_unsupported(HostFacts(facts), asked.variant)
    else:
        best = recommended(HostFacts(facts), asked.command)
    variant = best.variant if best else str(asked.variant)
    before = set(store.runs_of(host.name))
    folder = new_folder(store, host.name)
    try:
        with shown_on(asked.options.document):
            said = replace(asked.stack, workload=folder / WORKLOAD)
            joining = PlannedStack(said, ClusterOptions(), folder / PENDING)
            try:
                choice = choose(facts, variant, asked.model, said.hub, folder / WORKLOAD, asks=asked.asks)
                joining.check(path_of(variant))
                made = _planned(host, facts, variant, choice, joining, folder, asked, named=best is None)
            except WinhostError as error:
                raise without_internet(error, host.name, variant, asked) from None
            if best is not None:
                check_unasked(HostFacts(facts), made.plan, best, asked.command)
            if not is_pending(folder / PENDING):
                check_reach(host, made.plan)
            check_key(made.plan)
            if asked.details:
                show_whole(made.plan)
            show_up(made)
        given = _agreed(made, asked)
        return _applied(host, made.plan, folder, given, asked)
    finally:
        if set(store.runs_of(host.name)) == before:
            workload = folder / WORKLOAD
            if workload.is_file():
                words = ("winhost", "workload", "init", load_workload(workload).models[0].id, "-o", "my.yaml")
                says = "The plan and its workload file are not kept. A workload file of your own:"
                show_command(says, *words, err=True)
            forget(folder)


def _planned(
    host: AnyHost,
    facts: Facts,
    variant: str,
    choice: Choice,
    joining: PlannedStack,
    folder: Path,
    asked: UpOptions,
    *,
    named: bool,
) -> Screen:
    """Make the plan and write it. named: the user named the path. Raises as `winhost plan` does."""
    path = variant if named else path_of(variant)
    settings = (*new_vm_settings(HostFacts(facts), path, joining, asked.settings), *asked.settings)
    options = AskedPlan(path, settings=read_settings(settings), allow_unverified=asked.allow_unverified)
    planner = Planner(options, joining, FleetKeys(asked.options.fleet_file, folder / PENDING))
    with watching(reads=True) as watch:
        again = read_live(host, watch, planner.named)
        gpus = Target(HostFacts(again), variant).gpus
        used = joining.serving_gpus(again.host)
        if path_of(path) == "dda" and 0 < len(used) < len(gpus):  # the others stay with Windows
            joining.join_anew(again.host)
            gpu_names = tuple(gpu.location for gpu in used)
            planner = replace(planner, asked=replace(options, gpus=gpu_names))
        planned = planner.planned(Snapshot(host.name, again), watch)
    if isinstance(planned, WinhostError):
        raise planned
    plan = planned.plan
    workload = folder / WORKLOAD
    note = (
        f"its workload file is {workload}; to go on by yourself, copy it to my.yaml and plan: "
        f"winhost plan {plan.host} --workload my.yaml"
    )
    plan = replace(plan, notes=(*plan.notes, note))
    write_file(folder / PLAN, write_document(plan), "plan", True)
    for value in (setting.partition("=")[2] for setting in settings):
        if value.startswith("./"):  # a run looks for files beside the plan
            (folder / value).symlink_to(Path(value).resolve())
    used, downloads = joining.serving_gpus(again.host), _downloads(plan, joining)
    _refuse_full(HostFacts(again), path, downloads)
    option = f"{plan.request.path}/{plan.variant}" if plan.variant else plan.request.path
    return Screen(
        plan,
        choice,
        verdict_sentence(plan, choice.model, option),
        downloads,
        used,
        tuple(gpu for gpu in gpus if gpu.location not in [each.location for each in used]),
        here=is_local(host),
        details=asked.command("--details"),
    )


def _refuse_full(facts: HostFacts, path: str, downloads: Mapping[str, Bytes | None]) -> None:
    """Raises RefusedError (DiskTooSmall) if the volume that Windows runs from, on which a distro lies, cannot hold what
    is downloaded. An unknown size refuses nothing.
    """
    needed = sum(size for size in downloads.values() if size is not None)
    try:
        (windows,) = (each for each in facts.all(Partition) if each.state.boot)
        limit = facts.find(ResizeLimit, windows.key)
    except (MissingFact, ValueError):
        return
    if path_of(path) == "wsl2" and limit is not None and limit.free < needed:
        here = visible(facts.host)
        raise RefusedError(
            "DiskTooSmall",
            what=f"{here} has {gb(limit.free)} free on the volume of Windows, and {gb(needed)} are needed",
            meaning="Nothing was changed. A distro of WSL lies on that volume, with the model and vLLM's image.",
            hint=f"Free some, or choose a smaller model: winhost models show {here}",
            host=facts.host,
        )


def _downloads(plan: Plan, joining: PlannedStack) -> Mapping[str, Bytes | None]:
    """Return the bytes of each download. A plan that repairs something else downloads nothing again."""
    parts, found = joining.parts, dict[str, Bytes | None]()
    changed = resources_of(plan)
    if changed & {"StagedFile", "VmDisk"} and (image := pinned_image(request_of(plan))) is not None:
        found["Ubuntu"] = image.bytes
    if "ModelFiles" in changed:
        found |= {name: sum(int(line.split(" ")[1]) for line in files["files"]) for name, files in parts.files.items()}
    if "ContainerImage" in changed and not parts.own_program:
        found["vLLM's image"] = parts.image.bytes or None
    return found


def _agreed(screen: Screen, asked: UpOptions) -> tuple[str, ...]:
    """Ask one question for all approvals. Raises UsageError (NotAsked), ConsentNeeded, and Abort as `begin` does."""
    plan, given = screen.plan, asked.options.accepted
    likely, asking = likely_risks(plan), asking_for(plan, plan.stages)
    every = in_order((*likely, *given))
    accept = ("--accept", ",".join(every)) if every else ()
    by_words = f"To do it without questions: {asked.command('--yes', *accept)}"
    if asked.options.yes:
        given = consents(asking, given, True)
        lacking = tuple(risk for risk in asking_for(plan, plan.stages[:1]).needed if risk not in given)
        if lacking:
            raise _consent_needed(plan.host, lacking, by_words)
        return given
    if not asked.asks:
        raise not_asked(by_words, host=plan.host)
    needed = tuple(risk for risk in likely if risk not in given)
    if "data" in needed:  # is asked for by itself
        given = consents(replace(asking, needed={"data": asking.needed["data"]}, maybe={}), given, True)
    covered = tuple(risk for risk in needed if risk != "data")
    if not covered:
        begin("Begin?", False)
    elif not click.confirm(f"Begin, which approves {', '.join(covered)}?", err=True):
        raise _consent_needed(plan.host, covered, by_words)
    return tuple(dict.fromkeys((*given, *covered)))


def _consent_needed(host: str, risks: tuple[str, ...], hint: str) -> ConsentNeeded:
    needs = ConsentNeeded(host, None, risks)
    needs.hint = hint
    return needs


def _applied(host: AnyHost, plan: Plan, folder: Path, given: tuple[str, ...], asked: UpOptions) -> int:
    file, kept = folder / PLAN, keep_pending(host.name, folder / PENDING)
    if kept is not None:  # a key that was made for this plan, which refers to it from now on
        request = replace(plan.request, asks_with=kept.written)
        write_file(file, write_document(replace(plan, request=request)), "plan", True)
        write_whole(folder / UNSEEN_KEY, [kept.written])
    is_planned(folder)
    checked = read_plan(file)

    def go(name: str | None, accepted: tuple[str, ...], context: RunContext) -> Outcome:
        return go_on(name, accepted, context) if name else run(checked, accepted, context)

    vm, brief = checked.plan.request.vm, not asked.details
    with typed_again(host):
        outcome = carried_through(host, go, "up", vm, given, asked.options, plan_file=file, brief=brief)
    return _ended(host, outcome, folder, asked)


def _ended(host: AnyHost, outcome: Outcome, folder: Path, asked: UpOptions) -> int:
    code = show_ends([(outcome.host, outcome)], asked.options, brief=True)
    if code == 0 and not asked.options.document:
        _show_end(host, outcome.run, folder, outcome.checks)
    return code
