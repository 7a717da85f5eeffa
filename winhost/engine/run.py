"""Apply a plan stage by stage, with a journal. A resumed run takes the same way as a new one."""

from collections.abc import Iterable
from dataclasses import replace

from winhost.connect.wire_errors import Drifted
from winhost.core.answers import Id, MissingFact, Unavailable, identity
from winhost.core.checks import find_drift
from winhost.core.order import steps_for
from winhost.core.steps import DesiredResource, Step
from winhost.engine import amend
from winhost.engine.amend import Amendment
from winhost.engine.failures import ConsentNeeded, PlanRefused, halted_error, unfinished_run_error
from winhost.engine.journal import read_journal
from winhost.engine.planning import CheckedPlan, check_stage, make_plan, next_stage, verdict_risks
from winhost.engine.run_context import Outcome, RunContext
from winhost.engine.run_state import has_ended, replay
from winhost.engine.run_steps import WorkingRun
from winhost.engine.store import Store
from winhost.engine.verify import verify_stages
from winhost.model.documents import plain
from winhost.model.errors import UsageError, WinhostError
from winhost.model.facts import Facts
from winhost.model.plan import Plan, Stage, sort_risks
from winhost.paths.playbook import PathRequest
from winhost.resources.host import HostFacts
from winhost.resources.registry import RULES, host_answers, title_of
from winhost.resources.shared import SEED


def apply(checked: CheckedPlan, accepted: Iterable[str], context: RunContext) -> Outcome:
    """Apply a plan in a new run.

    Raises WinhostError before anything is changed: Unfinished, ConsentNeeded, Drifted, WrongHost, PlanRefused.
    """
    plan = checked.plan
    with context.store.lock(plan.host, "apply"):
        _refuse_unfinished(plan, context.store)
        run = context.store.new_run(plan.host)
        runner = Runner(run, context, checked, frozenset(accepted))
        return runner.run_forward()


def resume(run: str, accepted: Iterable[str], context: RunContext, amendment: Amendment | None = None) -> Outcome:
    """Resume a run where it stopped. amendment: another request for the remaining stages, for which only these consents
    count.
    """
    with context.store.lock(context.connector.host, f"resume {run}"):
        runner = _open_for_resume(run, context)
        if amendment is None:
            runner.accept(accepted)
        return runner.run_forward(amendment, frozenset(accepted))


def preview_amended(run: str, request: PathRequest, context: RunContext) -> Stage:
    """Return the stage that `resume` would run with another request. Changes nothing. Raises as it does."""
    with context.store.lock(context.connector.host, f"resume {run}"):
        runner = _open_for_resume(run, context)
        with runner.connected(is_preview=True):
            runner.parse_request()
            return runner.replan(runner.read_planned_host(), request)


def check(checked: CheckedPlan, context: RunContext) -> tuple[Step, ...]:
    """Return the steps that `apply` would run now in its first stage. Changes and writes nothing. Raises as it does."""
    plan = checked.plan
    context.store.refuse_locked(plan.host)
    _refuse_unfinished(plan, context.store)
    runner = Runner("", context, checked)
    with runner.connected():
        return runner.steps_of_first_stage()


def _open_for_resume(run: str, context: RunContext) -> "Runner":
    runner = Runner(run, context)
    if runner.record.going_back:
        raise UsageError("OneWay", what=f"{run} is going back; go on with that", hint=f"winhost rollback {run}")
    _refuse_unfinished(runner.record.plan, context.store, except_run=run)
    return runner


def _refuse_unfinished(plan: Plan, store: Store, except_run: str = "") -> None:
    """Refuse while another run at the host is unfinished. A run that changed nothing does not block others."""
    for name in store.runs_of(plan.host):
        try:
            lines = read_journal(store.existing_journal(name))
            if name == except_run or has_ended(lines):
                continue
            record = replay(name, lines)
        except WinhostError:
            continue  # it cannot be resumed either
        if not record.unchanged and record.plan.machine_id == plan.machine_id:
            raise unfinished_run_error(plan.host, name, record.going_back)


