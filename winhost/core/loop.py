"""The loop that runs steps on a host and rolls them back. Each step is in the journal before it starts and when it
ends.

The engine runs this loop over a connection, and run.py of an offline package in the Linux itself.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import fields
from typing import Any, Protocol

from .answers import HostAnswers, Id, Json, Key, MissingFact, identity
from .changes import Changes, Dependent
from .dataclass import dataclass
from .dependents import dependents_of, present_dependents
from .marks import MarkedRun, mark_of
from .rollback import Turn, group_by_turn, turn_of
from .steps import DesiredResource, SetAnswer, Step


@dataclass(frozen=True)
class StepFailure:
    """The failure of a step. error: ends the run; details: fields of the journal's entry; drifted: the host changed
    nothing, because the state was not as the step expected; after: the state now, or None if it could not be read.
    """

    error: Exception
    details: Mapping[str, Json]
    drifted: bool = False
    after: Mapping[str, Json] | None = None


class Session(Protocol):
    """The machine that a run changes: over a connection, or the one that this runs on."""

    def set(self, step: Step, accepted: frozenset[str], mark: str | None) -> SetAnswer | StepFailure:
        """Do a step. mark: a line that the host stores before the change. Raises STEP_ERRORS."""
        ...

    def state(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """Read the state of an instance; None if it does not exist. settled: after a call that may still be running on
        the host has ended. Raises UNAVAILABLE_ERROR.
        """
        ...

    def boot_id(self) -> str:
        """Return the id of the present boot."""
        ...


class Loop:
    """A run in progress. record: its state by the journal; host: the last answers of the host; changed: the number of
    steps done by this process.

    Subclasses write the journal, reach the host, and make the errors with which a run stops.
    """

    UNAVAILABLE_ERROR: type[Exception] = MissingFact
    """The error that a session's `state` raises for an instance that cannot exist yet, or any more."""
    STEP_ERRORS: tuple[type[Exception], ...] = ()
    """The errors that a session's `set` raises for a failed step; `step_failure` converts them."""

    session: Session
    record: Changes
    host: HostAnswers
    changed: int

    # ---- the host

    def read_host(self) -> None:
        """Read all of the host into `host`."""
        raise NotImplementedError

    def restart_host(self, boot: str) -> str:
        """Restart the host and return the id of the new boot. Raises the error that ends the run if it cannot be
        restarted from here.
        """
        raise NotImplementedError

    def check_restarted(self) -> None:
        """Raise if the restart booted another system than the expected one."""

    def remove_marks(self, keep: Iterable[Id]) -> None:
        """Remove the marks of the run from the host. keep: the resources whose marks stay."""
        raise NotImplementedError

    # ---- the journal, and progress

    @property
    def marked_run(self) -> MarkedRun:
        """The run in the form that marks on the host name it."""
        raise NotImplementedError

    def write(self, event: str, **fields: Any) -> None:
        """Append an entry to the journal. It is on disk, and in `record`, when this returns."""
        raise NotImplementedError

    def report(self, kind: str, text: str, step: Step | None = None, number: int = 0, total: int = 0) -> None:
        """Report progress to the user."""

    # ---- what stops a run

    @property
    def consents(self) -> frozenset[str]:
        """The consents that were given for the present direction: applying or rolling back."""
        raise NotImplementedError

    def step_failure(self, step: Step, error: Exception) -> StepFailure:
        """Convert one of STEP_ERRORS to the failure of this step."""
        raise NotImplementedError

    def require_consents(self, steps: Sequence[Step]) -> None:
        """Raise if a step needs a consent that was not given."""
        raise NotImplementedError

    def stop_if_requested(self) -> None:
        """Raise if the user has asked to stop. Called between two steps."""

    def not_applied(self, step: Step, unmet: Mapping[str, tuple[Json, Json]]) -> Exception:
        """Make the error for a step that the host accepted without applying it. unmet: by property, the desired value
        and the present one.
        """
        raise NotImplementedError

    # ---- steps

    def run_steps(self, steps: Sequence[Step]) -> None:
        """Run the steps in their order, then the restart that they need."""
        self.require_consents(steps)
        for number, step in enumerate(steps, start=1):
            self.stop_if_requested()
            self._run_step(step, number, len(steps))
        if self.record.restart_due:
            self.stop_if_requested()
            self._restart()

    def _run_step(self, step: Step, number: int, total: int) -> None:
        found = {**(self.host.state_of(step.resource, step.key) or {}), **step.before}
        users = []
        with suppress(MissingFact):  # with fewer known dependents, rollback keeps more resources, not fewer
            users = [_dependent_entry(each) for _, each in dependents_of(step.resource, step.key, self.host).values()]
        self.write("begin", step=_step_entry(step), found=found, users=users)
        self.report("step", step.title, step, number, total)
        # A rollback step writes no mark: the run's own marks stay until all of it is undone.
        mark = None if self.record.going_back else mark_of(self.marked_run, step)
        try:
            answer = self.session.set(step, self.consents, mark)
        except self.STEP_ERRORS as error:
            answer = self.step_failure(step, error)
        if isinstance(answer, StepFailure) and answer.drifted:
            answer = self._answer_if_already_met(step) or answer
        instance = {"resource": step.resource, "key": dict(step.key)}
        if isinstance(answer, StepFailure):
            # After drift this step has changed nothing: the drift is somebody else's change.
            after = found if answer.drifted else answer.after
            self.write("failed", **instance, after=None if after is None else dict(after), **answer.details)
            self.report("failed", f"{step.title}: {answer.details.get('error', '')}", step)
            raise answer.error
        for warning in answer.warnings:
            self.report("note", f"{step.title}: the host warns: {warning}", step)
        self.write(
            "end",
            **instance,
            before=dict(answer.before),
            after=dict(answer.after) or None,
            # A restart that the plan did not show has no consent.
            restart=answer.restart and step.restarts,
            warnings=list(answer.warnings),
        )
        self.changed += 1
        unmet = {n: (v, answer.after.get(n)) for n, v in step.desired.items() if answer.after.get(n) != v}
        if unmet and not answer.restart:
            raise self.not_applied(step, unmet)
        self.report("done", step.title, step, number, total)

    def _answer_if_already_met(self, step: Step) -> SetAnswer | None:
        """Return the answer for a step whose goal an earlier step of the run has met already; None if it is not met. A
        distro that is started, for example, opens its SSH access too.
        """
        if len(self.record.touched) == 1 or step.role == "need":
            return None
        now = self.session.state(step.resource, step.key) or {}
        is_met = all(now.get(name) == value for name, value in step.desired.items())
        return SetAnswer({**now, **step.before}, now) if is_met else None

    def record_dependents(self) -> None:
        """Write the dependents of all changed resources to the journal, after each stage. Unreadable ones are
        left out.
        """
        entries = []
        for touched in self.record.touched.values():
            if touched.dependents is None and self.host.rules[touched.resource].dependents:
                with suppress(MissingFact):
                    users = [
                        _dependent_entry(user) for user in present_dependents(touched.resource, touched.key, self.host)
                    ]
                    entries.append({"resource": touched.resource, "key": dict(touched.key), "users": users})
        if entries:
            self.write("dependents", resources=entries)

    # ---- restarts

    def finish_restart(self) -> None:
        """Do the restart that a killed run was waiting for, or had not yet requested."""
        if self.needs_restart():
            self._restart()

    def needs_restart(self) -> bool:
        """Tell whether a restart is due: by the journal; or because the run was killed during rollback after a step
        that needs a restart and before its end was written, so that no remaining step would request it.
        """
        step = self.record.in_flight
        if step is None:
            return self.record.restart_due
        if not step.restarts or not self.record.going_back:
            return False
        now = self.session.state(step.resource, step.key, settled=True) or {}
        return now.get("restart_due") is True and all(now.get(name) == value for name, value in step.desired.items())

    def _restart(self) -> None:
        """Restart the host, then read the resources whose changes took effect with that."""
        boot = self.record.restarting_from
        if boot is None:
            boot = self.session.boot_id()
            self.write("restarting", boot_id=boot)
        new = self.restart_host(boot)
        states = []
        for touched in self.record.touched.values():
            if self.takes_effect_with_restart(touched.resource):
                with suppress(
                    self.UNAVAILABLE_ERROR
                ):  # a resource in a Linux that is removed or not up yet keeps its state
                    after = self.session.state(touched.resource, touched.key)
                    instance = {"resource": touched.resource, "key": dict(touched.key)}
                    states.append({**instance, "after": after and dict(after)})
        self.write("restarted", boot_id=new, left=states)
        self.check_restarted()
        self.report("done", "restarted")

    def takes_effect_with_restart(self, resource: str) -> bool:
        """Tell whether changes of this resource can take effect with a restart."""
        return self.host.rules[resource].restarts

    # ---- rollback

    def rollback_goals(self, restored: Set[Id]) -> Sequence[DesiredResource]:
        """Decide what is restored, by `host`. restored: resources that this rollback has restored already."""
        raise NotImplementedError

    def turn_of(self, goal: DesiredResource) -> Turn:
        """Return the turn in which a goal is restored."""
        return turn_of(goal, self.host.rules)

    def rollback_steps(self, goals: Sequence[DesiredResource]) -> tuple[Step, ...]:
        """Return the ordered steps that reach these goals."""
        raise NotImplementedError

    def require_rollback_consents(self, steps: Sequence[Step]) -> None:
        """Raise if a step of the whole rollback needs a consent that was not given."""
        self.require_consents(steps)

    def start_rollback(self) -> None:
        """Write to the journal that the rollback starts."""
        raise NotImplementedError

    def roll_back(self) -> Sequence[DesiredResource]:
        """Check all consents, so that a refusal leaves the run as it was, then undo what can be undone. Returns the
        goals that hold in the end.
        """
        goals = self.rollback_goals(frozenset())
        self.require_rollback_consents(self.all_rollback_steps(goals))
        self.start_rollback()
        restored: set[Id] = set()
        for turn in Turn:
            tried: set[Id] = set()
            # Undoing a resource may free another one that was kept for it: the switch that a distro was bridged to.
            while batch := [each for each in goals if self.turn_of(each) is turn and _id(each) not in tried]:
                tried |= {_id(goal) for goal in batch}
                restored |= tried
                self.run_steps(self.rollback_steps(batch))
                self.read_host()
                goals = self.rollback_goals(restored)
        return goals

    def all_rollback_steps(self, goals: Sequence[DesiredResource]) -> tuple[Step, ...]:
        """Return the steps that a rollback would run now, in order of turns."""
        return tuple(step for batch in group_by_turn(goals, self.turn_of) for step in self.rollback_steps(batch))

    def finish_rollback(self, open_ids: Set[Id], outcome: str) -> None:
        """Write to the journal that all changed resources except `open_ids` are restored for good, and remove their
        marks from the host.
        """
        final = [touched for id_, touched in self.record.touched.items() if id_ not in open_ids]
        if self.record.restored != {_id(each) for each in final}:
            self.write("restored", resources=[{"resource": t.resource, "key": dict(t.key)} for t in final])
        self.remove_marks(() if outcome == "rolled back" else open_ids)


def _id(each: Any) -> Id:
    return identity(each.resource, each.key)


def _step_entry(step: Step) -> dict[str, Json]:
    """Return a step as JSON for the journal."""
    entry: dict[str, Json] = {each.name: getattr(step, each.name) for each in fields(step)}
    mappings = {name: dict(value) for name, value in entry.items() if isinstance(value, Mapping)}
    return {**entry, **mappings, "risks": list(step.risks), "may_need": list(step.may_need)}


def _dependent_entry(each: Dependent) -> dict[str, Json]:
    return {"resource": each.resource, "key": dict(each.key), "state": None if each.state is None else dict(each.state)}
