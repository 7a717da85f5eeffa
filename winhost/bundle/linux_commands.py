"""The commands of run.py in an offline package: apply, rollback and verify."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from winhost.bundle.linux_bundle import (
    Bundle,
    BundleRefusal,
    Result,
    bundle_of,
    refuse_others,
    result_of,
)
from winhost.bundle.linux_host import (
    GO_BACK,
    RestartNeeded,
    Run,
    as_document,
    check_lines,
    compared,
    find_steps,
    goals_of,
    host_of,
    refuse_drift,
    step_line,
    stop_gently,
    why_unread,
)
from winhost.bundle.linux_journal import ReadJournal, opened
from winhost.core.answers import MissingFact, identity
from winhost.core.checks import Check
from winhost.core.steps import DesiredResource, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from winhost.bundle.linux_bundle import Files, State

PARTLY = "partly rolled back"
RESTART_NEEDED = 75  # exit code, as EX_TEMPFAIL: it failed for now


def as_run(bundle: Bundle, given: argparse.Namespace, action: Callable[[Run], Result]) -> Result:
    refuse_others(bundle)
    with opened(bundle, given.journals, looking=given.check) as journal:
        run = Run(bundle, given, journal)
        if not given.check:
            stop_gently(run)
        result = result_of(lambda: told_apart(run, given.command, action))
        journal.keep(result)
        return result


def told_apart(run: Run, command: str, action: Callable[[Run], Result]) -> Result:
    try:
        return action(run)
    except RestartNeeded:
        accept = f" --accept {','.join(run.accepted)}" if run.accepted else ""
        following = f"Restart this machine (systemctl reboot), then: python3 -I run.py {command}{accept}"
        return ended(run, "restart needed", [], [], [following])._replace(code=RESTART_NEEDED)
    except MissingFact as missing:
        what = f"{why_unread(run.bundle, missing, '')}"
        raise BundleRefusal(1, "CannotRead", what, "What cannot be read is not changed.") from None


def settle(run: Run) -> None:
    """Finish the restart that the last call of this run asked for."""
    if not run.check:
        run.finish_restart()
    elif run.needs_restart() and run.record.restarting_from in (None, run.session.boot_id()):
        raise RestartNeeded


def forward(run: Run) -> Result:
    resume(run)
    settle(run)
    run.read_host()
    goals = now_expected(run)
    if run.check or not run.record.stage:
        refuse_drift(run)
        steps = find_steps(run.bundle, goals, run.host, "desired")
        if run.check:
            return preview(run, steps, [])
        run.run_steps(steps)
        if run.has_journal:
            run.write("stage", number=run.bundle.stage["number"])
        run.read_host()
    # What was so before may no longer be after these steps: an engine was replaced.
    waited = [goal for goal in goals if run.host.rules[goal.resource].is_wait_only]
    if again := find_steps(run.bundle, waited, run.host, "desired"):
        run.run_steps(again)
        run.read_host()
    run.record_dependents()
    return applied(run, compared(run.bundle, goals, run.host))


def now_expected(run: Run) -> list[DesiredResource]:
    """The states that are expected now. Where another bundle follows, goals that held when the plan was made and are
    only waited for are left out: the steps of this one may end them, and only those of the next one bring them back.
    """
    planned = {identity(step["resource"], step["key"]) for step in run.bundle.stage["steps"]}
    return [
        goal
        for goal in goals_of(run.bundle)
        if not run.bundle.stage["deferred"]
        or not run.host.rules[goal.resource].is_wait_only
        or identity(goal.resource, goal.key) in planned
    ]


def resume(run: Run) -> None:
    """Continue a run of this plan that has not ended. After one that has ended, a new run begins."""
    for name in reversed(run.journal.names()):
        if not name.startswith(f"{run.bundle.sum}."):
            continue
        journal = run.journal.read(name)
        if not journal.entries:
            continue  # begun, nothing done
        back = journal.has_ended and journal.record.outcome in ("rolled back", PARTLY)
        if journal.record.going_back and not back:
            raise BundleRefusal(2, "OneWay", "the last run of this plan is going back", "Nothing was changed.", GO_BACK)
        if not journal.has_ended:
            run.journal.go_on(name, journal)
        return


def applied(run: Run, checks: list[Check]) -> Result:
    outcome = "applied" if all(each.holds for each in checks) else "differs"
    if run.has_journal:
        run.write("outcome", outcome=outcome)
    elif outcome == "applied":
        outcome = "nothing to do"
    following = [f"Go back at any time: {GO_BACK}"] if run.has_journal else []
    if run.bundle.stage["deferred"]:
        following.append("What could not be read before this can be planned now: carry what `facts` says back.")
    return ended(run, outcome, checks, [], following)


def backward(run: Run) -> Result:
    older = find_standing(run)
    settle(run)
    run.read_host()
    if run.check:
        goals = run.rollback_goals(frozenset())
        return preview(run, run.all_rollback_steps(goals), [*kept_by(run), *map(not_judged, missing_in(run))])
    goals = run.roll_back()
    kept, missing = kept_by(run), missing_in(run)
    checks = [each for each in compared(run.bundle, list(goals), run.host) if not each.holds]
    waits = bool(run.outlook.waiting)
    outcome = "not all rolled back" if checks or missing else PARTLY if waits else "rolled back"
    run.finish_rollback(run.outlook.open | {identity(goal.resource, goal.key) for goal in goals}, outcome)
    run.write("outcome", outcome=outcome)
    following = ["An earlier run of this plan stands as well. To undo that too: the same once more."] * older
    if outcome == PARTLY:  # the same once more is for this run first
        holders = (other for held in run.outlook.waiting.values() for other in held.others)
        first = ", then ".join(dict.fromkeys(other.rollback for other in holders))
        what = f"Roll back the rest: {first}, then" if first else "Undo what came later, then go on with the rollback:"
        following = [f"{what} {GO_BACK}"]
    following += [f"Mend what could not be read, then go on with going back: {GO_BACK}"] * bool(missing)
    result = ended(run, outcome, checks, [*kept, *map(not_judged, missing)], following)
    document = {**result.document, "kept": kept, "missing": missing}
    return Result(1 if missing or outcome == PARTLY else result.code, document, result.lines)


def kept_by(run: Run) -> list[str]:
    return [f"{run.record.touched[id_].title}: kept: {reason}" for id_, reason in run.outlook.kept.items()]


def missing_in(run: Run) -> list[State]:
    """The resources that could not be judged, in the form of the result."""
    found = [(run.record.touched[id_], missing) for id_, missing in run.outlook.missing.items()]
    return [
        {"resource": t.resource, "key": t.key, "title": t.title, "why": why_unread(run.bundle, missing, t.resource)}
        for t, missing in found
    ]


def not_judged(each: State) -> str:
    return f"{each['title']}: not judged: {each['why']}"


def find_standing(run: Run) -> bool:
    """Open the newest run of this plan that still stands, with nothing of another plan on top of it. Returns whether an
    earlier one stands, too.
    """
    mine: list[tuple[str, ReadJournal]] = []
    later = never = ""
    for name in run.journal.names():
        journal = run.journal.read(name)
        ours = name.startswith(f"{run.bundle.sum}.")
        if not journal.entries:
            never = name if ours else never
        elif journal.record.outcome != "rolled back":
            later = "" if ours else name
            mine += [(name, journal)] if ours else []
    if not mine and never:
        what = "It ended before its first line was on disk, so nothing was changed and there is nothing to undo."
        raise BundleRefusal(2, "NeverBegun", f"{never}: begun, nothing done", what, "Apply the plan again.")
    if not mine:
        raise BundleRefusal(2, "UnknownRun", "no run of this plan stands here", f"Looked in {run.folder}.")
    if later:
        what = "another plan was applied after this one, and still stands"
        raise BundleRefusal(
            2, "LaterRun", what, f"Its journal: {later}. Nothing was changed.", "Go back with that first."
        )
    run.journal.go_on(*mine[-1])
    return len(mine) > 1


def verify(bundle: Bundle, given: argparse.Namespace) -> Result:
    refuse_others(bundle)
    checks = compared(bundle, goals_of(bundle), host_of(bundle))
    holds = all(each.holds for each in checks)
    host = bundle.plan["host"]
    lines = [*check_lines(checks, every=True), f"{host}: {'as planned' if holds else 'not as planned'}."]
    if bundle.stage["deferred"]:
        lines.append("  This says nothing of later stages, which this plan could not know.")
    return Result(0 if holds else 4, {"host": host, "holds": holds, "checks": list(map(asdict, checks))}, lines)


def preview(run: Run, steps: tuple[Step, ...], kept: list[str]) -> Result:
    result = ended(run, "nothing was changed", [], kept, [])
    lines = [step_line(step, n, len(steps)) for n, step in enumerate(steps, 1)] or ["Nothing to do."]
    return Result(0, {**result.document, "steps": list(map(as_document, steps))}, [*lines, *result.lines])


def ended(run: Run, outcome: str, checks: list[Check], kept: list[str], following: list[str]) -> Result:
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
        "next": following,
    }
    lines = [f"{plan['host']}: {outcome}, changes: {run.changed}", *check_lines(checks, every=False)]
    lines += [f"  {line}" for line in (*kept, *following)]
    return Result(0 if all(each.holds for each in checks) else 4, document, lines)


def main(given: argparse.Namespace, files: Files) -> Result:
    def answered() -> Result:
        bundle = bundle_of(files)
        if given.command == "verify":
            return verify(bundle, given)
        return as_run(bundle, given, forward if given.command == "apply" else backward)

    return result_of(answered)
