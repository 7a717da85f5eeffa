"""Of run.py in an offline package: what is so, what is to be done, and doing it, forward and back alike."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from winhost.bundle.linux_journal import Run
from winhost.bundle.linux_run import Bundle, BundleRefusal, ask, format_value, read
from winhost.core.answers import MissingFact, Record, Unavailable, Unknown, fault, identity
from winhost.core.came_since import judge
from winhost.core.checks import Check, check
from winhost.core.dependents import resting
from winhost.core.host_answers import HostAnswers
from winhost.core.marks import mark_of, moved_since, read_marks, without
from winhost.core.order import NoInstance, differences, steps_for
from winhost.core.rules import ResourceRules, from_json, restarted_by_its_vm
from winhost.core.steps import DesiredResource, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from winhost.bundle.linux_run import State
    from winhost.core.changes import ChangedResource
    from winhost.core.marks import Mark, MarkedRun

GO_BACK = "python3 -I run.py rollback"
KEEP = "Log in again over SSH, then type the same there. At the machine itself: look whether SSH works, then add --keep"
AGAIN = f"Mend that and type the same again to go on; or go back: {GO_BACK}"


def host_of(bundle: Bundle) -> HostAnswers:
    rules = {name: from_json(ResourceRules, declared) for name, declared in bundle.resources.items()}
    if bundle.is_guest:
        rules = {name: restarted_by_its_vm(each) for name, each in rules.items()}
    answers = {name: answer_of(each) for name, each in read(bundle, bundle.changeable).items()}
    unlisted = HostAnswers(answers, rules).unlisted(identity(goal.resource, goal.key) for goal in goals_of(bundle))
    calls = [{"resource": name, "verb": "get", "key": dict(key)} for name, key in unlisted]
    for (name, key), answer in zip(unlisted, ask(bundle, calls)):
        unread = {each: {"unknown": answer["error"]} for each in rules[name].sets} if "error" in answer else None
        state, listed = answer.get("state", unread), answers[name]
        if state is not None and isinstance(listed, tuple):
            answers[name] = (*listed, Record(state, dict(key)))
    return HostAnswers(answers, rules)


def answer_of(answer: State) -> tuple[Record, ...] | Unknown | Unavailable:
    if answer["ok"]:
        return tuple(Record(each["state"], each["key"]) for each in answer["instances"])
    return Unavailable(answer["unavailable"]) if "unavailable" in answer else Unknown(fault(answer["error"]))


def why(bundle: Bundle, missing: Unknown | Unavailable) -> str:
    if isinstance(missing, Unavailable):
        return f"it needs {bundle.titled(missing.unavailable)} first"
    return f"{missing.unknown.message} [{missing.unknown.code}]"


def why_unread(bundle: Bundle, missing: MissingFact, of: str) -> str:
    """of: the resource that the sentence is about."""
    resource, _, name = missing.fact.partition(".")
    if resource not in (of, *bundle.resources):
        resource, name = of, resource
    about = bundle.titled(resource) if resource != of else ""
    parts = (about, f"({name})" if about and name else name)
    told = " ".join(part for part in parts if part)
    return f"{told}: {why(bundle, missing.missing)}" if told else why(bundle, missing.missing)


def goals_of(bundle: Bundle) -> list[DesiredResource]:
    return [DesiredResource(**each) for each in bundle.stage["desired"]]


def compared(bundle: Bundle, goals: list[DesiredResource], host: HostAnswers) -> list[Check]:
    return [found for goal in goals for found in check(goal, host, lambda missing: why(bundle, missing.missing))]


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
            meaning = "What cannot be read cannot be given back." if name else "What cannot be read is not changed."
            raise BundleRefusal(
                1, "CannotRead", f"{what} cannot be read: {why(bundle, missing.missing)}", meaning
            ) from None
    return steps_for(goals, host, role=role, backwards=role == "undo")


def as_document(step: Step) -> State:
    names = ("resource", "key", "role", "before", "desired", "title", "restarts")
    return {**{name: getattr(step, name) for name in names}, "risks": list(step.risks)}


def refuse_drift(run: Run, host: HostAnswers) -> None:
    """A goal must stand where the plan saw it, or already where it shall be; what no step of the plan shows must be so
    already. What this run moved itself may differ.
    """
    steps = {identity(step["resource"], step["key"]): step for step in run.bundle.stage["steps"]}
    lines = []
    for goal in goals_of(run.bundle):
        id_ = identity(goal.resource, goal.key)
        if id_ in run.record.touched:
            continue
        state, step = state_of(run.bundle, goal, host), steps.get(id_, {"before": {}})
        for name, desired in goal.desired.items():
            found, before = state.get(name), step["before"].get(name, desired)
            if found not in (desired, before):
                lines.append(f"{goal.title}: {name} was {format_value(before)}, is {format_value(found)}")
    if lines:
        what = "the machine is no longer as the plan saw it; nothing was changed"
        raise BundleRefusal(4, "Drifted", what, "\n".join(lines), "Read it again with `facts` and plan again.")


def state_of(bundle: Bundle, each: DesiredResource | Step, host: HostAnswers) -> State:
    """Empty where there is no such instance."""
    try:
        return dict(host.state_of(each.resource, each.key) or {})
    except MissingFact as missing:
        what = f"{bundle.titled(each.resource)} cannot be read: {why(bundle, missing.missing)}"
        raise BundleRefusal(1, "CannotRead", what, "What cannot be read is not changed.") from None


def do(run: Run, steps: tuple[Step, ...], host: HostAnswers) -> None:
    lacking = sorted({risk for step in steps for risk in step.risks} - {*run.accepted})
    if lacking:
        again = ",".join((*run.accepted, *lacking))
        what, meaning = f"this needs your consent: {', '.join(lacking)}", "Nothing was changed."
        raise BundleRefusal(2, "ConsentNeeded", what, meaning, f"The readme says what for. Then add --accept {again}")
    for step, line in zip(steps, step_lines(steps)):
        if run.asked_to_stop:
            what = f"stopped as you asked, changes: {run.changed}"
            raise BundleRefusal(1, "Stopped", what, "", f"Type the same again to go on; or go back: {GO_BACK}")
        run.say(line)
        do_step(run, step, state_of(run.bundle, step, host))


def secret(reference: str) -> str:
    """What a reference leads to here. It goes to the agent of this very process, and nowhere else."""
    scheme, _, target = reference.partition(":")
    found = None
    if scheme == "env":
        found = os.environ.get(target)
    elif scheme == "file":
        with suppress(OSError), open(os.path.expanduser(target), encoding="utf-8") as file:  # noqa: PTH111, PTH123
            found = file.read().rstrip("\r\n")
    if not found:
        meaning = "Here, a secret is an environment variable (env:NAME) or a file (file:/PATH)."
        raise BundleRefusal(2, "SecretUnreadable", f"the secret {reference} cannot be read", meaning)
    return found


def do_step(run: Run, step: Step, found: State) -> None:
    run.write("begin", step=as_document(step), found={**found, **step.before})
    known_as = {"resource": step.resource, "key": step.key}
    asked = {*step.risks, *step.may_need}
    # On the way back it has its marks already: they stay until all of it is back.
    mark = {} if run.record.going_back else {"mark": mark_of(run.marked, step)}
    how = {"accept": [each for each in run.accepted if each in asked], "within": run.within, **mark}
    if run.keeps:
        how["keep"] = True
    reference = step.desired.get(run.bundle.credential_of(step.resource))
    if reference:
        how["secret"] = secret(reference)
    call = {"verb": "set", **known_as, "desired": step.desired, "expect": step.before, "how": how}
    answer = brought(run, step, ask(run.bundle, [call])[0])
    for warning in answer.get("warnings", []):
        run.say(f"  it warns: {warning}")
    if not answer["ok"]:
        # Nothing was changed where it drifted; after an error the agent has read again.
        after = answer["before"] if "drift" in answer else answer.get("after")
        read_again = isinstance(after, dict) and set(after) not in ({"unknown"}, {"unavailable"})
        run.write("failed", after=after if read_again else None, answer=answer, **known_as)
        raise failed(run.bundle, step, answer)
    restart = step.restarts and bool(answer.get("restart"))
    run.write("end", after=answer["after"], restart=restart, **known_as)
    run.changed += 1
    if restart:
        return
    for name, desired in step.desired.items():
        if answer["after"].get(name) != desired:
            what = f"{step.title}: accepted without error, but {name} is {format_value(answer['after'].get(name))}"
            raise BundleRefusal(1, "NotTaken", what, "", AGAIN)


def brought(run: Run, step: Step, answer: State) -> State:
    """What a step before it has brought along needs nothing more: a package that starts its unit."""
    first = len(run.record.touched) == 1
    if "drift" not in answer or first or any(answer["before"].get(n) != each for n, each in step.desired.items()):
        return answer
    return {"ok": True, "after": answer["before"]}


def failed(bundle: Bundle, step: Step, answer: State) -> BundleRefusal:
    if "drift" in answer:
        changes = [
            f"{n} was {format_value(d['expected'])}, is {format_value(d['found'])}" for n, d in answer["drift"].items()
        ]
        return BundleRefusal(4, "Drifted", f"{step.title}: changed by somebody meanwhile", "\n".join(changes), AGAIN)
    if answer.get("error", {}).get("code") == "Winhost.ComeBack":
        what = f"{step.title}: done, and undone by this machine itself unless you keep it"
        return BundleRefusal(1, "NotKept", what, answer["error"]["message"], KEEP)
    meaning = "Steps before this one are done and journalled."
    missing = answer_of(answer)
    assert not isinstance(missing, tuple)
    return BundleRefusal(1, "StepFailed", f"{step.title}: {why(bundle, missing)}", meaning, AGAIN)


def note_dependents(run: Run, host: HostAnswers) -> None:
    """What rests on what was changed: on the way back, it is told from what came since."""
    dependents = []
    for each in run.record.touched.values():
        if each.dependents is None and host.rules[each.resource].rests:
            with suppress(MissingFact):
                users = [user for _, user in resting(each.resource, each.key, host).values()]
                told = [{"resource": user.resource, "key": user.key} for user in users]
                dependents.append({"resource": each.resource, "key": each.key, "users": told})
    if dependents:
        run.write("dependents", resting=dependents)


class Back(NamedTuple):
    """What is to be put back, why the rest is left as it is, and what could not be judged. waits: some of it goes back
    only when what came since is taken back. open: all that stays for that. first: how runs are rolled back that it
    waits for.
    """

    goals: list[DesiredResource]
    kept: list[str]
    missing: list[State]
    waits: bool
    open: list[State]
    first: list[str]

    @property
    def sentences(self) -> list[str]:
        return [*self.kept, *(f"{each['title']}: not judged: {each['why']}" for each in self.missing)]


def find_back(run: Run, host: HostAnswers) -> Back:
    verdicts, back = judge(run.record, host), Back([], [], [], False, [], [])
    marks, waits = read_marks(marks_of(run)), bool(verdicts.waiting)
    for id_, each in run.record.touched.items():
        known_as = {"resource": each.resource, "key": each.key}
        rest = verdicts.rests(id_)
        if rest:
            back.goals.append(DesiredResource(each.resource, each.key, rest, each.title, "As it was found."))
        kept = verdicts.kept.get(id_)
        movers = find_movers(run, each, each.original.keys() - rest.keys(), marks, host)
        if movers and id_ not in {*verdicts.waiting, *verdicts.missing, *run.record.restored}:
            kept = f"changed since by run {', '.join(map(str, movers))}; roll that back, then this again"
            back.first.extend(each.rollback for each in movers if each.rollback not in back.first)
            waits = True
        if kept:
            back.kept.append(f"{each.title}: kept: {kept}")
        if id_ in verdicts.missing:
            unread = why_unread(run.bundle, verdicts.missing[id_], each.resource)
            back.missing.append({**known_as, "title": each.title, "why": unread})
        if rest or kept or id_ in verdicts.missing:
            back.open.append(known_as)
    return back._replace(waits=waits)


def find_movers(
    run: Run, touched: ChangedResource, names: Iterable[str], marks: Sequence[Mark], host: HostAnswers
) -> tuple[MarkedRun, ...]:
    with suppress(MissingFact):
        now = host.state_of(touched.resource, touched.key)
        return moved_since(touched, names, marks, run.marked.id, now) if now else ()
    return ()


def marks_of(run: Run) -> list[str]:
    answer = ask(run.bundle, [{"resource": "RunMarks", "verb": "get", "key": {}}])[0]
    if not answer["ok"]:
        what = f"what other runs changed here cannot be read: {why(run.bundle, Unknown(fault(answer['error'])))}"
        raise BundleRefusal(1, "CannotRead", what, "Nothing is put back without it.", AGAIN)
    return list(answer["state"]["marks"])


def forget(run: Run, still: list[State]) -> None:
    """Its marks, but of what it still keeps."""
    known = marks_of(run)
    lines = without(known, run.marked.id, [identity(each["resource"], each["key"]) for each in still])
    if lines != known:
        call = {
            "resource": "RunMarks",
            "verb": "set",
            "key": {},
            "desired": {"marks": lines},
            "expect": {"marks": known},
        }
        ask(run.bundle, [call])  # marks that stay say what is not so, and do no harm


def step_lines(steps: tuple[Step, ...]) -> list[str]:
    lines = []
    for number, step in enumerate(steps, 1):
        moves = [
            f"{name} {format_value(step.before[name])} -> {format_value(desired)}"
            for name, desired in step.desired.items()
        ]
        lines.append(f"[{number}/{len(steps)}] {step.title}: {', '.join(moves)}")
    return lines


def check_lines(checks: list[Check], every: bool) -> list[str]:
    lines = []
    for each in checks:
        if not each.holds:
            text = f"{each.property} should be {format_value(each.desired)}, is {format_value(each.found)}"
            lines.append(f"  NOT SO  {each.title}: {text}")
        elif every:
            lines.append(f"  ok      {each.title}: {each.property} is {format_value(each.desired)}")
    return lines