class Runner(WorkingRun):
    """A run that applies its plan."""

    def run_forward(self, amendment: Amendment | None = None, accepted: frozenset[str] = frozenset()) -> Outcome:
        """Run all stages that are not finished, then verify. amendment: another request, with its consents."""
        self.session.waits_for_guests = True
        with self.connected():
            self.parse_request()
            facts = self.wait_until_settled()
            if self.journal is None:
                # Judge again before the first change: with a checkpoint made since, for example, the plan would fail.
                make_plan(HostFacts(facts), self.request)
            if amendment is not None:
                self._amend(amendment, accepted, facts)
            while (stage := self._next_stage(facts)) is not None:
                if self._run_stage(stage, facts):
                    facts = self.read()
                self.record_dependents()
            self.record_dependents()  # also where the run was killed before it could
            return self._finish(facts)

    def steps_of_first_stage(self) -> tuple[Step, ...]:
        """Return the remaining steps of the first stage."""
        self.parse_request()
        facts = self.read_planned_host()
        make_plan(HostFacts(facts), self.request)
        return self._steps(self.record.stages[0], facts)

    def replan(self, facts: Facts, request: PathRequest) -> Stage:
        """Plan the remaining work with another request. Raises WinhostError (NothingAnew, AlreadyUsed), and as
        `next_stage` does.
        """
        amend.refuse_pointless(self.record, request)
        number = 1 + max(self.record.finished_stages, default=0)
        host_facts = HostFacts(amend.facts_before_needs(self.record, facts))
        try:
            stage = next_stage(host_facts, request, number)
        except WinhostError as error:
            raise self._offer_retry(error) from error
        amend.refuse_used_values(self.record, request, stage)
        steps = steps_for(
            stage.desired, host_answers(facts), prefix=f"{number}.", extra_risks=verdict_risks(host_facts, request)
        )
        return replace(stage, steps=steps)

    def _amend(self, amendment: Amendment, accepted: frozenset[str], facts: Facts) -> None:
        """Replace the request. Consents for the old one do not count."""
        request, record = amendment.request, self.record
        stage = self.replan(facts, request)
        if amendment.shown not in (None, stage):
            raise amend.outdated_preview_error(record.host)
        needed = sort_risks(risk for step in stage.steps for risk in step.risks)
        if missing := tuple(risk for risk in needed if risk not in accepted):
            raise ConsentNeeded(record.host, self.name, missing, changed=True, retry_options=amendment.options)
        self.write(
            "amend",
            changes=[plain(change) for change in amend.request_changes(record.plan.request, request.document)],
            request=plain(request.document),
            stage=plain(stage),
            accepted=sorted(accepted),
        )
        self.request = request

    def accept(self, accepted: Iterable[str]) -> None:
        """Record consents that were given later."""
        new = sort_risks(set(accepted) - self.record.accepted)
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
            raise self._offer_retry(error) from error
        if (stage.desired, stage.deferred) == (last.desired, last.deferred):
            waiting = {title_of(deferred.resource): title_of(deferred.until) for deferred in stage.deferred}
            listed = ", ".join(f"{resource} (before {until} is there)" for resource, until in waiting.items())
            what = f"all that could be planned is done, but this still cannot be: {listed}"
            meaning = "The host was read again after the last step and is no further. Look at why, then go on."
            raise self.interrupted("NeverCame", what, meaning)
        if self.journal is not None:
            self.write("planned", stage=plain(stage))
        else:
            self.record = replace(self.record, stages=(*self.record.stages, stage))
        steps = "1 step" if len(stage.steps) == 1 else f"{len(stage.steps)} steps"
        self.report("stage", f"stage {stage.number}: read and judged again, {steps}")
        return stage

    def _offer_retry(self, error: WinhostError) -> WinhostError:
        """Add to an error of a later stage the options that replace a request value, if the run has changed
        something.
        """
        if self.journal is None:
            return error
        retry_options = amend.retry_options_of(self.record.plan.request.path, error)
        if isinstance(error, PlanRefused):
            return error.for_run(self.name, retry_options)
        if isinstance(error.__cause__, MissingFact):  # the logon to a Linux failed, which another request would not fix
            return error
        return halted_error(self.record.host, self.name, error, retry_options=retry_options)

    def _run_stage(self, stage: Stage, facts: Facts) -> bool:
        """Run a stage. Returns whether the host may differ from these facts, so that it has to be read again."""
        readable = _readable_part(stage, facts)
        steps = self._steps(readable, facts)
        may_differ = bool(steps) or self.record.restart_due or readable != stage
        self.run_steps(steps)
        if readable != stage:
            # The run was interrupted while the VM was off for other steps. Now it runs again, so its guest can be read.
            facts = self.read()
            self.run_steps(self._steps(stage, facts))
        if self.journal is not None:
            self.write("stage", number=stage.number)
        else:  # the stage needed no change, so there is no journal yet
            self.record = replace(self.record, finished_stages=self.record.finished_stages | {stage.number})
        return may_differ

    def _steps(self, stage: Stage, facts: Facts) -> tuple[Step, ...]:
        """Return the remaining steps of a stage. Raises WinhostError: PlanRefused, NotAPlan, Drifted, NotBeside."""
        check_stage(HostFacts(facts), self.request, stage.desired)
        if differing := find_drift(self.record, stage.desired, stage.steps, host_answers(facts)):
            raise Drifted(self.record.host, "apply", differing)
        # By the present verdict, not by the plan file: a risk that was edited out still needs its consent.
        risks = verdict_risks(HostFacts(facts), self.request)
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
        """Return goals that restore needs of earlier steps. Read now, their states would look like the original
        ones.
        """
        requested = {
            identity(desired.resource, desired.key) for stage in self.record.stages for desired in stage.desired
        }
        return {
            id_: DesiredResource(touched.resource, touched.key, touched.original, touched.title, "As it was found.")
            for id_, touched in self.record.touched.items()
            if id_ not in requested and not touched.is_restored
        }

    def _finish(self, facts: Facts) -> Outcome:
        stages = self.record.stages
        # A state that held when the plan was made may no longer hold after other steps, if an engine was replaced.
        waited_for = [each for stage in stages for each in stage.desired if RULES[each.resource].is_wait_only]
        if repeated := steps_for(waited_for, host_answers(facts), prefix=f"{stages[-1].number}.again."):
            self.run_steps(repeated)
            facts = self.read()
        checks = tuple(verify_stages(stages, facts))
        if all(check.holds for check in checks):
            checks += self.context.final_checks(self.record, self.session)
        holds = all(check.holds for check in checks)
        outcome = "applied" if holds else "differs"
        if self.journal is not None and self.record.outcome != outcome:
            self.write("outcome", outcome=outcome)
        return Outcome(self.name, self.record.host, outcome if self.journal else "nothing to do", self.changed, checks)


def _readable_part(stage: Stage, facts: Facts) -> Stage:
    """Return the stage without resources in a guest that cannot be read now, although it could when this was
    planned.
    """
    host, stopped_guest = host_answers(facts), Unavailable(SEED)
    desired = tuple(each for each in stage.desired if host.answer(each.resource) != stopped_guest)
    if desired == stage.desired:
        return stage
    return replace(
        stage, desired=desired, steps=tuple(s for s in stage.steps if host.answer(s.resource) != stopped_guest)
    )
