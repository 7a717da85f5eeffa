"""Running a plan: stage by stage, journal before acting, and the same way on after a crash as at the start."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from winhost import __version__
from winhost.connect.agent import Connector, SetAnswer
from winhost.connect.reboot import Patience
from winhost.connect.wire_errors import Drifted, NotAvailable, RemoteError, WireError
from winhost.core.answers import Id, Json, Key, MissingFact, identity
from winhost.core.checks import Check
from winhost.core.dependents import resting, seen
from winhost.core.journal_lines import RawEvent
from winhost.core.steps import DesiredResource, Step
from winhost.engine import amending, uploads
from winhost.engine.amending import Amendment
from winhost.engine.failures import (
    ConsentNeeded,
    EndOfRun,
    halted,
    not_taken,
    run_is_rolling_back,
    stage_never_ready,
    step_failed,
    unfinished,
    wrong_host,
)
from winhost.engine.host_session import HostSession, ProgressEvent
from winhost.engine.host_steps import steps_on
from winhost.engine.journal import SCHEMA, Journal, read_journal
from winhost.engine.planning import (
    CheckedPlan,
    PlanRefused,
    asked_risks,
    check_stage,
    make_plan,
    next_stage,
    request_of,
)
from winhost.engine.run_state import RunState, fold, replay
from winhost.engine.store import Store
from winhost.engine.verify import verify_stages
from winhost.model.documents import plain
from winhost.model.errors import WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.plan import Plan, Stage, in_order
from winhost.paths.path_request import PathRequest
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES, host_answers, unread


@dataclass(frozen=True)
class RunContext:
    """What a run works with. within: seconds that a guest has to shut down; stop: whether to, after the step in flight,
    and why; around: the journal's hook; folder: of the plan, for the files beside it: of a run that is gone on with its
    journal knows it; cuttable: around all waiting for the host, where alone KeyboardInterrupt may cut the run short:
    elsewhere a line could be on disk that this process does not know of.
    """

    connector: Connector
    store: Store
    patience: Patience = field(default_factory=Patience)
    within: float = 300
    tell: Callable[[ProgressEvent], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False
    around: Callable[[str, RawEvent], None] = lambda when, entry: None
    folder: Path = Path()
    why: Callable[[], str] = lambda: "as you asked"
    cuttable: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class NotJudged:
    """What rollback could neither put back nor keep, because a fact is missing: why, and until: the resource that
    has to be there first, where that is what lacks.
    """

    title: str
    resource: str
    key: Key
    why: str
    until: str | None


@dataclass(frozen=True)
class Outcome:
    """How a run ended. changed: steps done by this call; kept: what rollback left as it is, and why; missing: what it
    could not judge, so that the run stays open; next: the command for that, and what must be so before it.
    """

    run: str
    host: str
    outcome: str
    changed: int
    checks: tuple[Check, ...] = ()
    kept: tuple[str, ...] = ()
    missing: tuple[NotJudged, ...] = ()
    next: str | None = None

    @property
    def holds(self) -> bool:
        """Everything that was wanted is so."""
        return not self.missing and all(check.holds for check in self.checks)


def apply(checked: CheckedPlan, accepted: Iterable[str], context: RunContext) -> Outcome:
    """A new run of a plan.

    Raises WinhostError before anything is changed: Unfinished, ConsentNeeded, Drifted, WrongHost, PlanRefused.
    """
    plan = checked.plan
    with context.store.lock(plan.host, "apply"):
        _refuse_unfinished(plan, context.store)
        run = context.store.new_run(plan.host)
        runner = Runner(run, context, checked, frozenset(accepted))
        return runner.forward()


def resume(run: str, accepted: Iterable[str], context: RunContext, amendment: Amendment | None = None) -> Outcome:
    """Go on with a run where it stopped, in the direction in which it went.

    amendment: another ask for what is left; then only these consents count.
    """
    with context.store.lock(context.connector.host, f"resume {run}"):
        runner = _forward(run, context)
        if amendment is None:
            runner.accept(accepted)
        return runner.forward(amendment, frozenset(accepted))


def preview_amended(run: str, request: PathRequest, context: RunContext) -> Stage:
    """What `resume` would do with another request; changes nothing. Raises as it does."""
    with context.store.lock(context.connector.host, f"resume {run}"):
        runner = _forward(run, context)
        with runner.reaching(looking=True):
            return runner.planned_again(runner.seen(), request)


def check(checked: CheckedPlan, context: RunContext) -> tuple[Step, ...]:
    """What `apply` would do now in its first stage; changes nothing and writes nothing. Raises as it does."""
    plan = checked.plan
    context.store.refuse_held(plan.host)
    _refuse_unfinished(plan, context.store)
    runner = Runner("", context, checked)
    with runner.reaching():
        return runner.first_steps()


def _forward(run: str, context: RunContext) -> "Runner":
    runner = Runner(run, context)
    if runner.record.going_back:
        raise run_is_rolling_back(run)
    _refuse_unfinished(runner.record.plan, context.store, but=run)
    return runner


def _refuse_unfinished(plan: Plan, store: Store, but: str = "") -> None:
    """Of a run that has changed nothing nobody waits for the end."""
    for name in store.runs_of(plan.host):
        try:
            record = replay(name, read_journal(store.existing(name)))
        except WinhostError:
            continue  # nobody can go on with it, either
        ended = record.outcome is not None or record.unchanged or name == but
        if not ended and record.plan.machine_id == plan.machine_id:
            raise unfinished(plan.host, name, record.going_back)


class Runner:
    """One run of one host: its journal, its record, and the hands that do it.

    The journal is begun with the first change and not before: a plan that is refused leaves no run behind.
    """

    def __init__(
        self,
        run: str,
        context: RunContext,
        checked: CheckedPlan | None = None,
        accepted: frozenset[str] = frozenset(),
    ) -> None:
        self.run = run
        self.context = context
        self.changed = 0
        self._journal: Journal | None = None
        self._request = checked.request if checked else None
        if checked is None:
            self._journal = Journal(context.store.existing(run), context.around)
            self.record = replay(run, self._journal.entries)
        else:
            plan, folder = checked.plan, str(context.folder.absolute())
            self.record = RunState(
                run=run, host=plan.host, plan=plan, accepted=accepted, stages=plan.stages[:1], folder=folder
            )
        self._began_at = len(self._journal.entries) if self._journal else 0
        self.folder = Path(self.record.folder)
        self.session = HostSession(
            context.connector,
            context.patience,
            context.tell,
            context.within,
            self.folder,
            context.stop,
            context.cuttable,
        )

    @property
    def request(self) -> PathRequest:
        """Parsed once, when it is first needed: going back needs none. Raises UsageError: NotAPlan."""
        if self._request is None:
            self._request = request_of(self.record.plan)
        return self._request

    # ---- forward

    def forward(self, amendment: Amendment | None = None, accepted: frozenset[str] = frozenset()) -> Outcome:
        """All stages that are not finished, then the final verify. amendment: another request, with its consents."""
        with self.reaching():
            facts = self.settle()
            if self._journal is None:
                # Judged again before anything is done: a checkpoint made since the plan would fail it half-way.
                make_plan(HostFacts(facts), self.request)
            if amendment is not None:
                self._amend(amendment, accepted, facts)
            while (stage := self._next_stage(facts)) is not None:
                self._run_stage(stage, facts)
                facts = self.session.facts()
                self._note_dependents(facts)
            self._note_dependents(facts)  # also where the run was killed before it could
            return self._finish(facts)

    @contextmanager
    def reaching(self, *, looking: bool = False) -> Iterator[None]:
        """Close the wire in the end; a run that ends before its end says why, in its journal too, and how to go on.

        looking: the run is only looked at, which is no part of it and leaves no line.
        Raises EndOfRun, and what stands in the way of a run that has changed nothing as it is.
        """
        try:
            yield
        except (WinhostError, MissingFact, KeyboardInterrupt, uploads.UploadInterrupted) as error:
            ending = self._ending(error)
            if not looking:
                self._write_stopped(ending)
            if ending is error:
                raise
            raise ending from error
        finally:
            self.session.close()

    def _ending(
        self, error: WinhostError | MissingFact | KeyboardInterrupt | uploads.UploadInterrupted
    ) -> WinhostError | KeyboardInterrupt:
        """The error with the ways on and back, where there are any."""
        host, back = self.record.host, self.record.going_back
        if isinstance(error, uploads.UploadInterrupted):
            return self._stopped()
        if isinstance(error, MissingFact):
            return EndOfRun(
                "CannotTell",
                what=f"{host}: {visible(unread(error))}",
                meaning="Nothing is changed without it: neither what to do nor how to undo it would be known.",
                host=host,
                run=self.begun,
                going_back=back,
            )
        if isinstance(error, EndOfRun) or self._journal is None:
            return error
        if isinstance(error, KeyboardInterrupt):
            return EndOfRun(
                "CutShort",
                what=f"{host}: stopped in the middle of a step, as you asked",
                meaning="That step may still be going on there. Whoever goes on or back waits for it and reads again.",
                host=host,
                run=self.run,
                going_back=back,
            )
        if isinstance(error, WireError):
            return EndOfRun(
                "OutOfReach",
                what=error.what,
                meaning="The journal knows what was begun and the host what is true: nothing is lost.",
                host=host,
                run=self.run,
                going_back=back,
                exit_code=error.exit_code,
            )
        return error if self.record.unchanged else halted(host, self.run, error, back)

    def _write_stopped(self, ending: WinhostError | KeyboardInterrupt) -> None:
        """For `winhost runs`: where a terminal was, there may be none by now. A mere look at a run is no part of it."""
        if self._journal is None or not isinstance(ending, WinhostError):
            return
        if self.record.outcome is not None and len(self._journal.entries) == self._began_at:
            return
        next_ = [command for _, command in ending.next_steps] if isinstance(ending, EndOfRun) else []
        with suppress(EndOfRun):  # then it is the journal that stopped it
            self.write("stopped", why=ending.what, next=next_)
            if self.record.unchanged and not self.record.going_back:
                self.write("outcome", outcome="nothing changed")

    def settle(self) -> Facts:
        """Bring the run to rest: wait out what still runs on the host and a restart under way, then read."""
        if self._journal is not None:
            self.session.reach()
            self.finish_restart()
        return self.seen()

    def seen(self) -> Facts:
        """The host as it is, and the very machine of the plan. Raises UsageError: WrongHost."""
        facts = self.session.facts(settled=self._journal is not None)
        machine = HostFacts(facts).machine_id
        if machine != self.record.plan.machine_id:
            raise wrong_host(self.record.host, self.record.plan.machine_id, machine)
        return facts

    def first_steps(self) -> tuple[Step, ...]:
        """Those of the first stage, as far as they are left to do."""
        facts = self.seen()
        make_plan(HostFacts(facts), self.request)
        return self._steps(self.record.stages[0], facts)

    def planned_again(self, facts: Facts, request: PathRequest) -> Stage:
        """What is left to do with another request.

        Raises WinhostError (NothingAnew, AlreadyUsed), and as `next_stage` does.
        """
        amending.refuse_pointless(self.record, request)
        number = 1 + max(self.record.finished_stages, default=0)
        found = HostFacts(amending.as_found(self.record, facts))
        try:
            stage = next_stage(found, request, number)
        except WinhostError as error:
            raise self._to_choose(error) from error
        amending.refuse_used(self.record, request, stage)
        steps = steps_on(facts, stage.desired, prefix=f"{number}.", extra_risks=asked_risks(found, request))
        return replace(stage, steps=steps)

    def _amend(self, amendment: Amendment, accepted: frozenset[str], facts: Facts) -> None:
        """Consents are given for what is changed: the old ones are not for this."""
        request, record = amendment.request, self.record
        stage = self.planned_again(facts, request)
        if amendment.shown not in (None, stage):
            raise amending.not_as_shown(record.host)
        needed = in_order(risk for step in stage.steps for risk in step.risks)
        if lacking := tuple(risk for risk in needed if risk not in accepted):
            raise ConsentNeeded(record.host, self.run, lacking, changed=True, retry_options=amendment.words)
        self.write(
            "amend",
            changes=[plain(change) for change in amending.changes(record.plan.request, request.document)],
            request=plain(request.document),
            stage=plain(stage),
            accepted=sorted(accepted),
        )
        self._request = request

    def accept(self, accepted: Iterable[str]) -> None:
        """Consents given later."""
        new = in_order(set(accepted) - self.record.accepted)
        if new:
            self.write("accept", accepted=list(new))

    def _next_stage(self, facts: Facts) -> Stage | None:
        for stage in self.record.stages:
            if stage.number not in self.record.finished_stages:
                return stage
        last = self.record.stages[-1]
        if not last.deferred:
            return None
        try:
            stage = next_stage(HostFacts(facts), self.request, last.number + 1)
        except WinhostError as error:
            raise self._to_choose(error) from error
        if (stage.desired, stage.deferred) == (last.desired, last.deferred):
            waiting = {deferred.resource: deferred.until for deferred in stage.deferred}
            raise stage_never_ready(self.record.host, self.begun, waiting)
        if self._journal is not None:
            self.write("planned", stage=plain(stage))
        else:
            self.record = replace(self.record, stages=(*self.record.stages, stage))
        self.tell("stage", f"stage {stage.number}: read and judged again, {len(stage.steps)} steps")
        return stage

    def _to_choose(self, error: WinhostError) -> WinhostError:
        """What a later stage finds wrong of the request may be chosen again by then, where something was changed."""
        if self._journal is None:
            return error
        retry_options = amending.words(self.record.plan.request.path, error)
        if isinstance(error, PlanRefused):
            return error.in_run(self.run, retry_options)
        return halted(self.record.host, self.run, error, retry_options=retry_options)

    def _run_stage(self, stage: Stage, facts: Facts) -> None:
        self.do(self._steps(stage, facts), facts)
        if self._journal is not None:
            self.write("stage", number=stage.number)
        else:  # nothing was to be done, so there is no run to keep a record of
            self.record = replace(self.record, finished_stages=self.record.finished_stages | {stage.number})

    def _steps(self, stage: Stage, facts: Facts) -> tuple[Step, ...]:
        """What of a stage is left to do, if it may be done. Raises WinhostError: PlanRefused, NotAPlan,
        Drifted, NotBeside.
        """
        check_stage(HostFacts(facts), self.request, stage.desired)
        self._refuse_drift(stage, facts)
        # From the verdict of now, not from the plan's file: who edits a risk out of it is asked all the same.
        risks = asked_risks(HostFacts(facts), self.request)
        pending = self._pending_restore()
        steps = steps_on(facts, (*stage.desired, *pending.values()), prefix=f"{stage.number}.", extra_risks=risks)
        uploads.check(steps, self.folder)
        return tuple(_as_restore(step, pending) for step in steps)

    def _note_dependents(self, facts: Facts) -> None:
        """What rests on what was changed so far, once after each stage; of what cannot be read nothing is told."""
        noted = [
            {"resource": touched.resource, "key": dict(touched.key), "users": users}
            for touched in self.record.touched.values()
            if touched.dependents is None and RESOURCE_TYPES[touched.resource].rests
            if (users := _seen(touched.resource, touched.key, facts)) is not None
        ]
        if noted:
            self.write("dependents", resting=noted)

    def _pending_restore(self) -> dict[Id, DesiredResource]:
        """What was moved for other steps alone and not given back yet: read now, it would look as if found so."""
        requested = {
            identity(desired.resource, desired.key) for stage in self.record.stages for desired in stage.desired
        }
        return {
            id_: DesiredResource(moved.resource, moved.key, moved.original, moved.title, "As it was found.")
            for id_, moved in self.record.touched.items()
            if id_ not in requested and not moved.is_restored
        }

    def _refuse_drift(self, stage: Stage, facts: Facts) -> None:
        """A request must stand where the plan saw it, or already where it shall be; a need only where it was seen,
        or it
        would be given back to what it no longer is. What no step of the plan shows must be so already: nothing is
        changed that its reader has not seen. What this run moved itself may differ.
        """
        differing = self._unseen(stage, facts)
        for step in stage.steps:
            if step.role == "restore" or identity(step.resource, step.key) in self.record.touched:
                continue
            now = host_answers(facts).state_of(step.resource, step.key) or {}
            for name, before in step.before.items():
                if now.get(name) not in ([before] if step.role == "need" else [before, step.desired[name]]):
                    differing[f"{step.title}: {name}"] = (before, now.get(name))
        if differing:
            raise Drifted(self.record.host, "apply", differing)

    def _unseen(self, stage: Stage, facts: Facts) -> dict[str, tuple[Json, Json]]:
        shown = {(identity(step.resource, step.key), name) for step in stage.steps for name in step.desired}
        differing: dict[str, tuple[Json, Json]] = {}
        for desired in stage.desired:
            id_ = identity(desired.resource, desired.key)
            now = host_answers(facts).state_of(desired.resource, desired.key) or {}
            for name, value in desired.desired.items():
                if (id_, name) not in shown and id_ not in self.record.touched and now.get(name) != value:
                    differing[f"{desired.title}: {name}"] = (value, now.get(name))
        return differing

    def _finish(self, facts: Facts) -> Outcome:
        checks = tuple(verify_stages(self.record.stages, facts))
        holds = all(check.holds for check in checks)
        outcome = "applied" if holds else "differs"
        if self._journal is not None and self.record.outcome != outcome:
            self.write("outcome", outcome=outcome)
        return Outcome(self.run, self.record.host, outcome if self._journal else "nothing to do", self.changed, checks)

    # ---- steps, either way

    def do(self, steps: tuple[Step, ...], facts: Facts) -> None:
        """Steps in their order, then the restart that they ask for. Raises ConsentNeeded before the first."""
        needed = in_order(risk for step in steps for risk in step.risks)
        lacking = tuple(risk for risk in needed if risk not in self.record.accepted)
        if lacking:
            record = self.record
            raise ConsentNeeded(record.host, self.begun, lacking, record.going_back, not record.unchanged)
        for number, step in enumerate(steps, start=1):
            self._stop_if_asked()
            self._set(step, facts, number, len(steps))
        if self.record.restart_due:
            self._stop_if_asked()
            self.restart()

    def _stop_if_asked(self) -> None:
        if self.context.stop():
            raise self._stopped()

    def _stopped(self) -> EndOfRun:
        """Stopped from outside, after a step or between two pieces of a file that it sends."""
        record = self.record
        changes = f"{self.changed} {'change' if self.changed == 1 else 'changes'}"
        return EndOfRun(
            "Stopped",
            what=f"{record.host}: stopped after {changes}, {self.context.why()}",
            meaning=f"Until it goes on or back: {'; '.join(record.midway)}." if record.midway else None,
            host=record.host,
            run=self.begun,
            going_back=record.going_back,
        )

    def _set(self, step: Step, facts: Facts, number: int, total: int) -> None:
        found = dict(host_answers(facts).state_of(step.resource, step.key) or {}) | dict(step.before)
        self.write("begin", step=plain(step), found=found, users=_users(step.resource, step.key, facts))
        self.tell("step", step.title, step, number, total)
        try:
            answer = self._answer(step)
        except Drifted as error:
            self._write_failed(step, found, str(error))
            raise
        except (RemoteError, NotAvailable) as error:
            # What it rests on was lost meanwhile: how far it came nobody can tell then.
            after = error.after if isinstance(error, RemoteError) else None
            self._write_failed(step, after, str(error))
            lacking = tuple(risk for risk in step.may_need if risk not in self.record.accepted)
            alone = len(self.record.touched) == 1
            back = self.record.going_back
            retry_options = None if back else amending.words_for(self.record.plan, step.resource)
            raise step_failed(
                self.record.host,
                self.run,
                step,
                error,
                going_back=back,
                lacking=lacking,
                alone=alone,
                retry_options=retry_options,
            ) from error
        for warning in answer.warnings:
            self.tell("note", f"{step.title}: the host warns: {warning}", step)
        self._end(step, answer)
        self.tell("done", step.title, step, number, total)

    def _answer(self, step: Step) -> SetAnswer:
        """What a step before it has brought along needs nothing more: a distro that starts lets in again.

        Raises as `HostSession.set` does.
        """
        try:
            return self.session.set(step, self.record.accepted)
        except Drifted:
            now = self.session.state(step.resource, step.key) or {}
            first = len(self.record.touched) == 1
            if first or step.role == "need" or any(now.get(name) != value for name, value in step.desired.items()):
                raise
            return SetAnswer({**now, **step.before}, now)

    def _write_failed(self, step: Step, after: Mapping[str, Json] | None, error: str) -> None:
        self.write("failed", resource=step.resource, key=dict(step.key), after=after and dict(after), error=error)
        self.tell("failed", f"{step.title}: {error}", step)

    def _end(self, step: Step, answer: SetAnswer) -> None:
        self.write(
            "end",
            resource=step.resource,
            key=dict(step.key),
            before=dict(answer.before),
            after=dict(answer.after) or None,
            restart=answer.restart,
            warnings=list(answer.warnings),
        )
        self.changed += 1
        lacking = {n: (v, answer.after.get(n)) for n, v in step.desired.items() if answer.after.get(n) != v}
        if lacking and not answer.restart:
            raise not_taken(self.record.host, self.run, step, lacking, self.record.going_back)

    def restart(self) -> None:
        """Restart the host and read what took effect with it."""
        boot = self.record.restarting_from
        if boot is None:
            boot = str((self.session.state("Boot", {}) or {})["boot_id"])
            self.write("restarting", boot_id=boot)
        self.tell("restart", "restarting")
        new = self.session.restart(boot)
        self.write("restarted", boot_id=new, left=self._left_by_restart())
        self.tell("done", "restarted")

    def finish_restart(self) -> None:
        """The restart that a killed run was waiting for, or had still to ask for."""
        if self.record.restart_due and self.record.in_flight is None:
            self.restart()

    def _left_by_restart(self) -> list[dict[str, Any]]:
        touched = [t for t in self.record.touched.values() if RESOURCE_TYPES[t.resource].restarts]
        return [
            {"resource": t.resource, "key": dict(t.key), "after": self.session.state(t.resource, t.key)}
            for t in touched
        ]

    # ---- telling

    @property
    def begun(self) -> str | None:
        """The run's name, once there is such a run."""
        return self.run if self._journal is not None else None

    def write(self, event: str, **fields: Any) -> None:
        """An entry in the journal, which is begun when there is none yet. Raises EndOfRun: CannotWrite."""
        try:
            if self._journal is None:
                self._journal = self._new_journal()
            entry = self._journal.write(event, **fields)
        except OSError as error:
            raise EndOfRun(
                "CannotWrite",
                what=f"{self.record.host}: the journal cannot be written: {visible(str(error))}",
                meaning="No step is begun before the journal says so on disk; free some space in the state folder.",
                host=self.record.host,
                run=self.begun,
                going_back=self.record.going_back,
            ) from error
        self.record = fold(self.record, entry)

    def _new_journal(self) -> Journal:
        """With the plan, and what was found to need nothing before the first change."""
        path = self.context.store.path(self.run)
        journal = Journal(path, self.context.around)
        try:
            journal.write(
                "run",
                schema=SCHEMA,
                run=self.run,
                winhost=__version__,
                plan=plain(self.record.plan),
                accepted=sorted(self.record.accepted),
                folder=self.record.folder,
            )
            for stage in self.record.stages[1:]:
                journal.write("planned", stage=plain(stage))
            for number in sorted(self.record.finished_stages):
                journal.write("stage", number=number)
        except (OSError, KeyboardInterrupt):
            path.unlink(missing_ok=True)
            raise
        return journal

    def tell(self, kind: str, text: str, step: Step | None = None, number: int = 0, total: int = 0) -> None:
        """To whoever watches."""
        self.context.tell(ProgressEvent(self.record.host, kind, text, step, number, total, run=self.begun or ""))


def _as_restore(step: Step, pending_restore: Mapping[Id, DesiredResource]) -> Step:
    mine = step.role == "desired" and identity(step.resource, step.key) in pending_restore
    return replace(step, role="restore") if mine else step


def _users(resource: str, key: Key, facts: Facts) -> list[Any]:
    """As far as it can be read: rollback keeps more then, not less."""
    try:
        return [plain(user) for _, user in resting(resource, key, host_answers(facts)).values()]
    except MissingFact:
        return []


def _seen(resource: str, key: Key, facts: Facts) -> list[Any] | None:
    try:
        return [plain(user) for user in seen(resource, key, host_answers(facts))]
    except MissingFact:
        return None
