"""Core's loop for the Linux on which an offline package runs, and the messages about a run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from winhost.bundle.linux_bundle import Bundle, BundleRefusal, call_agent, format_value, read_resources, visible
from winhost.bundle.linux_journal import BundleRun, Journal, parse_step
from winhost.core.answers import HostAnswers, MissingFact, Record, Unavailable, Unknown, fault, identity
from winhost.core.checks import Check, check, find_drift
from winhost.core.loop import Loop, StepFailure
from winhost.core.marks import BUNDLE, MarkedRun, read_marks, remove_run_marks
from winhost.core.order import NoInstance, differences, steps_for
from winhost.core.rollback import LaterRuns, Outlook, outlook
from winhost.core.rules import ResourceRules, from_json, restarted_by_its_vm
from winhost.core.steps import DesiredResource, SetAnswer, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Set

    from winhost.bundle.linux_bundle import State
    from winhost.core.answers import Id, Json, Key

REPORT_S = 5.0  # seconds between reports of what the agent waits for, as over a wire
ROLLBACK_COMMAND = "python3 -I run.py rollback"
KEEP_HINT = (
    "Log in again over SSH, then repeat the command there. At the machine itself: check that SSH works, then add --keep"
)
RETRY_HINT = f"Mend that and repeat the command to continue; or roll back: {ROLLBACK_COMMAND}"


def rules_of(bundle: Bundle) -> dict[str, ResourceRules]:
    rules = {name: from_json(ResourceRules, declared) for name, declared in bundle.resources.items()}
    return {name: restarted_by_its_vm(each) for name, each in rules.items()} if bundle.is_guest else rules


def host_of(bundle: Bundle) -> HostAnswers:
    rules = rules_of(bundle)
    answers = {name: answer_of(each) for name, each in read_resources(bundle, bundle.changeable).items()}
    unlisted = HostAnswers(answers, rules).unlisted(identity(goal.resource, goal.key) for goal in goals_of(bundle))
    calls = [{"resource": name, "verb": "get", "key": dict(key)} for name, key in unlisted]
    for (name, key), answer in zip(unlisted, call_agent(bundle, calls)):
        unread = {each: {"unknown": answer["error"]} for each in rules[name].sets} if "error" in answer else None
        state, listed = answer.get("state", unread), answers[name]
        if state is not None and isinstance(listed, tuple):
            answers[name] = (*listed, Record(state, dict(key)))
    return HostAnswers(answers, rules)


def answer_of(answer: State) -> tuple[Record, ...] | Unknown | Unavailable:
    if answer["ok"]:
        return tuple(Record(each["state"], each["key"]) for each in answer["instances"])
    return Unavailable(answer["unavailable"]) if "unavailable" in answer else Unknown(fault(answer["error"]))


def missing_reason(bundle: Bundle, missing: Unknown | Unavailable) -> str:
    if isinstance(missing, Unavailable):
        return f"it needs {bundle.titled(missing.unavailable)} first"
    return f"{missing.unknown.message} [{missing.unknown.code}]"


def describe_unread(bundle: Bundle, missing: MissingFact, subject: str) -> str:
    """Say why a fact could not be read. subject: the resource that the sentence is about."""
    resource, _, name = missing.fact.partition(".")
    if resource not in (subject, *bundle.resources):
        resource, name = subject, resource
    title = bundle.titled(resource) if resource != subject else ""
    parts = (title, f"({name})" if title and name else name)
    description = " ".join(part for part in parts if part)
    return (
        f"{description}: {missing_reason(bundle, missing.missing)}"
        if description
        else missing_reason(bundle, missing.missing)
    )


def goals_of(bundle: Bundle) -> list[DesiredResource]:
    return [DesiredResource(**each) for each in bundle.stage["desired"]]


def check_goals(bundle: Bundle, goals: list[DesiredResource], host: HostAnswers) -> list[Check]:
    return [
        found for goal in goals for found in check(goal, host, lambda missing: missing_reason(bundle, missing.missing))
    ]


def find_steps(bundle: Bundle, goals: list[DesiredResource], host: HostAnswers, role: Any) -> tuple[Step, ...]:
    for goal in goals:
        try:
            differences(goal, host)
        except NoInstance:
            what = f"it is not there any more: {goal.title}"
            raise BundleRefusal(1, "Gone", what, "", "Read it again and plan again.") from None
        except MissingFact as missing:
            name = missing.fact.partition(".")[2]
            what = f"{goal.title}: {name}" if name else bundle.titled(goal.resource)
            meaning = "What cannot be read cannot be restored." if name else "What cannot be read is not changed."
            raise BundleRefusal(
                1, "CannotRead", f"{what} cannot be read: {missing_reason(bundle, missing.missing)}", meaning
            ) from None
    return steps_for(goals, host, role=role, backwards=role == "undo")


def step_document(step: Step) -> State:
    names = ("resource", "key", "role", "before", "desired", "title", "restarts")
    return {**{name: getattr(step, name) for name in names}, "risks": list(step.risks)}


class WaitReports(list[str]):
    """The agent's list of what it waits for. Changes are reported, at most every REPORT_S seconds."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._next = say, 0.0

    def __setitem__(self, index: Any, text: Any) -> None:
        super().__setitem__(index, text)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPORT_S
            self._say(f"  {text}")


