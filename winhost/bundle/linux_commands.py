"""Of run.py in an offline package: apply, rollback and verify."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from winhost.bundle.linux_doing import (
    GO_BACK,
    as_document,
    check_lines,
    compared,
    do,
    find_back,
    find_steps,
    forget,
    goals_of,
    host_of,
    note_dependents,
    refuse_drift,
    step_lines,
)
from winhost.bundle.linux_journal import BundleJournal, Run, running
from winhost.bundle.linux_run import (
    RESTART_NEEDED,
    Bundle,
    BundleRefusal,
    Result,
    ask,
    bundle_of,
    refuse_others,
    result_of,
    tell_facts,
)
from winhost.core.answers import Id, identity
from winhost.core.checks import Check
from winhost.core.steps import DesiredResource, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from winhost.bundle.linux_run import Files
    from winhost.core.host_answers import HostAnswers


def apply(bundle: Bundle, given: argparse.Namespace) -> Result:
    return as_run(bundle, given, forward)


def rollback(bundle: Bundle, given: argparse.Namespace) -> Result:
    return as_run(bundle, given, backward)


def as_run(bundle: Bundle, given: argparse.Namespace, action: Callable[[Run], Result]) -> Result:
    with running(bundle, given) as run:
        result = result_of(lambda: action(run))
        run.keep(result)
        return result


def restart_due(run: Run) -> bool:
    """Whether nothing goes on before this machine has restarted. Whoever changes is told from which boot."""
    if not run.record.restart and not owes_restart(run):
        return False
    here = ask(run.bundle, [{"resource": run.bundle.agent.BOOT, "verb": "get", "key": {}}])[0]["state"]["boot_id"]
    due = run.record.boot in (None, here)
    if run.check or run.record.boot == here:
        return due
    if due:
        run.write("restarting", boot_id=here)
    else:
        run.write("restarted")
    return due


def owes_restart(run: Run) -> bool:
    """Killed on the way back, after a step that is done and before its end was written."""
    step = run.record.in_flight
    if step is None or not step.restarts or not run.record.going_back:
        return False
    answer = ask(run.bundle, [{"resource": step.resource, "verb": "get", "key": step.key}])[0]
    now = answer.get("state") or {}
    return now.get("restart_due") is True and all(now.get(name) == each for name, each in step.desired.items())


def restart_needed(run: Run, command: str) -> Result:
    again = f"python3 -I run.py {command}"
    accept = f" --accept {','.join(run.accepted)}" if run.accepted else ""
    result = ended(run, "restart needed", [], [], [f"Restart this machine (systemctl reboot), then: {again}{accept}"])
    return result._replace(code=RESTART_NEEDED)


def forward(run: Run) -> Result:
    resume(run)
    if restart_due(run):
        return restart_needed(run, "apply")
    host = host_of(run.bundle)
    goals = now_expected(run, host)
    if run.check or not run.record.stage:
        refuse_drift(run, host)
        steps = find_steps(run.bundle, goals, host, "desired")
        if run.check:
            return preview(run, steps, [])
        do(run, steps, host)
        if restart_due(run):
            return restart_needed(run, "apply")
        if run.begun:
            run.write("stage", number=run.bundle.stage["number"])
        host = host_of(run.bundle)
    # What was so before may no longer be after these steps: an engine was replaced.
    if again := find_steps(
        run.bundle, [goal for goal in goals if host.rules[goal.resource].only_waited_for], host, "desired"
    ):
        do(run, again, host)
        host = host_of(run.bundle)
    note_dependents(run, host)
    return applied(run, compared(run.bundle, goals, host))


def now_expected(run: Run, host: HostAnswers) -> list[DesiredResource]:
    """Without what was so when the plan was made and is only waited for, where another bundle follows: the steps of
    this one may end that, and only those of the next bring it back.
    """
    planned = {identity(step["resource"], step["key"]) for step in run.bundle.stage["steps"]}
    return [
        goal
        for goal in goals_of(run.bundle)
        if not run.bundle.stage["deferred"]
        or not host.rules[goal.resource].only_waited_for
        or identity(goal.resource, goal.key) in planned
    ]


def resume(run: Run) -> None:
    """A run of this plan that did not come to its end is gone on with; what has ended is followed by a new run."""
    for name in reversed(run.names()):
        if not name.startswith(f"{run.bundle.sum}."):
            continue
        journal = run.read(name)
        if not journal.entries:
            continue  # begun, nothing done
        if journal.record.going_back and journal.record.outcome not in ("rolled back", PARTLY):
            raise BundleRefusal(2, "OneWay", "the last run of this plan is going back", "Nothing was changed.", GO_BACK)
        if not journal.record.outcome:
            run.go_on(name, journal)
        return


def applied(run: Run, checks: list[Check]) -> Result:
    outcome = "applied" if all(each.holds for each in checks) else "differs"
    if run.begun:
        run.write("outcome", outcome=outcome)
    elif outcome == "applied":
        outcome = "nothing to do"
    following = [f"Go back at any time: {GO_BACK}"] if run.begun else []
    if run.bundle.stage["deferred"]:
        following.append("What could not be read before this can be planned now: carry what `facts` says back.")
    return ended(run, outcome, checks, [], following)


def backward(run: Run) -> Result:
    older = find_standing(run)
    if restart_due(run):
        return restart_needed(run, "rollback")
    host = host_of(run.bundle)
    back = find_back(run, host)
    steps = find_steps(run.bundle, back.goals, host, "undo")
    if run.check:
        return preview(run, steps, back.sentences)
    if not run.record.going_back:
        run.write("back", accepted=list(run.accepted))
    tried: set[Id] = set()
    # What goes back may free what was kept for it, such as the group of a user.
    while goals := [goal for goal in back.goals if identity(goal.resource, goal.key) not in tried]:
        tried |= {identity(goal.resource, goal.key) for goal in goals}
        do(run, find_steps(run.bundle, goals, host, "undo"), host)
        if restart_due(run):
            return restart_needed(run, "rollback")
        host = host_of(run.bundle)
        back = find_back(run, host)
    checks = [each for each in compared(run.bundle, back.goals, host) if not each.holds]
    outcome = "not all rolled back" if checks or back.missing else PARTLY if back.waits else "rolled back"
    forget(run, [] if outcome == "rolled back" else back.open)
    run.write("outcome", outcome=outcome, open=back.open)
    following = ["An earlier run of this plan stands as well. To undo that too: the same once more."] * older
    if outcome == PARTLY:  # the same once more is for this run first
        first = ", then ".join(back.first)
        what = (
            f"Roll back the rest: {first}, then" if first else "Take back what came since, then go on with going back:"
        )
        following = [f"{what} {GO_BACK}"]
    following += [f"Mend what could not be read, then go on with going back: {GO_BACK}"] * bool(back.missing)
    result = ended(run, outcome, checks, back.sentences, following)
    document = {**result.document, "kept": back.kept, "missing": back.missing}
    return Result(1 if back.missing or outcome == PARTLY else result.code, document, result.lines)


def find_standing(run: Run) -> bool:
    """Open the newest run of this plan that still stands, with nothing of another plan on top of it. Is there an
    earlier one?
    """
    mine: list[tuple[str, BundleJournal]] = []
    later = never = ""
    for name in run.names():
        journal = run.read(name)
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
        raise BundleRefusal(2, "UnknownRun", "no run of this plan stands here", f"Looked in {run.journals}.")
    if later:
        what = "another plan was applied after this one, and still stands"
        raise BundleRefusal(
            2, "LaterRun", what, f"Its journal: {later}. Nothing was changed.", "Go back with that first."
        )
    run.go_on(*mine[-1])
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


PARTLY = "partly rolled back"
COMMANDS = {"apply": apply, "rollback": rollback, "verify": verify, "facts": tell_facts}


def preview(run: Run, steps: tuple[Step, ...], kept: list[str]) -> Result:
    result = ended(run, "nothing was changed", [], kept, [])
    lines = step_lines(steps) or ["Nothing to do."]
    return Result(0, {**result.document, "steps": list(map(as_document, steps))}, [*lines, *result.lines])


def ended(run: Run, outcome: str, checks: list[Check], kept: list[str], following: list[str]) -> Result:
    plan = run.bundle.plan
    document = {
        "schema": "winhost.bundle-result/2",
        "host": plan["host"],
        "machine_id": plan["machine_id"],
        "run": run.name,
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
    return COMMANDS[given.command](bundle_of(files), given)
