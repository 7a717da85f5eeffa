"""Doing steps on a host, either way: each in the journal before it is begun and once it is done, and the restarts."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from winhost.connect.agent import SetAnswer
from winhost.connect.wire_errors import Drifted, NotAvailable, RemoteError
from winhost.core.answers import Json, Key, MissingFact
from winhost.core.dependents import resting
from winhost.core.marks import mark_of
from winhost.core.steps import Step
from winhost.engine import amending
from winhost.engine.endings import stop_if_asked
from winhost.engine.failures import ConsentNeeded, not_taken, step_failed
from winhost.engine.installing import check_switched, installing, starts_other
from winhost.engine.open_run import OpenRun
from winhost.model.documents import plain
from winhost.model.facts import Facts
from winhost.model.plan import in_order
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES, host_answers


def settle(run: OpenRun, *, back: bool = False) -> Facts:
    """Bring the run to rest: wait out what still runs on the host and a restart under way, then read. On the way back
    the other system is not started: what is to start next is taken back first.
    """
    if run.journal is not None:
        run.session.reach()
        if not (back and starts_other(run)):
            finish_restart(run)
    return run.seen()


def do(run: OpenRun, steps: tuple[Step, ...], facts: Facts) -> None:
    """Steps in their order, then the restart that they ask for. Raises ConsentNeeded before the first."""
    needed = in_order(risk for step in steps for risk in step.risks)
    lacking = tuple(risk for risk in needed if risk not in run.record.accepted)
    if lacking:
        record = run.record
        raise ConsentNeeded(record.host, run.begun, lacking, record.going_back, not record.unchanged)
    for number, step in enumerate(steps, start=1):
        stop_if_asked(run)
        _set(run, step, facts, number, len(steps))
    if run.record.restart_due:
        stop_if_asked(run)
        restart(run)


def _set(run: OpenRun, step: Step, facts: Facts, number: int, total: int) -> None:
    found = dict(host_answers(facts).state_of(step.resource, step.key) or {}) | dict(step.before)
    run.write("begin", step=plain(step), found=found, users=_users(step.resource, step.key, facts))
    run.tell("step", step.title, step, number, total)
    try:
        answer = _answer(run, step)
    except Drifted as error:
        _write_failed(run, step, found, str(error))
        raise
    except (RemoteError, NotAvailable) as error:
        # What it rests on was lost meanwhile: how far it came nobody can tell then.
        after = error.after if isinstance(error, RemoteError) else None
        _write_failed(run, step, after, str(error))
        lacking = tuple(risk for risk in step.may_need if risk not in run.record.accepted)
        alone = len(run.record.touched) == 1
        back = run.record.going_back
        retry_options = None if back else amending.words_for(run.record.plan, step.resource)
        raise step_failed(
            run.record.host,
            run.name,
            step,
            error,
            going_back=back,
            lacking=lacking,
            alone=alone,
            retry_options=retry_options,
            facts=HostFacts(facts),
        ) from error
    for warning in answer.warnings:
        run.tell("note", f"{step.title}: the host warns: {warning}", step)
    _end(run, step, answer)
    run.tell("done", step.title, step, number, total)


def _answer(run: OpenRun, step: Step) -> SetAnswer:
    """What a step before it has brought along needs nothing more: a distro that starts lets in again.

    Raises as `HostSession.set` does.
    """
    try:
        # What goes back needs no mark: the run's own ones stay until all of it is back.
        return run.session.set(step, run.record.accepted, None if run.record.going_back else mark_of(run.marked, step))
    except Drifted:
        now = run.session.state(step.resource, step.key) or {}
        first = len(run.record.touched) == 1
        if first or step.role == "need" or any(now.get(name) != value for name, value in step.desired.items()):
            raise
        return SetAnswer({**now, **step.before}, now)


def _write_failed(run: OpenRun, step: Step, after: Mapping[str, Json] | None, error: str) -> None:
    run.write("failed", resource=step.resource, key=dict(step.key), after=after and dict(after), error=error)
    run.tell("failed", f"{step.title}: {error}", step)


def _end(run: OpenRun, step: Step, answer: SetAnswer) -> None:
    run.write(
        "end",
        resource=step.resource,
        key=dict(step.key),
        before=dict(answer.before),
        after=dict(answer.after) or None,
        # Of what was not shown to restart the host, nobody agreed to that.
        restart=answer.restart and step.restarts,
        warnings=list(answer.warnings),
    )
    run.changed += 1
    lacking = {n: (v, answer.after.get(n)) for n, v in step.desired.items() if answer.after.get(n) != v}
    if lacking and not answer.restart:
        raise not_taken(run.record.host, run.name, step, lacking, run.record.going_back)


def restart(run: OpenRun) -> None:
    """Restart the host and read what took effect with it."""
    boot = run.record.restarting_from
    if boot is None:
        boot = run.session.boot_id()
        run.write("restarting", boot_id=boot)
    with installing(run) as installation:
        run.tell("restart", "restarting")
        new = run.session.restart(boot, installation.longer)
    run.write("restarted", boot_id=new, left=_left_by_restart(run))
    check_switched(run, installation)
    run.tell("done", "restarted")


def finish_restart(run: OpenRun) -> None:
    """The restart that a killed run was waiting for, or had still to ask for."""
    if (run.record.restart_due and run.record.in_flight is None) or _owes_restart(run):
        restart(run)


def _owes_restart(run: OpenRun) -> bool:
    """Killed on the way back, after a step that is done and before its end was written: nothing is left to put
    back by then that would ask for it.
    """
    step = run.record.in_flight
    if step is None or not step.restarts or not run.record.going_back:
        return False
    now = run.session.state(step.resource, step.key, settled=True) or {}
    return now.get("restart_due") is True and all(now.get(name) == value for name, value in step.desired.items())


def _left_by_restart(run: OpenRun) -> list[dict[str, Any]]:
    """What is in a Linux that is gone by now, on the way back, or not up yet, stays as it is known."""
    left = []
    for touched in run.record.touched.values():
        if RESOURCE_TYPES[touched.resource].restarts:
            with suppress(NotAvailable):
                after = run.session.state(touched.resource, touched.key)
                left.append({"resource": touched.resource, "key": dict(touched.key), "after": after})
    return left


def _users(resource: str, key: Key, facts: Facts) -> list[Any]:
    """As far as it can be read: rollback keeps more then, not less."""
    try:
        return [plain(user) for _, user in resting(resource, key, host_answers(facts)).values()]
    except MissingFact:
        return []