class ThisLinux:
    """The machine on which this runs, as a session of core's loop."""

    def __init__(self, bundle: Bundle, options: argparse.Namespace) -> None:
        self.bundle = bundle
        self.within: int = options.within
        self.keep: bool = options.keep

    def set(self, step: Step, accepted: frozenset[str], mark: str | None) -> SetAnswer | StepFailure:
        how: State = {"accept": sorted(accepted & {*step.risks, *step.may_need}), "within": self.within}
        if mark is not None:
            how["mark"] = mark
        if self.keep:
            how["keep"] = True
        if reference := step.desired.get(self.bundle.credential_of(step.resource)):
            how["secret"] = resolve_secret(reference)
        call = {"verb": "set", "resource": step.resource, "key": step.key}
        answer = call_agent(self.bundle, [{**call, "desired": step.desired, "expect": step.before, "how": how}])[0]
        if answer["ok"]:
            warnings = tuple(answer.get("warnings", ()))
            return SetAnswer(answer["before"], answer["after"] or {}, bool(answer.get("restart")), warnings)
        after = answer.get("after")  # after an error the agent has read again
        read_again = isinstance(after, dict) and set(after) not in ({"unknown"}, {"unavailable"})
        error = step_error(self.bundle, step, answer)
        return StepFailure(error, {"answer": answer}, "drift" in answer, after if read_again else None)

    def state(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        answer = call_agent(self.bundle, [{"resource": resource, "verb": "get", "key": key}], settled)[0]
        if answer["ok"]:
            return answer["state"]  # type: ignore[no-any-return]
        missing = answer_of(answer)
        assert not isinstance(missing, tuple)
        raise MissingFact(resource, missing)

    def boot_id(self) -> str:
        return str((self.state(self.bundle.agent.BOOT, {}) or {})["boot_id"])


class RestartNeeded(Exception):
    """The user has to restart this machine before the run can continue."""


class Run(Loop):
    """A run on this machine. outlook: of its rollback, once that was computed."""

    outlook: Outlook

    def __init__(self, bundle: Bundle, options: argparse.Namespace, journal: Journal) -> None:
        self.bundle, self.journal = bundle, journal
        self.session = ThisLinux(bundle, options)
        self.folder: str = options.journals
        self.accepted = tuple(filter(None, options.accept.split(",")))
        self.check: bool = options.check
        self.quiet: bool = options.json
        self.changed = 0
        self.host = HostAnswers({}, rules_of(bundle))  # nothing is read yet
        self.is_stop_requested = False
        bundle.agent.WAITS = WaitReports(self.say)

    @property
    def record(self) -> BundleRun:  # type: ignore[override]
        return self.journal.record

    @property
    def has_journal(self) -> bool:
        """True once the run has a journal."""
        return self.journal.name != ""

    def say(self, line: str) -> None:
        if not self.quiet:
            with suppress(OSError):
                sys.stdout.write(f"{visible(line)}\n")
                sys.stdout.flush()

    # ---- the machine

    def read_host(self) -> None:
        self.host = host_of(self.bundle)

    def restart_host(self, boot: str) -> str:
        present_boot = self.session.boot_id()
        if present_boot == boot:
            raise RestartNeeded
        return present_boot

    def marks(self) -> list[str]:
        answer = call_agent(self.bundle, [{"resource": "RunMarks", "verb": "get", "key": {}}])[0]
        if not answer["ok"]:
            reason = missing_reason(self.bundle, Unknown(fault(answer["error"])))
            what = f"what other runs changed here cannot be read: {reason}"
            raise BundleRefusal(1, "CannotRead", what, "Nothing is rolled back without it.", RETRY_HINT)
        return list(answer["state"]["marks"])

    def remove_marks(self, keep: Iterable[Id]) -> None:
        known = self.marks()
        lines = remove_run_marks(known, self.marked_run.id, keep)
        if lines != known:
            call = {"resource": "RunMarks", "verb": "set", "key": {}}
            # If this fails, outdated marks stay, which does no harm.
            call_agent(self.bundle, [{**call, "desired": {"marks": lines}, "expect": {"marks": known}}])

    # ---- journal and progress

    @property
    def marked_run(self) -> MarkedRun:
        return MarkedRun(self.record.run, self.record.id, BUNDLE)

    def write(self, event: str, **fields: Any) -> None:
        self.journal.write(event, fields)

    def report(self, kind: str, text: str, step: Step | None = None, number: int = 0, total: int = 0) -> None:
        if kind == "step" and step is not None:
            self.say(format_step(step, number, total))
        elif kind == "note":
            self.say(f"  {text}")

    # ---- what stops a run

    @property
    def consents(self) -> frozenset[str]:
        return frozenset(self.accepted)

    def require_consents(self, steps: Sequence[Step]) -> None:
        missing = sorted({risk for step in steps for risk in step.risks} - {*self.accepted})
        if missing:
            again = ",".join((*self.accepted, *missing))
            what, meaning = f"this needs your consent: {', '.join(missing)}", "Nothing was changed."
            raise BundleRefusal(
                2, "ConsentNeeded", what, meaning, f"The readme says what for. Then add --accept {again}"
            )

    def stop_if_requested(self) -> None:
        if self.is_stop_requested:
            what = f"stopped as you asked, changes: {self.changed}"
            raise BundleRefusal(
                1, "Stopped", what, "", f"Repeat the command to continue; or roll back: {ROLLBACK_COMMAND}"
            )

    def not_applied(self, step: Step, unmet: Mapping[str, tuple[Json, Json]]) -> Exception:
        name, (_, found) = next(iter(unmet.items()))
        what = f"{step.title}: accepted without error, but {name} is {format_value(found)}"
        return BundleRefusal(1, "NotTaken", what, "", RETRY_HINT)

    # ---- rollback

    def rollback_goals(self, restored: Set[Id]) -> Sequence[DesiredResource]:
        self.outlook = outlook(self.record, self.host, LaterRuns(marks=read_marks(self.marks())), restored)
        return tuple(self.outlook.goals.values())

    def rollback_steps(self, goals: Sequence[DesiredResource]) -> tuple[Step, ...]:
        return find_steps(self.bundle, list(goals), self.host, "undo")

    def start_rollback(self) -> None:
        if not self.record.going_back:
            self.write("back", accepted=list(self.accepted))


def stop_after_step_on_signal(run: Run) -> None:
    """On a signal, stop after the present step instead of in it. The end of the terminal does not stop the run."""

    def stop(number: int, frame: object) -> None:
        run.is_stop_requested = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def refuse_drift(run: Run) -> None:
    """Refuse a machine that differs from the facts of the plan, except in changes of this run."""
    steps = (parse_step({"why": "", **each}) for each in run.bundle.stage["steps"])
    differing = find_drift(run.record, goals_of(run.bundle), steps, run.host)
    if differing:
        lines = [
            f"{name} was {format_value(before)}, is {format_value(now)}" for name, (before, now) in differing.items()
        ]
        what = "the machine is no longer as the plan saw it; nothing was changed"
        raise BundleRefusal(4, "Drifted", what, "\n".join(lines), "Read it again with `facts` and plan again.")


def resolve_secret(reference: str) -> str:
    """Resolve a secret reference on this machine. The secret is passed only to the agent in this process."""
    scheme, _, target = reference.partition(":")
    value = None
    if scheme == "env":
        value = os.environ.get(target)
    elif scheme == "file":
        # Editors on Windows may write a byte order mark.
        path = os.path.expanduser(target)  # noqa: PTH111
        with suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8-sig") as file:  # noqa: PTH123
            value = file.read().rstrip("\r\n")
    if not value:
        meaning = "Here, a secret is an environment variable (env:NAME) or a file of UTF-8 text (file:/PATH)."
        raise BundleRefusal(2, "SecretUnreadable", f"the secret {reference} cannot be read", meaning)
    return value


def step_error(bundle: Bundle, step: Step, answer: State) -> BundleRefusal:
    if "drift" in answer:
        changes = [
            f"{name} was {format_value(drift['expected'])}, is {format_value(drift['found'])}"
            for name, drift in answer["drift"].items()
        ]
        return BundleRefusal(
            4, "Drifted", f"{step.title}: changed by somebody meanwhile", "\n".join(changes), RETRY_HINT
        )
    if answer.get("error", {}).get("code") == "Winhost.ComeBack":
        what = f"{step.title}: done, and undone by this machine itself unless you keep it"
        return BundleRefusal(1, "NotKept", what, answer["error"]["message"], KEEP_HINT)
    meaning = "Steps before this one are done and journalled."
    missing = answer_of(answer)
    assert not isinstance(missing, tuple)
    return BundleRefusal(1, "StepFailed", f"{step.title}: {missing_reason(bundle, missing)}", meaning, RETRY_HINT)


def format_step(step: Step, number: int, total: int) -> str:
    changes = [
        f"{name} {format_value(step.before[name])} -> {format_value(desired)}" for name, desired in step.desired.items()
    ]
    return f"[{number}/{total}] {step.title}: {', '.join(changes)}"


def format_checks(checks: list[Check], every: bool) -> list[str]:
    lines = []
    for each in checks:
        if not each.holds:
            text = f"{each.property} should be {format_value(each.desired)}, is {format_value(each.found)}"
            lines.append(f"  NOT SO  {each.title}: {text}")
        elif every:
            lines.append(f"  ok      {each.title}: {each.property} is {format_value(each.desired)}")
    return lines
