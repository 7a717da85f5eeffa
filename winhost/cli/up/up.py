"""winhost up: serve a model on a machine, by an ordinary plan and an ordinary run."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import click

from winhost.cli.change.running import (
    EndedHost,
    ask_for_consents,
    confirm_start,
    consent_request,
    no_terminal_error,
    reserve_stdout,
    resume_or_roll_back,
    run_with_consents,
    show_outcomes,
    show_served,
)
from winhost.cli.envelope import show_results
from winhost.cli.jsonl import print_end
from winhost.cli.live_hosts import check_linux_key, read_live
from winhost.cli.named_hosts import (
    check_reported_rights,
    check_rights,
    is_local,
    local_host,
    resolve_account,
    resolve_hosts,
)
from winhost.cli.output import say, show_command, with_fleet, write_file
from winhost.cli.plan.commands import UpOptions
from winhost.cli.plan.options import FleetKeys, RequestBuilder, default_request, read_settings
from winhost.cli.plan.plan import Planner
from winhost.cli.plan.show import show_full_plan
from winhost.cli.plan.stack import PlannedStack
from winhost.cli.plan.stack_options import ClusterOptions
from winhost.cli.plan.stack_parts import show_new_key
from winhost.cli.shells import command_line
from winhost.cli.snapshots import Snapshot
from winhost.cli.tables import format_time
from winhost.cli.up.choice import Choice, choose_model, explain_unreachable_servers, format_size, new_vm_settings
from winhost.cli.up.first_completion import check_key
from winhost.cli.up.runs import (
    PENDING,
    PLAN,
    UNSEEN_KEY,
    WORKLOAD,
    UpRun,
    delete_folder,
    delete_unused_folders,
    mark_run_started,
    new_folder,
    standing_runs,
    suggest_up_commands,
)
from winhost.cli.up.show import Screen, likely_risks, resources_of, show_up, verdict_sentence
from winhost.cli.watch import show_progress
from winhost.compat.target import Target
from winhost.core.answers import MissingFact
from winhost.core.checks import Check
from winhost.engine.choosing import check_default_plan, recommend_path
from winhost.engine.disk_images import pinned_image
from winhost.engine.failures import ConsentNeeded
from winhost.engine.failures import unfinished_run_error as unfinished_error
from winhost.engine.keys import is_pending, store_pending
from winhost.engine.planfile import read_plan
from winhost.engine.planning import refuse_unsupported, request_of
from winhost.engine.run import apply as apply_plan
from winhost.engine.run import resume as resume_run
from winhost.engine.run_context import Outcome, RunContext
from winhost.engine.store import Store
from winhost.engine.verify import verify_plan
from winhost.hub.catalogue import catalogue, named
from winhost.hub.draft import config_of
from winhost.hub.repositories import HUB, ModelFolder
from winhost.model.documents import write_document
from winhost.model.errors import RefusedError, UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.files import write_whole
from winhost.model.fleet import AnyHost
from winhost.model.path import check_path, path_of
from winhost.model.plan import Plan, sort_risks
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes
from winhost.model.workload import is_folder
from winhost.model.workloadfile import load_workload
from winhost.resources.host import HostFacts
from winhost.resources.windows.disks import Partition
from winhost.resources.windows.read_only import ResizeLimit


def up(request: UpOptions) -> int:
    check_path(request.variant)
    if request.model is not None and is_folder(request.model):
        folder = ModelFolder.from_path(request.model)
        config_of(folder, folder.sizes())  # refuses a folder without a model before a host is read
    host = host_of(request.on, request.options.fleet_file)
    check_rights(host)
    store = Store()
    with store.lock(host.name, "winhost up", command=True):
        store.refuse_locked(host.name)
        runs = standing_runs(store, host.name)
        delete_unused_folders(store, host.name)
        unfinished_run = next((each for each in runs if not each.is_applied), None)
        if unfinished_run is not None:
            return _continue_run(host, unfinished_run, request)
        served_run = next((each for each in runs if each.by_up), None)
        if served_run is not None and (code := _report_if_served(host, served_run, request)) is not None:
            return code
        return _plan_and_apply(host, store, request)


def host_of(name: str | None, fleet_file: Path | None) -> AnyHost:
    """Return the host. name: a name in fleet.yaml, or USER@ADDRESS; None for this machine. Raises UsageError
    (UnknownHost, SeveralHosts, NoFleet, FileFaults), and as `add_host` does.
    """
    if name is None:
        return local_host(fleet_file)
    if "@" in name[1:]:
        return resolve_account(name, fleet_file)
    hosts = resolve_hosts([name], fleet_file)
    if len(hosts) > 1:
        raise several_hosts(f"{visible(name)} means {len(hosts)} hosts", (host.name for host in hosts))
    return hosts[0]


def several_hosts(what: str, names: Iterable[str]) -> UsageError:
    """Return the error for a command that takes one host and got several."""
    host_list = visible(", ".join(names))
    return UsageError(
        "SeveralHosts", what=f"{what}, and this command is for one", hint=f"Name one of them: {host_list}"
    )


# ---- earlier runs of this host


def _continue_run(host: AnyHost, run: UpRun, request: UpOptions) -> int:
    """Continue a run that was killed, stopped, or ended by a restart of this machine."""
    state = run.state
    name, host_name = state.run, visible(host.name)
    up_commands = suggest_up_commands(host) if run.by_up else nullcontext()
    if state.going_back or state.outcome in ("partly rolled back", "not all rolled back"):
        with up_commands:
            raise unfinished_error(host.name, name, True)
    _refuse_other_model(host, run, request)
    changes = sum(not touched.is_restored for touched in state.touched.values())
    with reserve_stdout(request.options.document):
        began = format_time(state.began)
        say(f"{host_name}: {name} began at {began} and has not ended; it made {changes} changes so far.")
    if not request.options.yes:
        if not request.can_ask:
            hint = f"Go on: {request.command('--yes', *request.answer_options)}\nOr go back: {_undo_command(run)} --yes"
            raise no_terminal_error(hint, f"whether to go on with {name}", host.name)
        if not click.confirm("Go on with it?", default=True, err=True):
            say(f"Nothing was changed. To undo it: {_undo_command(run)}", err=True)
            return 1
    with up_commands:
        outcome = resume_or_roll_back(
            resume_run, "Resume", name, replace(request.options, yes=True), brief=not request.details
        )
    return _show_outcome(host, outcome, run.folder, request)


def _undo_command(run: UpRun) -> str:
    return f"winhost down {visible(run.state.host)}" if run.by_up else f"winhost rollback {run.state.run}"


@contextmanager
def _add_undo_hint(run: UpRun) -> Iterator[None]:
    """Add a hint to an error about a file of a run: how to undo the run, which needs only its journal."""
    try:
        yield
    except UsageError as error:
        if error.code == "FileFaults" or not error.hint:
            error.hint = f"To undo what it changed: {_undo_command(run)}"
        raise


def _refuse_other_model(host: AnyHost, run: UpRun, request: UpOptions) -> None:
    """Refuse to serve another model than a run does. Raises UsageError: OtherModel."""
    with _add_undo_hint(run):
        workload = run.workload
    if request.model is None or workload is None:
        return
    ids = [each.id for each in workload.models]
    requested_ids = {request.model.lower(), *(each.id.lower() for each in named(request.model, catalogue().entries))}
    folder = Path(request.model).resolve() if Path(request.model).is_dir() else None
    if any(each.lower() in requested_ids or Path(each) == folder for each in ids):
        return
    host_name = visible(host.name)
    raise UsageError(
        "OtherModel",
        what=f"{host_name} serves {visible(', '.join(ids))}, or is about to, and not {visible(request.model)}",
        meaning="Nothing was changed.",
        hint=f"Undo that first: winhost down {host_name}\nThen: {request.command(*request.answer_options)}",
        host=host.name,
    )


def _report_if_served(host: AnyHost, run: UpRun, request: UpOptions) -> int | None:
    """Report that the host serves already, and return the exit code. Return None if the host differs from the plan by
    now, which a new plan repairs.
    """
    _refuse_other_model(host, run, request)
    with _add_undo_hint(run):
        checked = read_plan(run.folder / PLAN)
    with show_progress(read_only=True) as watch:
        facts = read_live(host, watch, checked.named)
    checks = tuple(verify_plan(checked, HostFacts(facts)))
    failed_checks = [each for each in checks if not each.holds]
    name = run.state.run
    if failed_checks:
        say(
            f"{host.name}: {name} served it, and {len(failed_checks)} of {len(checks)} properties differ by now:",
            err=True,
        )
        for each in failed_checks[:3]:
            say(f"  {each.title}: {each.property}", err=True)
        return None
    outcome = Outcome(name, host.name, "applied", 0, checks)
    if request.options.as_jsonl:
        print_end(host.name, outcome)
        return 0

    def show(_: EndedHost) -> None:
        since = format_time(run.state.last)
        say(f"{host.name}: everything is served already, since {since}, by {name}. Nothing was changed.")
        _show_endpoint(host, name, run.folder)

    show_results("outcome", request.options.output.shape, [(host.name, EndedHost(host.name, outcome))], show)
    return 0


def _show_endpoint(host: AnyHost, run_name: str, folder: Path, checks: Iterable[Check] = ()) -> None:
    """Show how to use the endpoint and how to undo the run. Show a new API key once: the `up` that made it may have
    been interrupted before it did so.

    folder: the folder of the run; checks: those at the end of the run.
    """
    if sys.stderr.isatty() and (unseen_key := folder / UNSEEN_KEY).is_file():
        key = SecretRef.parse(unseen_key.read_text("utf-8")).resolve()
        show_new_key(f"API key for {visible(host.name)}, new", key)
        unseen_key.unlink()
    show_served(run_name, host, checks)
    host_argument = () if is_local(host) else (host.name,)
    click.echo("To undo all of it:")
    click.echo(f"  {with_fleet(visible(command_line(('winhost', 'down', *host_argument))))}")


# ---- a new plan


def _plan_and_apply(host: AnyHost, store: Store, request: UpOptions) -> int:
    with show_progress(read_only=True) as watch:
        facts = read_live(host, watch)
    check_reported_rights(host, facts)
    recommendation = None
    if request.variant:
        default_request(path_of(request.variant), host.name)  # refuses a path that cannot be planned
        refuse_unsupported(HostFacts(facts), request.variant)
    else:
        recommendation = recommend_path(HostFacts(facts), request.command)
    variant = recommendation.variant if recommendation else str(request.variant)
    earlier_runs = set(store.runs_of(host.name))
    folder = new_folder(store, host.name)
    try:
        with reserve_stdout(request.options.document):
            stack_options = replace(request.stack, workload=folder / WORKLOAD)
            stack = PlannedStack(stack_options, ClusterOptions(), folder / PENDING)
            try:
                choice = choose_model(
                    facts, variant, request.model, stack_options.hub, folder / WORKLOAD, can_ask=request.can_ask
                )
                stack.check(path_of(variant))
                screen = _make_plan(
                    host, facts, variant, choice, stack, folder, request, path_named=recommendation is None
                )
            except WinhostError as error:
                raise explain_unreachable_servers(error, host.name, variant, request) from None
            if recommendation is not None:
                check_default_plan(HostFacts(facts), screen.plan, recommendation, request.command)
            if not is_pending(folder / PENDING):
                check_linux_key(host, screen.plan)
            check_key(screen.plan)
            if request.details:
                show_full_plan(screen.plan)
            show_up(screen)
        accepted = _ask_for_consents(screen, request)
        return _apply(host, screen.plan, folder, accepted, request)
    finally:
        if set(store.runs_of(host.name)) == earlier_runs:
            workload = folder / WORKLOAD
            if workload.is_file():
                hub = () if request.stack.hub in (None, HUB) else ("--hub", str(request.stack.hub))
                command = ("winhost", "workload", "init", load_workload(workload).models[0].id, *hub, "-o", "my.yaml")
                lead = "The plan and its workload file are not kept. A workload file of your own:"
                show_command(lead, *command, err=True)
            delete_folder(folder)


def _make_plan(
    host: AnyHost,
    facts: Facts,
    variant: str,
    choice: Choice,
    stack: PlannedStack,
    folder: Path,
    request: UpOptions,
    *,
    path_named: bool,
) -> Screen:
    """Make the plan, write it, and return the screen that shows it. path_named: the user named the path. Raises as
    `winhost plan` does.
    """
    path = variant if path_named else path_of(variant)
    settings = (*new_vm_settings(HostFacts(facts), path, stack, request.settings), *request.settings)
    builder = RequestBuilder(path, settings=read_settings(settings), allow_unverified=request.allow_unverified)
    planner = Planner(builder, stack, FleetKeys(request.options.fleet_file, folder / PENDING))
    with show_progress(read_only=True) as watch:
        current_facts = read_live(host, watch, planner.named_resources)
        gpus = Target(HostFacts(current_facts), variant).gpus
        used_gpus = stack.serving_gpus(current_facts.host)
        if path_of(path) == "dda" and 0 < len(used_gpus) < len(gpus):  # the others stay with Windows
            stack.discard(current_facts.host)
            gpu_names = tuple(gpu.location for gpu in used_gpus)
            planner = replace(planner, builder=replace(builder, gpus=gpu_names))
        planned = planner.plan_host(Snapshot(host.name, current_facts), watch)
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
        if value.startswith("./"):  # a run looks for files next to the plan
            (folder / value).symlink_to(Path(value).resolve())
    used_gpus, downloads = stack.serving_gpus(current_facts.host), _download_sizes(plan, stack)
    _refuse_full_disk(HostFacts(current_facts), path, downloads)
    option = f"{plan.request.path}/{plan.variant}" if plan.variant else plan.request.path
    return Screen(
        plan,
        choice,
        verdict_sentence(plan, choice.model, option),
        downloads,
        used_gpus,
        tuple(gpu for gpu in gpus if gpu.location not in [each.location for each in used_gpus]),
        on_this_machine=is_local(host),
        details=request.command("--details"),
    )


def _refuse_full_disk(facts: HostFacts, path: str, downloads: Mapping[str, Bytes | None]) -> None:
    """Raise RefusedError (DiskTooSmall) if the volume that Windows runs from, on which a WSL distro lies, cannot hold
    the downloads. Downloads of unknown size count as nothing.
    """
    needed = sum(size for size in downloads.values() if size is not None)
    try:
        (windows,) = (each for each in facts.all(Partition) if each.state.boot)
        limit = facts.find(ResizeLimit, windows.key)
    except (MissingFact, ValueError):
        return
    if path_of(path) == "wsl2" and limit is not None and limit.free < needed:
        host_name, free = visible(facts.host), format_size(limit.free)
        raise RefusedError(
            "DiskTooSmall",
            what=f"{host_name} has {free} free on the volume of Windows, and {format_size(needed)} are needed",
            meaning="Nothing was changed. WSL keeps its distro on that volume, with the model and vLLM's image.",
            hint=f"Free some, or choose a smaller model: winhost models show {host_name}",
            host=facts.host,
        )


def _download_sizes(plan: Plan, stack: PlannedStack) -> Mapping[str, Bytes | None]:
    """Return the bytes of each download of the plan, None if unknown. A plan that repairs something else downloads
    nothing.
    """
    parts, sizes = stack.parts, dict[str, Bytes | None]()
    changed = resources_of(plan)
    if changed & {"StagedFile", "VmDisk"} and (image := pinned_image(request_of(plan))) is not None:
        sizes["Ubuntu"] = image.bytes
    if "ModelFiles" in changed:
        sizes |= {name: sum(int(line.split(" ")[1]) for line in files["files"]) for name, files in parts.files.items()}
    if "ContainerImage" in changed and not parts.own_program:
        sizes["vLLM's image"] = parts.image.bytes or None
    return sizes


def _ask_for_consents(screen: Screen, request: UpOptions) -> tuple[str, ...]:
    """Ask one question for all approvals. Raises UsageError (NotAsked), ConsentNeeded, and Abort as `confirm_start`
    does.
    """
    plan, accepted = screen.plan, request.options.accepted
    likely, consents = likely_risks(plan), consent_request(plan, plan.stages)
    risks = sort_risks((*likely, *accepted))
    accept = ("--accept", ",".join(risks)) if risks else ()
    hint = f"To do it without questions: {request.command('--yes', *accept)}"
    if request.options.yes:
        accepted = ask_for_consents(consents, accepted, True)
        missing = tuple(risk for risk in consent_request(plan, plan.stages[:1]).needed if risk not in accepted)
        if missing:
            raise _consent_needed(plan.host, missing, hint)
        return accepted
    if not request.can_ask:
        raise no_terminal_error(hint, host=plan.host)
    needed = tuple(risk for risk in likely if risk not in accepted)
    if "data" in needed:  # which has its own question
        accepted = ask_for_consents(
            replace(consents, needed={"data": consents.needed["data"]}, possible={}), accepted, True
        )
    covered = tuple(risk for risk in needed if risk != "data")
    if not covered:
        confirm_start("Begin?", False)
    elif not click.confirm(f"Begin, which approves {', '.join(covered)}?", err=True):
        raise _consent_needed(plan.host, covered, hint)
    return tuple(dict.fromkeys((*accepted, *covered)))


def _consent_needed(host: str, risks: tuple[str, ...], hint: str) -> ConsentNeeded:
    error = ConsentNeeded(host, None, risks)
    error.hint = hint
    return error


def _apply(host: AnyHost, plan: Plan, folder: Path, accepted: tuple[str, ...], request: UpOptions) -> int:
    file, key = folder / PLAN, store_pending(host.name, folder / PENDING)
    if key is not None:  # made for this plan, which now refers to the key's final location
        plan_request = replace(plan.request, asks_with=key.written)
        write_file(file, write_document(replace(plan, request=plan_request)), "plan", True)
        write_whole(folder / UNSEEN_KEY, [key.written])
    mark_run_started(folder)
    checked = read_plan(file)

    def action(name: str | None, accepted: tuple[str, ...], context: RunContext) -> Outcome:
        return resume_run(name, accepted, context) if name else apply_plan(checked, accepted, context)

    with suggest_up_commands(host):
        outcome = run_with_consents(
            host,
            action,
            "up",
            checked.plan.request.vm,
            accepted,
            request.options,
            plan_file=file,
            brief=not request.details,
        )
    return _show_outcome(host, outcome, folder, request)


def _show_outcome(host: AnyHost, outcome: Outcome, folder: Path, request: UpOptions) -> int:
    code = show_outcomes([(outcome.host, outcome)], request.options, brief=True)
    if code == 0 and not request.options.document:
        _show_endpoint(host, outcome.run, folder, outcome.checks)
    return code
