"""A run at work on a host, forward and back: each step is in its journal before it is begun and once it is done.

The engine does this over a connection, and run.py of an offline package in the Linux itself.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import fields
from typing import Any, Protocol

from .answers import HostAnswers, Id, Json, Key, MissingFact, identity
from .changes import Changes, Dependent
from .dataclass import dataclass
from .dependents import dependents_of, seen
from .marks import MarkedRun, mark_of
from .rollback import Turn, in_turns, turn_of
from .steps import DesiredResource, SetAnswer, Step


@dataclass(frozen=True)
class NotSet:
    """The host did not do a step. drifted: nothing was changed, because it was not as the step expected; after: what is
    so now, where the host could tell; told: what the journal says of it; error: what the run ends with.
    """

    error: Exception
    told: Mapping[str, Json]
    drifted: bool = False
    after: Mapping[str, Json] | None = None


class Session(Protocol):
    """The machine that a run changes: over a connection, or the one that this runs on."""

    def set(self, step: Step, accepted: frozenset[str], mark: str | None) -> SetAnswer | NotSet:
        """Do a step. mark: kept on the host from before the change. Raises NOT_DONE."""
        ...

    def state(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """One state as it is now, or None where there is no such instance. Raises UNAVAILABLE."""
        ...

    def boot_id(self) -> str:
        """The id of the present boot."""
        ...


class Loop:
    """record: what the journal adds up to; host: what the host answered last; changed: steps done by this process.

    Whoever inherits says where the journal lies, and how a run ends before its end.
    """

    UNAVAILABLE: type[Exception] = MissingFact
    """The error that a session's `state` raises for something that cannot be there yet, or any more."""
    NOT_DONE: tuple[type[Exception], ...] = ()
    """The errors that a session's `set` raises for a step that the host did not do, for `not_set`."""

    session: Session
    record: Changes
    host: HostAnswers
    changed: int

    # ---- what the host is asked

    def look(self) -> None:
        """Read all of the host into `host`."""
        raise NotImplementedError

    def restart_host(self, boot: str) -> str:
        """Returns the id of the boot that came after this one. Raises what ends the run where nobody restarts it."""
        raise NotImplementedError

    def check_restarted(self) -> None:
        """Raises if another system runs after the restart than the one that was to start."""

    def forget(self, but: Iterable[Id]) -> None:
        """Take the marks of the run off the host, but those of these resources."""
        raise NotImplementedError

    # ---- what is kept and said of the run

    @property
    def marked(self) -> MarkedRun:
        """The run as marks on the host name it."""
        raise NotImplementedError

    def write(self, event: str, **fields: Any) -> None:
        """Write an entry to the journal. It is on disk, and in `record`, when this returns."""
        raise NotImplementedError

    def tell(self, kind: str, text: str, step: Step | None = None, number: int = 0, total: int = 0) -> None:
        """Report progress to whoever watches."""

    # ---- what ends it before its end

    @property
    def consents(self) -> frozenset[str]:
        """The consents for the direction in which it goes."""
        raise NotImplementedError

    def not_set(self, step: Step, error: Exception) -> NotSet:
        """Say of an error of NOT_DONE what it means for the run."""
        raise NotImplementedError

    def refuse_without_consent(self, steps: Sequence[Step]) -> None:
        """Raises where a step needs a consent that was not given."""
        raise NotImplementedError

    def stop_if_asked(self) -> None:
        """Raise between two steps if somebody asked to stop."""

    def not_taken(self, step: Step, lacking: Mapping[str, tuple[Json, Json]]) -> Exception:
        """The host accepted a step and did something else. lacking: by property, what was desired and what is found."""
        raise NotImplementedError

    # ---- steps

    def do(self, steps: Sequence[Step]) -> None:
        """Do the steps in their order, then the restart that they ask for."""
        self.refuse_without_consent(steps)
        for number, step in enumerate(steps, start=1):
            self.stop_if_asked()
            self._do(step, number, len(steps))
        if self.record.restart_due:
            self.stop_if_asked()
            self._restart()

    def _do(self, step: Step, number: int, total: int) -> None:
        found = {**(self.host.state_of(step.resource, step.key) or {}), **step.before}
        users = []
        with suppress(MissingFact):  # with fewer known, rollback keeps more, not less
            users = [_user(each) for _, each in dependents_of(step.resource, step.key, self.host).values()]
        self.write("begin", step=_as_entry(step), found=found, users=users)
        self.tell("step", step.title, step, number, total)
        # A step back writes no mark: the run's own marks stay until all of it is undone.
        mark = None if self.record.going_back else mark_of(self.marked, step)
        try:
            answer = self.session.set(step, self.consents, mark)
        except self.NOT_DONE as error:
            answer = self.not_set(step, error)
        if isinstance(answer, NotSet) and answer.drifted:
            answer = self._brought_along(step) or answer
        about = {"resource": step.resource, "key": dict(step.key)}
        if isinstance(answer, NotSet):
            # After drift, the host is as it was found, and what somebody did meanwhile is not the run's doing.
            after = found if answer.drifted else answer.after
            self.write("failed", **about, after=None if after is None else dict(after), **answer.told)
            self.tell("failed", f"{step.title}: {answer.told.get('error', '')}", step)
            raise answer.error
        for warning in answer.warnings:
            self.tell("note", f"{step.title}: the host warns: {warning}", step)
        self.write(
            "end",
            **about,
            before=dict(answer.before),
            after=dict(answer.after) or None,
            # Nobody agreed to a restart that the plan did not show.
            restart=answer.restart and step.restarts,
            warnings=list(answer.warnings),
        )
        self.changed += 1
        lacking = {n: (v, answer.after.get(n)) for n, v in step.desired.items() if answer.after.get(n) != v}
        if lacking and not answer.restart:
            raise self.not_taken(step, lacking)
        self.tell("done", step.title, step, number, total)

    def _brought_along(self, step: Step) -> SetAnswer | None:
        """The answer for a step whose goal an earlier step has met: a distro that starts opens its way in again."""
        if len(self.record.touched) == 1 or step.role == "need":
            return None
        now = self.session.state(step.resource, step.key) or {}
        so = all(now.get(name) == value for name, value in step.desired.items())
        return SetAnswer({**now, **step.before}, now) if so else None

    def note_dependents(self) -> None:
        """Record the dependents of what was changed so far, once after each stage; unreadable ones are left out."""
        noted = []
        for each in self.record.touched.values():
            if each.dependents is None and self.host.rules[each.resource].dependents:
                with suppress(MissingFact):
                    users = [_user(user) for user in seen(each.resource, each.key, self.host)]
                    noted.append({"resource": each.resource, "key": dict(each.key), "users": users})
        if noted:
            self.write("dependents", resources=noted)

    # ---- restarts

    def finish_restart(self) -> None:
        """Do the restart that a killed run was waiting for, or had still to ask for."""
        if self.owes_restart():
            self._restart()

    def owes_restart(self) -> bool:
        """Tell whether a restart is due: one was asked for; or the run was killed on the way back after a step that
        needs one and before its end was written, and no step that is left would ask for it.
        """
        step = self.record.in_flight
        if step is None:
            return self.record.restart_due
        if not step.restarts or not self.record.going_back:
            return False
        now = self.session.state(step.resource, step.key, settled=True) or {}
        return now.get("restart_due") is True and all(now.get(name) == value for name, value in step.desired.items())

    def _restart(self) -> None:
        """Restart the host and read what took effect with it."""
        boot = self.record.restarting_from
        if boot is None:
            boot = self.session.boot_id()
            self.write("restarting", boot_id=boot)
        new = self.restart_host(boot)
        left = []
        for touched in self.record.touched.values():
            if self.restarts(touched.resource):
                with suppress(self.UNAVAILABLE):  # what is in a Linux that is gone or not up yet stays as known
                    after = self.session.state(touched.resource, touched.key)
                    about = {"resource": touched.resource, "key": dict(touched.key)}
                    left.append({**about, "after": after and dict(after)})
        self.write("restarted", boot_id=new, left=left)
        self.check_restarted()
        self.tell("done", "restarted")

    def restarts(self, resource: str) -> bool:
        """Tell whether changes of this resource can take effect with a restart."""
        return self.host.rules[resource].restarts

    # ---- back

    def goals_back(self, put_back: Set[Id]) -> Sequence[DesiredResource]:
        """The goals of the way back, by `host`. put_back: what this rollback has restored already."""
        raise NotImplementedError

    def turn_of(self, goal: DesiredResource) -> Turn:
        """Say when a goal goes back."""
        return turn_of(goal, self.host.rules)

    def steps_back(self, goals: Sequence[DesiredResource]) -> tuple[Step, ...]:
        """Ordered steps to these goals."""
        raise NotImplementedError

    def refuse_to_go_back(self, steps: Sequence[Step]) -> None:
        """Raises where one of all steps back needs a consent that was not given."""
        self.refuse_without_consent(steps)

    def turn_back(self) -> None:
        """Write that from here on the run goes back."""
        raise NotImplementedError

    def go_back(self) -> Sequence[DesiredResource]:
        """Undo what can be undone, after checking all consents, so that a refusal leaves the run as it was. Returns the
        goals that hold in the end.
        """
        goals = self.goals_back(frozenset())
        self.refuse_to_go_back(self.all_steps_back(goals))
        self.turn_back()
        put_back: set[Id] = set()
        for turn in Turn:
            tried: set[Id] = set()
            # What is undone may free what was kept for it, such as the switch that a distro of this run was bridged to.
            while part := [each for each in goals if self.turn_of(each) is turn and _id(each) not in tried]:
                tried |= {_id(goal) for goal in part}
                put_back |= tried
                self.do(self.steps_back(part))
                self.look()
                goals = self.goals_back(put_back)
        return goals

    def all_steps_back(self, goals: Sequence[DesiredResource]) -> tuple[Step, ...]:
        """The steps of the way back as they would be taken now, turn by turn."""
        return tuple(step for part in in_turns(goals, self.turn_of) for step in self.steps_back(part))

    def give_up(self, still: Set[Id], outcome: str) -> None:
        """Note what is restored for good, all but `still`, and take its marks off the host."""
        given = [touched for id_, touched in self.record.touched.items() if id_ not in still]
        if self.record.restored != {_id(each) for each in given}:
            self.write("restored", resources=[{"resource": t.resource, "key": dict(t.key)} for t in given])
        self.forget(() if outcome == "rolled back" else still)


def _id(each: Any) -> Id:
    return identity(each.resource, each.key)


def _as_entry(step: Step) -> dict[str, Json]:
    """A step as the journal has it."""
    entry: dict[str, Json] = {each.name: getattr(step, each.name) for each in fields(step)}
    plain = {name: dict(value) for name, value in entry.items() if isinstance(value, Mapping)}
    return {**entry, **plain, "risks": list(step.risks), "may_need": list(step.may_need)}


def _user(each: Dependent) -> dict[str, Json]:
    return {"resource": each.resource, "key": dict(each.key), "state": None if each.state is None else dict(each.state)}
