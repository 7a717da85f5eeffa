"""Running a plan: stage by stage, journal before acting, and the same way on after a crash as at the start."""

from collections.abc import Iterable
from dataclasses import replace

from winhost.connect.wire_errors import Drifted
from winhost.core.answers import Id, MissingFact, Unavailable, identity
from winhost.core.checks import drifted
from winhost.core.order import steps_for
from winhost.core.steps import DesiredResource, Step
from winhost.engine import amend
from winhost.engine.amend import Amendment
from winhost.engine.failures import ConsentNeeded, PlanRefused, halted, unfinished
from winhost.engine.journal import read_journal
from winhost.engine.planning import (
    CheckedPlan,
    asked_risks,
    check_stage,
    make_plan,
    next_stage,
)
from winhost.engine.run_context import Outcome, RunContext
from winhost.engine.run_state import has_ended, replay
from winhost.engine.run_steps import WorkingRun
from winhost.engine.store import Store
from winhost.engine.verify import verify_stages
from winhost.model.documents import plain
from winhost.model.errors import UsageError, WinhostError
from winhost.model.facts import Facts
from winhost.model.plan import Plan, Stage, in_order
from winhost.paths.playbook import PathRequest
from winhost.resources.host import HostFacts
from winhost.resources.registry import RULES, host_answers, title_of
from winhost.resources.shared import SEED


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

    amendment: another request for what is left, for which only these consents count.
    """
    with context.store.lock(context.connector.host, f"resume {run}"):
        runner = _forward(run, context)
        if amendment is None:
            runner.accept(accepted)
        return runner.forward(amendment, frozenset(accepted))


def preview_amended(run: str, request: PathRequest, context: RunContext) -> Stage:
    """The stage that `resume` would run with another request; changes nothing. Raises as it does."""
    with context.store.lock(context.connector.host, f"resume {run}"):
        runner = _forward(run, context)
        with runner.reaching(looking=True):
            runner.parse()
            return runner.planned_again(runner.seen(), request)


def check(checked: CheckedPlan, context: RunContext) -> tuple[Step, ...]:
    """The steps that `apply` would take now in its first stage; changes nothing and writes nothing. Raises as
    it does.
    """
    plan = checked.plan
    context.store.refuse_held(plan.host)
    _refuse_unfinished(plan, context.store)
    runner = Runner("", context, checked)
    with runner.reaching():
        return runner.first_steps()


def _forward(run: str, context: RunContext) -> "Runner":
    runner = Runner(run, context)
    if runner.record.going_back:
        raise UsageError("OneWay", what=f"{run} is going back; go on with that", hint=f"winhost rollback {run}")
    _refuse_unfinished(runner.record.plan, context.store, but=run)
    return runner


def _refuse_unfinished(plan: Plan, store: Store, but: str = "") -> None:
    """Refuse while another run at the host is unfinished. A run that changed nothing does not block others."""
    for name in store.runs_of(plan.host):
        try:
            lines = read_journal(store.existing(name))
            if name == but or has_ended(lines):
                continue
            record = replay(name, lines)
        except WinhostError:
            continue  # nobody can go on with it, either
        if not record.unchanged and record.plan.machine_id == plan.machine_id:
            raise unfinished(plan.host, name, record.going_back)


class Runner(WorkingRun):
    """A run that goes forward."""

    def forward(self, amendment: Amendment | None = None, accepted: frozenset[str] = frozenset()) -> Outcome:
        """Run all stages that are not finished, then verify. amendment: another request, with its consents."""
        self.session.awaits_guests = True
        with self.reaching():
            self.parse()
            facts = self.settle()
            if self.journal is None:
                # Judged again before anything is done: a checkpoint made since the plan would fail it half-way.
                make_plan(HostFacts(facts), self.request)
            if amendment is not None:
                self._amend(amendment, accepted, facts)
            while (stage := self._next_stage(facts)) is not None:
                if self._run_stage(stage, facts):
                    facts = self.read()
                self.note_dependents()
            self.note_dependents()  # also where the run was killed before it could
            return self._finish(facts)

    def first_steps(self) -> tuple[Step, ...]:
        """The remaining steps of the first stage."""
        self.parse()
        facts = self.seen()
        make_plan(HostFacts(facts), self.request)
        return self._steps(self.record.stages[0], facts)

    def planned_again(self, facts: Facts, request: PathRequest) -> Stage:
        """Plan the remaining work with another request. Raises WinhostError (NothingAnew, AlreadyUsed), and as
        `next_stage` does.
        """
        amend.refuse_pointless(self.record, request)
        number = 1 + max(self.record.finished_stages, default=0)
        found = HostFacts(amend.as_found(self.record, facts))
        try:
            stage = next_stage(found, request, number)
        except WinhostError as error:
            raise self._to_choose(error) from error
        amend.refuse_used(self.record, request, stage)
        steps = steps_for(
            stage.desired, host_answers(facts), prefix=f"{number}.", extra_risks=asked_risks(found, request)
        )
        return replace(stage, steps=steps)

    def _amend(self, amendment: Amendment, accepted: frozenset[str], facts: Facts) -> None:
        """Replace the request. Consents that were given for the old one do not count."""
        request, record = amendment.request, self.record
        stage = self.planned_again(facts, request)
        if amendment.shown not in (None, stage):
            raise amend.not_as_shown(record.host)
        needed = in_order(risk for step in stage.steps for risk in step.risks)
        if lacking := tuple(risk for risk in needed if risk not in accepted):
            raise ConsentNeeded(record.host, self.name, lacking, changed=True, retry_options=amendment.options)
        self.write(
            "amend",
            changes=[plain(change) for change in amend.changes(record.plan.request, request.document)],
            request=plain(request.document),
            stage=plain(stage),
            accepted=sorted(accepted),
        )
        self.request = request

    def accept(self, accepted: Iterable[str]) -> None:
        """Record consents that were given later."""
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
            waiting = {title_of(deferred.resource): title_of(deferred.until) for deferred in stage.deferred}
            listed = ", ".join(f"{resource} (before {until} is there)" for resource, until in waiting.items())
            what = f"all that could be planned is done, but this still cannot be: {listed}"
            meaning = "The host was read again after the last step and is no further. Look at why, then go on."
            raise self.end_of_run("NeverCame", what, meaning)
        if self.journal is not None:
            self.write("planned", stage=plain(stage))
        else:
            self.record = replace(self.record, stages=(*self.record.stages, stage))
        steps = "1 step" if len(stage.steps) == 1 else f"{len(stage.steps)} steps"
        self.tell("stage", f"stage {stage.number}: read and judged again, {steps}")
        return stage

    def _to_choose(self, error: WinhostError) -> WinhostError:
        """Offer to replace a request value that a later stage finds wrong, if something was changed by then."""
        if self.journal is None:
            return error
        retry_options = amend.options(self.record.plan.request.path, error)
        if isinstance(error, PlanRefused):
            return error.in_run(self.name, retry_options)
        if isinstance(error.__cause__, MissingFact):  # the logon to a Linux failed: no other request mends that
            return error
        return halted(self.record.host, self.name, error, retry_options=retry_options)

    def _run_stage(self, stage: Stage, facts: Facts) -> bool:
        """Run a stage. Returns whether the host may differ from these facts by now, and is to be read again."""
        there = _of_what_is_there(stage, facts)
        steps = self._steps(there, facts)
        did = bool(steps) or self.record.restart_due or there != stage
        self.do(steps)
        if there != stage:
            # It was broken off while the VM was off for other steps; by now it runs again, and its guest can be asked.
            facts = self.read()
            self.do(self._steps(stage, facts))
        if self.journal is not None:
            self.write("stage", number=stage.number)
        else:  # nothing was to be done, so there is no run to keep a record of
            self.record = replace(self.record, finished_stages=self.record.finished_stages | {stage.number})
        return did

    def _steps(self, stage: Stage, facts: Facts) -> tuple[Step, ...]:
        """The remaining steps of a stage, if they may be taken. Raises WinhostError: PlanRefused, NotAPlan, Drifted,
        NotBeside.
        """
        check_stage(HostFacts(facts), self.request, stage.desired)
        if differing := drifted(self.record, stage.desired, stage.steps, host_answers(facts)):
            raise Drifted(self.record.host, "apply", differing)
        # From the verdict of now, not from the plan's file: who edits a risk out of it is asked all the same.
        risks = asked_risks(HostFacts(facts), self.request)
        pending = self._pending_restore()
        goals = (*stage.desired, *pending.values())
        steps = steps_for(goals, host_answers(facts), prefix=f"{stage.number}.", extra_risks=risks)
        self.files.check(steps)
        return tuple(
            replace(step, role="restore")
            if step.role == "desired" and identity(step.resource, step.key) in pending
            else step
            for step in steps
        )

    def _pending_restore(self) -> dict[Id, DesiredResource]:
        """The needs that were met for other steps and not restored yet: read now, they would look as if found so."""
        requested = {
            identity(desired.resource, desired.key) for stage in self.record.stages for desired in stage.desired
        }
        return {
            id_: DesiredResource(moved.resource, moved.key, moved.original, moved.title, "As it was found.")
            for id_, moved in self.record.touched.items()
            if id_ not in requested and not moved.is_restored
        }

    def _finish(self, facts: Facts) -> Outcome:
        stages = self.record.stages
        # States that held when the plan was made may hold no longer after other steps: an engine was replaced.
        waited = [each for stage in stages for each in stage.desired if RULES[each.resource].only_waited_for]
        if again := steps_for(waited, host_answers(facts), prefix=f"{stages[-1].number}.again."):
            self.do(again)
            facts = self.read()
        checks = tuple(verify_stages(stages, facts))
        if all(check.holds for check in checks):
            checks += self.context.final(self.record, self.session)
        holds = all(check.holds for check in checks)
        outcome = "applied" if holds else "differs"
        if self.journal is not None and self.record.outcome != outcome:
            self.write("outcome", outcome=outcome)
        return Outcome(self.name, self.record.host, outcome if self.journal else "nothing to do", self.changed, checks)


def _of_what_is_there(stage: Stage, facts: Facts) -> Stage:
    """Leave out what is in a guest that cannot be read now, although it could when the stage was planned."""
    host, off = host_answers(facts), Unavailable(SEED)
    desired = tuple(each for each in stage.desired if host.answer(each.resource) != off)
    if desired == stage.desired:
        return stage
    return replace(stage, desired=desired, steps=tuple(s for s in stage.steps if host.answer(s.resource) != off))
