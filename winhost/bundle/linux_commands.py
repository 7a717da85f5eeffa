"""The commands of run.py in an offline package: apply, rollback and verify."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from winhost.bundle.linux_bundle import Bundle, BundleRefusal, Result, bundle_of, require_planned_machine, result_of
from winhost.bundle.linux_host import (
    ROLLBACK_COMMAND,
    RestartNeeded,
    Run,
    check_goals,
    describe_unread,
    find_steps,
    format_checks,
    format_step,
    goals_of,
    host_of,
    refuse_drift,
    step_document,
    stop_after_step_on_signal,
)
from winhost.bundle.linux_journal import ReadJournal, open_journal
from winhost.core.answers import MissingFact, identity
from winhost.core.checks import Check
from winhost.core.steps import DesiredResource, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from winhost.bundle.linux_bundle import Files, State

PARTLY_ROLLED_BACK = "partly rolled back"
RESTART_NEEDED = 75  # exit code, as EX_TEMPFAIL: it failed for now


def run_command(bundle: Bundle, options: argparse.Namespace, action: Callable[[Run], Result]) -> Result:
    require_planned_machine(bundle)
    with open_journal(bundle, options.journals, is_preview=options.check) as journal:
        run = Run(bundle, options, journal)
        if not options.check:
            stop_after_step_on_signal(run)
        result = result_of(lambda: convert_errors(run, options.command, action))
        journal.write_result(result)
        return result


def convert_errors(run: Run, command: str, action: Callable[[Run], Result]) -> Result:
    try:
        return action(run)
    except RestartNeeded:
        accept = f" --accept {','.join(run.accepted)}" if run.accepted else ""
        next_steps = f"Restart this machine (systemctl reboot), then: python3 -I run.py {command}{accept}"
        return make_result(run, "restart needed", [], [], [next_steps])._replace(code=RESTART_NEEDED)
    except MissingFact as missing:
        what = f"{describe_unread(run.bundle, missing, '')}"
        raise BundleRefusal(1, "CannotRead", what, "What cannot be read is not changed.") from None


def finish_pending_restart(run: Run) -> None:
    """Finish the restart that an earlier call of this run has requested."""
    if not run.check:
        run.finish_restart()
    elif run.needs_restart() and run.record.restarting_from in (None, run.session.boot_id()):
        raise RestartNeeded


def apply(run: Run) -> Result:
    resume_run(run)
    finish_pending_restart(run)
    run.read_host()
    goals = expected_goals(run)
    if run.check or not run.record.stage:
        refuse_drift(run)
        steps = find_steps(run.bundle, goals, run.host, "desired")
        if run.check:
            return preview(run, steps, [])
        run.run_steps(steps)
        if run.has_journal:
            run.write("stage", number=run.bundle.stage["number"])
        run.read_host()
    # A goal that held before may no longer hold after these steps, if an engine was replaced.
    waited_for = [goal for goal in goals if run.host.rules[goal.resource].is_wait_only]
    if repeated := find_steps(run.bundle, waited_for, run.host, "desired"):
        run.run_steps(repeated)
        run.read_host()
    run.record_dependents()
    return finish_apply(run, check_goals(run.bundle, goals, run.host))


def expected_goals(run: Run) -> list[DesiredResource]:
    """Return the goals of this bundle. If another bundle follows, goals that are only waited for and held when the plan
    was made are left out: steps of this bundle may end these states, and steps of the next one restore them.
    """
    planned = {identity(step["resource"], step["key"]) for step in run.bundle.stage["steps"]}
    return [
        goal
        for goal in goals_of(run.bundle)
        if not run.bundle.stage["deferred"]
        or not run.host.rules[goal.resource].is_wait_only
        or identity(goal.resource, goal.key) in planned
    ]


def resume_run(run: Run) -> None:
    """Continue the last run of this plan if it has not ended. Otherwise a new run will start."""
    for name in reversed(run.journal.names()):
        if not name.startswith(f"{run.bundle.sum}."):
            continue
        journal = run.journal.read(name)
        if not journal.entries:
            continue  # a run that did nothing
        is_rolled_back = journal.has_ended and journal.record.outcome in ("rolled back", PARTLY_ROLLED_BACK)
        if journal.record.going_back and not is_rolled_back:
            raise BundleRefusal(
                2, "OneWay", "the last run of this plan is going back", "Nothing was changed.", ROLLBACK_COMMAND
            )
        if not journal.has_ended:
            run.journal.continue_run(name, journal)
        return


def finish_apply(run: Run, checks: list[Check]) -> Result:
    outcome = "applied" if all(each.holds for each in checks) else "differs"
    if run.has_journal:
        run.write("outcome", outcome=outcome)
    elif outcome == "applied":
        outcome = "nothing to do"
    next_steps = [f"Go back at any time: {ROLLBACK_COMMAND}"] if run.has_journal else []
    if run.bundle.stage["deferred"]:
        next_steps.append("What could not be read before this can be planned now: carry what `facts` says back.")
    return make_result(run, outcome, checks, [], next_steps)


def roll_back(run: Run) -> Result:
    has_older = open_newest_run(run)
    finish_pending_restart(run)
    run.read_host()
    if run.check:
        goals = run.rollback_goals(frozenset())
        return preview(
            run, run.all_rollback_steps(goals), [*kept_lines(run), *map(undecided_line, undecided_resources(run))]
        )
    goals = run.roll_back()
    kept, missing = kept_lines(run), undecided_resources(run)
    checks = [each for each in check_goals(run.bundle, list(goals), run.host) if not each.holds]
    is_waiting = bool(run.outlook.waiting)
    outcome = "not all rolled back" if checks or missing else PARTLY_ROLLED_BACK if is_waiting else "rolled back"
    run.finish_rollback(run.outlook.open | {identity(goal.resource, goal.key) for goal in goals}, outcome)
    run.write("outcome", outcome=outcome)
    next_steps = ["An earlier run of this plan stands as well. To undo that too, repeat the command."] * has_older
    if outcome == PARTLY_ROLLED_BACK:  # the same command continues this run first
        blocking_runs = (other for blocking in run.outlook.waiting.values() for other in blocking.others)
        first = ", then ".join(dict.fromkeys(other.rollback for other in blocking_runs))
        what = (
            f"Roll back the remaining changes: {first}, then"
            if first
            else "Undo the later changes, then continue the rollback:"
        )
        next_steps = [f"{what} {ROLLBACK_COMMAND}"]
    next_steps += [f"Repair what could not be read, then continue the rollback: {ROLLBACK_COMMAND}"] * bool(missing)
    result = make_result(run, outcome, checks, [*kept, *map(undecided_line, missing)], next_steps)
    document = {**result.document, "kept": kept, "missing": missing}
    return Result(1 if missing or outcome == PARTLY_ROLLED_BACK else result.code, document, result.lines)


def kept_lines(run: Run) -> list[str]:
    return [f"{run.record.touched[id_].title}: kept: {reason}" for id_, reason in run.outlook.kept.items()]


def undecided_resources(run: Run) -> list[State]:
    """Return the resources about which rollback could not decide, in the form of the result."""
    found = [(run.record.touched[id_], missing) for id_, missing in run.outlook.missing.items()]
    return [
        {
            "resource": t.resource,
            "key": t.key,
            "title": t.title,
            "why": describe_unread(run.bundle, missing, t.resource),
        }
        for t, missing in found
    ]


def undecided_line(each: State) -> str:
    return f"{each['title']}: not judged: {each['why']}"


def open_newest_run(run: Run) -> bool:
    """Open the newest run of this plan that is not rolled back, if no run of another plan followed it. Returns whether
    there is an earlier one, too.
    """
    own_runs: list[tuple[str, ReadJournal]] = []
    later = empty = ""
    for name in run.journal.names():
        journal = run.journal.read(name)
        is_own = name.startswith(f"{run.bundle.sum}.")
        if not journal.entries:
            empty = name if is_own else empty
        elif journal.record.outcome != "rolled back":
            later = "" if is_own else name
            own_runs += [(name, journal)] if is_own else []
    if not own_runs and empty:
        what = "It ended before its first line was on disk, so nothing was changed and there is nothing to undo."
        raise BundleRefusal(2, "NeverBegun", f"{empty}: begun, nothing done", what, "Apply the plan again.")
    if not own_runs:
        raise BundleRefusal(2, "UnknownRun", "no run of this plan stands here", f"Looked in {run.folder}.")
    if later:
        what = "another plan was applied after this one, and still stands"
        raise BundleRefusal(
            2, "LaterRun", what, f"Its journal: {later}. Nothing was changed.", "Go back with that first."
        )
    run.journal.continue_run(*own_runs[-1])
    return len(own_runs) > 1


def verify(bundle: Bundle, options: argparse.Namespace) -> Result:
    require_planned_machine(bundle)
    checks = check_goals(bundle, goals_of(bundle), host_of(bundle))
    holds = all(each.holds for each in checks)
    host = bundle.plan["host"]
    lines = [*format_checks(checks, every=True), f"{host}: {'as planned' if holds else 'not as planned'}."]
    if bundle.stage["deferred"]:
        lines.append("  This says nothing of later stages, which this plan could not know.")
    return Result(0 if holds else 4, {"host": host, "holds": holds, "checks": list(map(asdict, checks))}, lines)


def preview(run: Run, steps: tuple[Step, ...], kept: list[str]) -> Result:
    result = make_result(run, "nothing was changed", [], kept, [])
    lines = [format_step(step, n, len(steps)) for n, step in enumerate(steps, 1)] or ["Nothing to do."]
    return Result(0, {**result.document, "steps": list(map(step_document, steps))}, [*lines, *result.lines])


def make_result(run: Run, outcome: str, checks: list[Check], kept: list[str], next_steps: list[str]) -> Result:
    plan = run.bundle.plan
    document = {
        "schema": "winhost.bundle-result/2",
        "host": plan["host"],
        "machine_id": plan["machine_id"],
        "run": run.journal.name,
        "outcome": outcome,
        "changed": run.changed,
        "checks": list(map(asdict, checks)),
        "kept": kept,
        "next": next_steps,
    }
    lines = [f"{plan['host']}: {outcome}, changes: {run.changed}", *format_checks(checks, every=False)]
    lines += [f"  {line}" for line in (*kept, *next_steps)]
    return Result(0 if all(each.holds for each in checks) else 4, document, lines)


def main(options: argparse.Namespace, files: Files) -> Result:
    def run_requested() -> Result:
        bundle = bundle_of(files)
        if options.command == "verify":
            return verify(bundle, options)
        return run_command(bundle, options, apply if options.command == "apply" else roll_back)

    return result_of(run_requested)
