#!/usr/bin/python3 -I
"""Does in the Linux itself what plan.json wants of it, with a journal and a way back. For root, in a terminal there.

  python3 -I run.py apply --check           shows the steps; changes nothing and writes nothing
  python3 -I run.py apply                   does them; run again after a crash or a failure, it goes on
  python3 -I run.py verify                  is it so? Changes nothing
  python3 -I run.py rollback [--check]      undoes exactly what apply changed
  python3 -I run.py facts FACTS -o WHOLE    the facts of Facts.ps1, with what this Linux tells; changes nothing

It checks the sums of its folder, that this is the Linux that was planned for, and that it still is as the plan saw it.
Then it does the steps, one by one, each written to the journal before and after, and reads at the end whether all is as
wanted. Ctrl-C ends it after the step that it is at.

Exit codes: 0 done, 1 failure, 2 wrong usage, another machine or changed files, 4 the machine is not as the plan saw it
(or, at the end, not as wanted).

This script is the same for every plan: what is wanted stands in plan.json beside it, and is only ever read as data.
agent.py is what winhost sends over SSH where it is allowed to. Python 3.8 and its standard library are enough.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.isolated:
    # Before anything else is imported: a file of this folder with the name of a module would run in its place.
    sys.stderr.write(f"error: start it as: python3 -I {sys.argv[0]}\n")
    sys.exit(2)

import argparse
import fcntl
import hashlib
import json
import os
import re
import signal
import stat
import time
import types
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    State = dict[str, Any]
    Facts = dict[str, State]

WINHOST = "@winhost@"  # the version that made this
FILES = ("agent.py", "plan.json", "run.py")
SUMS = "SHA256SUMS"
JOURNALS = "/var/lib/winhost/bundles"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"  # the one that WslAccess tells of
SHOWN = 60  # characters of a text

# What can be changed, in the order of changes; each with the rule by which it is undone.
RESOURCES = {
    "LinuxFile": "file",
    "AptSource": "source",
    "DebianPackage": "package",
    "CdiSpec": "spec",
    "SystemdUnit": "unit",
}
# What people call them.
TITLES = {
    "LinuxFile": "files",
    "AptSource": "package sources",
    "DebianPackage": "packages",
    "CdiSpec": "the CDI spec",
    "SystemdUnit": "units",
    "LinuxSystem": "a Linux with apt and systemd",
}
READ_ONLY = ("LinuxSystem", "LinuxGpuDriver")

# What rests on each, so that it is kept for those that came since: of a resource, the instances with one of these
# values of a property, or with any other.
PACKAGES: State = {"resource": "DebianPackage", "property": "version", "values": [None], "with": False}
UNITS: State = {"resource": "SystemdUnit", "property": "enabled", "values": ["enabled"], "with": True}
SPEC: State = {"resource": "CdiSpec", "property": "present", "values": [False], "with": False}
RESTS = {"LinuxFile": (PACKAGES, UNITS), "AptSource": (PACKAGES,), "DebianPackage": (UNITS, SPEC)}


# ==== 1. what is asked, and how it ends


class BundleRefusal(Exception):
    """What happened, what it means, what to do."""

    def __init__(self, code: int, kind: str, what: str, meaning: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.code, self.kind, self.what, self.meaning, self.hint = code, kind, what, meaning, hint

    @property
    def result(self) -> Result:
        document = {
            "kind": self.kind,
            "exit_code": self.code,
            "what": self.what,
            "meaning": self.meaning,
            "hint": self.hint,
        }
        rest = [f"  {line}" for line in (*self.meaning.split("\n"), self.hint) if line]
        return Result(self.code, {"error": document}, [f"error: {self.what}", *rest])


class Result(NamedTuple):
    code: int
    document: State
    lines: list[str]


def words() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("run.py", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in ("apply", "rollback", "verify", "facts"):
        command = commands.add_parser(name)
        command.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
        if name in ("apply", "rollback"):
            command.add_argument("--check", action="store_true", help="show the steps; change and write nothing")
            command.add_argument("--journals", metavar="FOLDER", default=JOURNALS, help=f"by default {JOURNALS}")
            command.add_argument("--within", metavar="SECONDS", type=int, default=300, help="for a slow change")
        if name == "facts":
            command.add_argument("facts", metavar="FACTS", help="what Facts.ps1 wrote; - reads it from standard input")
            command.add_argument("-o", dest="output", metavar="WHOLE", help="a new file; by default it is printed")
    return parser


def main(given: argparse.Namespace, folder: str) -> Result:
    return result_of(lambda: COMMANDS[given.command](open_bundle(folder), given))


def result_of(action: Callable[[], Result]) -> Result:
    try:
        return action()
    except BundleRefusal as refusal:
        return refusal.result
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever reads one document gets one
        return BundleRefusal(1, "Failure", f"{type(error).__name__}: {error}").result


def show(result: Result, as_json: bool) -> None:
    """Whoever left meanwhile misses it; the journal has it."""
    if as_json or "resources" in result.document:
        lines = [json.dumps(result.document)]
    else:
        lines = [visible(line) for line in result.lines]
    with suppress(OSError):
        stream = sys.stderr if "error" in result.document and not as_json else sys.stdout
        stream.write("".join(f"{line}\n" for line in lines))
        stream.flush()


def visible(text: str) -> str:
    """What a terminal would obey, hide or reorder is written as an escape: names are data."""
    return "".join(each if each.isprintable() and each.isascii() else f"\\u{ord(each):04x}" for each in text)


def format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


# ==== 2. apply, rollback, verify, facts


def apply(bundle: Bundle, given: argparse.Namespace) -> Result:
    return as_run(bundle, given, forward)


def rollback(bundle: Bundle, given: argparse.Namespace) -> Result:
    return as_run(bundle, given, backward)


def as_run(bundle: Bundle, given: argparse.Namespace, action: Callable[[Run], Result]) -> Result:
    with running(bundle, given) as run:
        result = result_of(lambda: action(run))
        run.keep(result)
        return result


def forward(run: Run) -> Result:
    resume(run)
    facts = read(run.bundle)
    if run.check or not run.record.stage:
        refuse_drift(run, facts)
        steps = find_steps(run.bundle.desired, facts, "desired")
        if run.check:
            return preview(run, steps, [])
        do(run, steps, facts)
        if run.begun:
            run.write("stage", number=run.bundle.stage["number"])
        facts = read(run.bundle)
    note_dependents(run, facts)
    return applied(run, compared(run.bundle.desired, facts))


def resume(run: Run) -> None:
    """A run of this plan that did not come to its end is gone on with; what has ended is followed by a new run."""
    for name in reversed(run.names()):
        if not name.startswith(f"{run.bundle.sum}."):
            continue
        journal = run.read(name)
        if not journal.entries:
            continue  # begun, nothing done
        if journal.record.back and journal.record.outcome != "rolled back":
            raise BundleRefusal(2, "OneWay", "the last run of this plan is going back", "Nothing was changed.", GO_BACK)
        if not journal.record.outcome:
            run.go_on(name, journal)
        return


def applied(run: Run, checks: list[State]) -> Result:
    outcome = "applied" if all(check["holds"] for check in checks) else "differs"
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
    facts = read(run.bundle)
    back = undone(run, facts)
    steps = find_steps(back.goals, facts, "undo")
    if run.check:
        return preview(run, steps, back.sentences)
    if not run.record.back:
        run.write("back", accepted=[])
    do(run, steps, facts)
    facts = read(run.bundle)
    back = undone(run, facts)
    left = [check for check in compared(back.goals, facts) if not check["holds"]]
    outcome = "not all rolled back" if left or back.missing else "rolled back"
    run.write("outcome", outcome=outcome, waits=back.waits, open=back.open)
    following = ["An earlier run of this plan stands as well. To undo that too: the same once more."] * older
    following += [f"Mend what could not be read, then go on with going back: {GO_BACK}"] * bool(back.missing)
    result = ended(run, outcome, left, back.sentences, following)
    document = {**result.document, "kept": back.kept, "missing": back.missing}
    return Result(1 if back.missing else result.code, document, result.lines)


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
        elif journal.record.outcome != "rolled back" or journal.record.waits:
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
    checks = compared(bundle.desired, read(bundle))
    holds = all(check["holds"] for check in checks)
    host = bundle.plan["host"]
    lines = [*check_lines(checks, every=True), f"{host}: {'as planned' if holds else 'not as planned'}."]
    if bundle.stage["deferred"]:
        lines.append("  This says nothing of later stages, which this plan could not know.")
    return Result(0 if holds else 4, {"host": host, "holds": holds, "checks": checks}, lines)


def tell_facts(bundle: Bundle, given: argparse.Namespace) -> Result:
    refuse_stranger()
    document = facts_of_windows(given.facts)
    answered = ask(
        bundle, [{"resource": resource, "verb": "get"} for resource in (*READ_ONLY, *RESOURCES)], settled=True
    )
    resources = {resource: as_fact(answer) for resource, answer in zip((*READ_ONLY, *RESOURCES), answered)}
    refuse_other_linux(bundle, ways_in(document))
    whole = dict(document, resources={**document["resources"], **resources})
    if given.output is None:
        return Result(0, whole, [])
    made = os.open(given.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(made, "w", encoding="ascii") as file:
        file.write(json.dumps(whole) + "\n")
    return Result(0, {"host": whole["host"], "written": given.output}, [f"Written to {given.output}."])


def facts_of_windows(path: str) -> State:
    with open(0 if path == "-" else path, "rb") as file:  # noqa: PTH123 - or what is piped in
        data = file.read()
    # > of Windows PowerShell writes UTF-16.
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        document = json.loads(data.decode(encoding))
    except ValueError as error:
        raise BundleRefusal(2, "WrongDocument", f"{path} is no JSON: {error}", "Nothing was changed.") from None
    if not isinstance(document, dict) or document.get("schema") != "winhost.facts/2":
        raise BundleRefusal(
            2, "WrongDocument", f"{path} has not the schema winhost.facts/2", "", "Make it with Facts.ps1."
        )
    return document


def ways_in(document: State) -> list[str]:
    """The host keys of the Linuxes that let somebody in, as Windows knows them."""
    answer = document["resources"].get("WslAccess")
    states = [each["state"] for each in answer] if isinstance(answer, list) else []
    return [each["host_key"] for each in states if each.get("active") is True and isinstance(each.get("host_key"), str)]


def as_fact(answer: State) -> Any:
    if answer["ok"]:
        return answer["instances"]
    return {"unavailable": answer["unavailable"]} if "unavailable" in answer else {"unknown": answer["error"]}


COMMANDS = {"apply": apply, "rollback": rollback, "verify": verify, "facts": tell_facts}
GO_BACK = "python3 -I run.py rollback"


def preview(run: Run, steps: list[State], kept: list[str]) -> Result:
    result = ended(run, "nothing was changed", [], kept, [])
    lines = step_lines(steps) or ["Nothing to do."]
    return Result(0, {**result.document, "steps": steps}, [*lines, *result.lines])


def ended(run: Run, outcome: str, checks: list[State], kept: list[str], following: list[str]) -> Result:
    plan = run.bundle.plan
    document = {
        "schema": "winhost.bundle-result/2",
        "host": plan["host"],
        "machine_id": plan["machine_id"],
        "run": run.name,
        "outcome": outcome,
        "changed": run.changed,
        "checks": checks,
        "kept": kept,
        "next": following,
    }
    lines = [f"{plan['host']}: {outcome}, changes: {run.changed}", *check_lines(checks, every=False)]
    lines += [f"  {line}" for line in (*kept, *following)]
    return Result(0 if all(check["holds"] for check in checks) else 4, document, lines)


def step_lines(steps: list[State]) -> list[str]:
    lines = []
    for number, step in enumerate(steps, 1):
        moves = [
            f"{name} {format_value(step['before'][name])} -> {format_value(desired)}"
            for name, desired in step["desired"].items()
        ]
        lines.append(f"[{number}/{len(steps)}] {step['title']}: {', '.join(moves)}")
    return lines


def check_lines(checks: list[State], every: bool) -> list[str]:
    lines = []
    for check in checks:
        if not check["holds"]:
            text = f"{check['property']} should be {format_value(check['desired'])}, is {format_value(check['found'])}"
            lines.append(f"  NOT SO  {check['title']}: {text}")
        elif every:
            lines.append(f"  ok      {check['title']}: {check['property']} is {format_value(check['desired'])}")
    return lines


# ==== 3. the bundle: its files, whose folder it is, and whether this is the machine


class Bundle(NamedTuple):
    """stage: of the plan, with what it wants of Linux alone; sum: of the plan."""

    plan: State
    stage: State
    sum: str
    agent: Any

    @property
    def desired(self) -> list[State]:
        found: list[State] = self.stage["desired"]
        return found


def open_bundle(folder: str) -> Bundle:
    # Each is read once: what is checked is what is used.
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        refuse_writable(folder, opened)
        sums = dict(sum_line(line) for line in text_of(opened, SUMS).decode("utf-8", "replace").splitlines())
        texts = {name: text_of(opened, name) for name in FILES}
    finally:
        os.close(opened)
    for name, text in texts.items():
        if sums.get(name) != hashlib.sha256(text).hexdigest():
            raise changed(name)
    plan = plan_of(texts["plan.json"])
    return Bundle(plan, stage_of(plan), hashlib.sha256(texts["plan.json"]).hexdigest()[:16], load(texts["agent.py"]))


def load(text: bytes) -> Any:
    """Not by its name: Python would take what it once compiled of another text."""
    agent = types.ModuleType("agent")
    exec(compile(text, "agent.py", "exec", dont_inherit=True), agent.__dict__)  # noqa: S102 - its sum was checked
    return agent


def refuse_writable(path: str, opened: int) -> None:
    """By others than root and whoever called sudo: they could put something else there after all."""
    found, owners = os.fstat(opened), {0, os.geteuid(), int(os.environ.get("SUDO_UID", "0"))}
    if found.st_uid not in owners or found.st_mode & 0o022:
        hint = "Copy the folder to a place of root's, as /root/winhost, and: chmod -R go-w /root/winhost"
        raise BundleRefusal(2, "NotOurs", f"others may write to {path}", "Nothing was done.", hint)


def text_of(folder: int, name: str) -> bytes:
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        raise changed(name) from None
    with os.fdopen(opened, "rb") as file:
        refuse_writable(name, opened)
        return file.read()


def sum_line(line: str) -> tuple[str, str]:
    found = re.fullmatch(r"([0-9a-f]{64})  ([A-Za-z.]+)", line)
    if found is None or found[2] not in FILES:
        raise BundleRefusal(2, "Changed", f"{SUMS} has a line that is not winhost's: {line}", "Nothing was done.")
    return found[2], found[1]


def changed(name: str) -> BundleRefusal:
    meaning = "It was changed, or lost, since the bundle was made. Nothing was done."
    return BundleRefusal(2, "Changed", f"{name} is not as {SUMS} says", meaning, "Copy the whole folder again.")


def plan_of(text: bytes) -> State:
    try:
        plan = json.loads(text.decode("utf-8-sig"))
    except ValueError as error:
        why = f"is no JSON: {error}" if text.strip() else "is empty"
        raise BundleRefusal(
            2, "WrongDocument", f"plan.json {why}", "Nothing was done.", "Make the bundle again."
        ) from None
    if not isinstance(plan, dict) or plan.get("schema") != "winhost.plan/2":
        raise BundleRefusal(
            2, "WrongDocument", "plan.json has not the schema winhost.plan/2", "", "Make the bundle again."
        )
    return plan


def stage_of(plan: State) -> State:
    """A plan that was just made has one stage: what is deferred becomes a plan of its own, from facts read then."""
    first = plan["stages"][0]
    ours = {name: [each for each in first[name] if each["resource"] in RESOURCES] for name in ("desired", "steps")}
    return {**first, **ours}


def refuse_stranger() -> None:
    if os.geteuid() != 0:
        raise BundleRefusal(2, "NotRoot", "this needs root", "Nothing was changed.", "Type the same behind sudo.")


def refuse_others(bundle: Bundle) -> None:
    refuse_stranger()
    key = bundle.plan.get("linux_key")
    if key is None:
        what = "this plan is not for a Linux: when it was made, none let anybody in"
        raise BundleRefusal(2, "WrongHost", what, "Nothing was changed.", "Plan again, from what `facts` says.")
    refuse_other_linux(bundle, [key])


def refuse_other_linux(bundle: Bundle, keys: list[str]) -> None:
    """By its host key, which Windows told when the plan was made."""
    here = bundle.agent.content(HOST_KEY).decode("utf-8", "replace").split()[:2]
    if [key.split()[:2] for key in keys] != [here]:
        what = "this is not the one Linux that Windows let somebody into: its host key is another"
        raise BundleRefusal(2, "WrongHost", what, "Nothing was changed.", f"Compare: ssh-keygen -lf {HOST_KEY}")


# ==== 4. reading: each answer is the agent's, as over SSH


class Here:
    """Stands where the agent has its wire: nobody leaves, so a change that is under way is waited for."""

    def gone(self, within: float) -> bool:
        time.sleep(within)
        return False


def ask(bundle: Bundle, calls: list[State], settled: bool = False) -> list[State]:
    bundle.agent.ONCE.clear()
    answers: list[State] = bundle.agent.answers({"exclusive": settled, "calls": calls}, Here())
    return json.loads(json.dumps(answers))  # type: ignore[no-any-return]


def read(bundle: Bundle) -> Facts:
    """Everything that can be changed, as it is now: by resource, the agent's answer."""
    answers = ask(bundle, [{"resource": resource, "verb": "get"} for resource in RESOURCES], settled=True)
    return dict(zip(RESOURCES, answers))


def state_of(facts: Facts, each: State) -> State | None:
    """Of a goal, a step, or what was touched; nothing where there is no such instance."""
    answer = facts[each["resource"]]
    if not answer["ok"]:
        what = f"{TITLES[each['resource']]} cannot be read: {why(answer)}"
        raise BundleRefusal(1, "CannotRead", what, "What cannot be read is not changed.")
    found: Iterable[State] = (one["state"] for one in answer["instances"] if one["key"] == each["key"])
    return next(iter(found), None)


def why(answer: State) -> str:
    """Of an answer, or of a property, that is not there."""
    if "unavailable" in answer:
        return f"it needs {TITLES[answer['unavailable']]} first"
    fault = answer.get("error") or answer["unknown"]
    return f"{fault['message']} [{fault['code']}]"


def missing(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and ("unknown" in value or "unavailable" in value)


def same(one: Any, other: Any) -> bool:
    """As JSON: 1 is not true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def compared(goals: list[State], facts: Facts) -> list[State]:
    """A check for each property that is wanted. Found is a sentence where there is nothing to compare."""
    checks = []
    for goal in goals:
        answer = facts[goal["resource"]]
        state = state_of(facts, goal) if answer["ok"] else None
        for name, desired in goal["desired"].items():
            found: Any = "it is not there any more" if answer["ok"] else why(answer)
            if state is not None:
                found = state.get(name)
            holds = state is not None and same(found, desired)
            check = {"title": goal["title"], "resource": goal["resource"], "property": name}
            checks.append({**check, "desired": desired, "found": found, "holds": holds})
    return checks


# ==== 5. from goals to steps, and doing them: going on after a crash and going back are the same over other goals


def find_steps(goals: list[State], facts: Facts, role: str) -> list[State]:
    places = list(RESOURCES) if role == "desired" else list(reversed(RESOURCES))
    ordered = sorted(goals, key=lambda goal: (places.index(goal["resource"]), tuple(goal["key"].values())))
    steps = [find_step(goal, facts, role) for goal in ordered]
    return [step for step in steps if step["desired"]]


def find_step(goal: State, facts: Facts, role: str) -> State:
    """Only the properties that differ."""
    state = state_of(facts, goal)
    if state is None:
        raise BundleRefusal(
            1, "Gone", f"it is not there any more: {goal['title']}", "", "Read it again and plan again."
        )
    differing = [name for name, desired in goal["desired"].items() if not same(state.get(name), desired)]
    for name in differing:
        if missing(state.get(name)):
            what = f"{goal['title']}: {name} cannot be read: {why(state[name])}"
            raise BundleRefusal(1, "CannotRead", what, "What cannot be read cannot be given back.")
    before, desired = ({name: each[name] for name in differing} for each in (state, goal["desired"]))
    known_as = {"resource": goal["resource"], "key": goal["key"], "role": role, "before": before, "desired": desired}
    return {**known_as, "title": goal["title"], "risks": []}


def refuse_drift(run: Run, facts: Facts) -> None:
    """A goal must stand where the plan saw it, or already where it shall be; what no step of the plan shows must be so
    already. What this run moved itself may differ.
    """
    steps = {identity(step): step for step in run.bundle.stage["steps"]}
    lines = []
    for goal in run.bundle.desired:
        if identity(goal) in run.record.touched:
            continue
        state, step = state_of(facts, goal) or {}, steps.get(identity(goal), {"before": {}})
        for name, desired in goal["desired"].items():
            found, before = state.get(name), step["before"].get(name, desired)
            if not same(found, desired) and not same(found, before):
                lines.append(f"{goal['title']}: {name} was {format_value(before)}, is {format_value(found)}")
    if lines:
        what = "the machine is no longer as the plan saw it; nothing was changed"
        raise BundleRefusal(4, "Drifted", what, "\n".join(lines), "Read it again with `facts` and plan again.")


def identity(each: State) -> str:
    return json.dumps([each["resource"], each["key"]], sort_keys=True)


def do(run: Run, steps: list[State], facts: Facts) -> None:
    for step, line in zip(steps, step_lines(steps)):
        if run.asked_to_stop:
            what = f"stopped as you asked, changes: {run.changed}"
            raise BundleRefusal(1, "Stopped", what, "", f"Type the same again to go on; or go back: {GO_BACK}")
        run.say(line)
        do_step(run, step, facts)


def do_step(run: Run, step: State, facts: Facts) -> None:
    found = {**(state_of(facts, step) or {}), **step["before"]}
    run.write("begin", step=step, found=found)
    call = {
        "verb": "set",
        "resource": step["resource"],
        "key": step["key"],
        "desired": step["desired"],
        "expect": step["before"],
    }
    answer = brought(run, step, ask(run.bundle, [{**call, "how": {"accept": [], "within": run.within}}])[0])
    for warning in answer.get("warnings", []):
        run.say(f"  it warns: {warning}")
    known_as = {"resource": step["resource"], "key": step["key"]}
    if not answer["ok"]:
        # Nothing was changed where it drifted; after an error the agent has read again.
        after = answer["before"] if "drift" in answer else answer.get("after")
        run.write("failed", after=None if missing(after) else after, answer=answer, **known_as)
        raise failed(step, answer)
    run.write("end", after=answer["after"], **known_as)
    run.changed += 1
    for name, desired in step["desired"].items():
        if not same(answer["after"].get(name), desired):
            what = f"{step['title']}: accepted without error, but {name} is {format_value(answer['after'].get(name))}"
            raise BundleRefusal(1, "NotTaken", what, "", AGAIN)


def brought(run: Run, step: State, answer: State) -> State:
    """What a step before it has brought along needs nothing more: a package that starts its unit."""
    first = len(run.record.touched) == 1
    if "drift" not in answer or first or any(not same(answer["before"].get(n), w) for n, w in step["desired"].items()):
        return answer
    return {"ok": True, "after": answer["before"]}


def failed(step: State, answer: State) -> BundleRefusal:
    if "drift" in answer:
        changes = [
            f"{n} was {format_value(d['expected'])}, is {format_value(d['found'])}" for n, d in answer["drift"].items()
        ]
        return BundleRefusal(4, "Drifted", f"{step['title']}: changed by somebody meanwhile", "\n".join(changes), AGAIN)
    meaning = "Steps before this one are done and journalled."
    return BundleRefusal(1, "StepFailed", f"{step['title']}: {why(answer)}", meaning, AGAIN)


AGAIN = f"Mend that and type the same again to go on; or go back: {GO_BACK}"


# ==== 6. what is put back, and what is kept


class Undo(NamedTuple):
    """lacks: what could not be read, so that it is neither put back nor kept."""

    desired: State
    keep: str = ""
    unread: str = ""


class Back(NamedTuple):
    """What is to be put back, why the rest is left as it is, and what could not be judged. waits: some of it goes back
    only when what came since is taken back. open: all that stays for that.
    """

    goals: list[State]
    kept: list[str]
    missing: list[State]
    waits: bool
    open: list[State]

    @property
    def sentences(self) -> list[str]:
        return [*self.kept, *(f"{each['title']}: not judged: {each['why']}" for each in self.missing)]


class Unread(Exception):
    """Something that has to be known cannot be read."""


def undone(run: Run, facts: Facts) -> Back:
    touched = run.record.touched
    undos = {
        id_: Undo({}) if id_ in run.record.given else undo_of(each, run.record, facts) for id_, each in touched.items()
    }
    used: dict[str, list[str]] = {}
    while keeps_more(touched, undos, used, facts):
        pass
    back = Back([], [], [], bool(used), [])
    for id_, each in touched.items():
        known_as = {name: each[name] for name in ("resource", "key", "title")}
        undo = undos[id_]
        keep = undo.keep
        if id_ in used:
            keep = f"for {', '.join(used[id_])}, which came since; take that back, then this again"
        elif undo.unread:
            back.missing.append({**known_as, "why": undo.unread})
        elif undo.desired:
            back.goals.append({**known_as, "desired": undo.desired})
        if keep:
            back.kept.append(f"{each['title']}: kept: {keep}")
        if keep or undo.unread or undo.desired:
            back.open.append({"resource": each["resource"], "key": each["key"]})
    return back


def keeps_more(touched: State, undos: dict[str, Undo], used: dict[str, list[str]], facts: Facts) -> bool:
    """Everything that goes back goes back together: what is kept keeps what it rests on."""
    found = False
    for id_, each in touched.items():
        if id_ in used or not undos[id_].desired:
            continue
        try:
            names = kept_for(each, touched, undos, used, facts)
        except Unread as unread:
            undos[id_], found = Undo({}, "", str(unread)), True
            continue
        if names:
            used[id_], found = names, True
    return found


def kept_for(
    each: State, touched: State, undos: dict[str, Undo], used: dict[str, list[str]], facts: Facts
) -> list[str]:
    """Names of what rests on it and did not when this run came to its end."""
    names: list[str] = []
    for user in resting(each["resource"], facts):
        id_ = identity(user)
        if id_ in used:
            names += used[id_]
        elif id_ in touched:
            others = undos[id_].keep and not undos[id_].desired and is_others(touched[id_], facts)
            names += [touched[id_]["title"]] if others else []
        elif each["dependents"] is not None and id_ not in map(identity, each["dependents"]):
            names.append(next(iter(user["key"].values()), TITLES[user["resource"]]))
    return list(dict.fromkeys(names))


def resting(resource: str, facts: Facts) -> list[State]:
    found: dict[str, State] = {}
    for rule in RESTS.get(resource, ()):
        answer = facts[rule["resource"]]
        if not answer["ok"] and "unavailable" not in answer:
            raise Unread(f"{TITLES[rule['resource']]}: {why(answer)}")
        for each in answer["instances"] if answer["ok"] else ():
            value = each["state"][rule["property"]]
            if isinstance(value, dict) and "unknown" in value:
                raise Unread(f"{TITLES[rule['resource']]} ({rule['property']}): {why(value)}")
            if (value in rule["values"]) is rule["with"]:
                user = {"resource": rule["resource"], "key": each["key"]}
                found.setdefault(identity(user), user)
    return list(found.values())


def is_others(touched: State, facts: Facts) -> bool:
    """Neither as it was found nor as this run left it."""
    now = state_of(facts, touched)
    left = [touched["before"], touched["after"], *touched["transitional"]]
    changed = touched["changed"]
    return now is not None and any(all(n in each and not same(now[n], each[n]) for each in left) for n in changed)


def note_dependents(run: Run, facts: Facts) -> None:
    """What rests on what was changed: on the way back, it is told from what came since."""
    dependents = []
    for each in run.record.touched.values():
        if each["dependents"] is None and each["resource"] in RESTS:
            with suppress(Unread):
                dependents.append(
                    {"resource": each["resource"], "key": each["key"], "users": resting(each["resource"], facts)}
                )
    if dependents:
        run.write("dependents", resting=dependents)


def undo_of(touched: State, record: BundleRunState, facts: Facts) -> Undo:
    answer = facts[touched["resource"]]
    if not answer["ok"]:
        # What is there only since we installed what it needs went with that, once we are on the way back from it.
        ours = {each["resource"] for each in record.touched.values() if record.back and each["transitional"]}
        return Undo({}) if answer.get("unavailable") in ours else Undo({}, "", why(answer))
    now = state_of(facts, touched)
    if now is None:
        return Undo({}, "it is not there any more")
    for name in touched["changed"]:
        if isinstance(now[name], dict) and "unknown" in now[name]:
            return Undo({}, "", f"{name}: {why(now[name])}")
    return RULES[RESOURCES[touched["resource"]]](touched, now)


def undo_properties(touched: State, now: State) -> Undo:
    """Put back what still stands as we left it; what somebody changed since is theirs."""
    desired, foreign = {}, []
    for name in touched["changed"]:
        before = touched["before"][name]
        left = [touched["after"][name], *(state.get(name) for state in touched["transitional"])]
        if same(now[name], before):
            continue
        if missing(now[name]):
            return Undo({}, "", f"{name}: {why(now[name])}")
        if any(same(now[name], each) for each in left):
            desired[name] = before
        else:
            foreign.append(name)
    return Undo(desired, f"{', '.join(foreign)} changed since by somebody else" if foreign else "")


def undo_file(touched: State, now: State) -> Undo:
    """As a whole or not at all: without its text there is no mode to put back."""
    undo = undo_properties(touched, now)
    return undo._replace(desired={}) if undo.keep else undo


def undo_source(touched: State, now: State) -> Undo:
    """A source that we added goes as a whole; its parts cannot stand at `null` while it is there."""
    undo = undo_properties(touched, now)
    came = "present" in touched["changed"] and touched["before"]["present"] is False
    return Undo({"present": False}) if came and now["present"] and not undo.keep and not undo.unread else undo


def undo_package(touched: State, now: State) -> Undo:
    """Others that need it now and did not when it came keep it."""
    since = sorted(set(now["needed_by"]) - set(touched["after"]["needed_by"]))
    if since and "version" in touched["changed"] and touched["before"]["version"] is None:
        return Undo({}, f"{', '.join(since)} needs it now")
    return undo_properties(touched, now)


def undo_unit(touched: State, now: State) -> Undo:
    """A unit that is no longer there went with its file or package."""
    gone = isinstance(now["enabled"], dict) and now["active"] is not True
    return Undo({}) if gone else undo_properties(touched, now)


def undo_spec(touched: State, now: State) -> Undo:
    if "present" in touched["changed"] and touched["before"]["present"] is False:
        return Undo({"present": False} if now["present"] else {})
    return Undo({}, "a spec that did not match the driver is of no use to anybody")


RULES = {
    "file": undo_file,
    "source": undo_source,
    "package": undo_package,
    "unit": undo_unit,
    "spec": undo_spec,
}


# ==== 7. the journal: each line on disk before the next thing happens, with a hash of itself and of the line before


class BundleRunState:
    """What the lines tell. touched: what this run changed, from its first state (before) to the one it was left in
    (after); transitional: states that are our doing as well, because the run was on its way from or to them.
    setting: what the
    step in flight sets. back: it is going back. stage: its steps are done. waits: it is to go back once more, later.
    given: what was given back for good.
    """

    def __init__(self) -> None:
        self.touched: dict[str, State] = {}
        self.setting: list[str] = []
        self.back = self.stage = self.waits = False
        self.given: set[str] = set()
        self.outcome = ""

    def add(self, entry: State) -> None:
        kind = entry["event"]
        if kind == "begin":
            self.outcome = ""
            self._begin(entry["step"], entry["found"])
        elif kind in ("end", "failed") and entry["after"] is not None:
            self._left(self.touched[identity(entry)], entry["after"])
        elif kind == "stage":
            self.stage = True
        elif kind == "back":
            self.back, self.outcome = True, ""
        elif kind == "dependents":
            for each in entry["resting"]:
                self.touched[identity(each)]["dependents"] = each["users"]
        elif kind == "outcome":
            self._ended(entry)

    def _ended(self, entry: State) -> None:
        self.outcome, self.waits = entry["outcome"], entry.get("waits", False)
        if "open" in entry:
            self.given = set(self.touched) - set(map(identity, entry["open"]))

    def _begin(self, step: State, found: State) -> None:
        self.setting = list(step["desired"])
        known = self.touched.get(identity(step))
        if self.back and known:
            known["transitional"] = [step["before"], step["desired"]]
            return
        if not self.back:
            # What this step brings with it is nobody else's; what rests on what is told anew after it.
            for each in self.touched.values():
                each["dependents"] = None
        known_as = {name: step[name] for name in ("resource", "key", "title")}
        touched = known or {**known_as, "before": found, "changed": [], "after": dict(found), "dependents": None}
        touched["changed"] = list(dict.fromkeys([*touched["changed"], *step["desired"]]))
        touched["after"] = {**touched["after"], **step["desired"]}
        touched["transitional"] = [step["before"]]
        self.touched[identity(step)] = touched

    def _left(self, touched: State, after: State) -> None:
        if self.back:
            # Only what was set back is our doing: the rest of it may be what somebody else changed since.
            touched["transitional"] = [{name: after[name] for name in self.setting}]
        else:
            touched["after"], touched["transitional"] = {**touched["after"], **after}, []


class BundleJournal(NamedTuple):
    """As it was read; previous: the hash of its last whole line; length: bytes up to its end."""

    record: BundleRunState
    previous: str
    entries: int
    length: int


def hashed(line: str) -> str:
    """Of the line without it, so that an edited line is known although none follows it."""
    return '{},"hash":"{}"}}'.format(line[:-1], hashlib.sha256(line.encode("ascii")).hexdigest()[:16])


def from_version_1(data: Any) -> Any:
    """Journals of the first release have other words for the same; they tell whether another plan's run stands."""
    if isinstance(data, list):
        return [from_version_1(each) for each in data]
    names = {"noun": "resource", "want": "desired"}
    nested = ("step", "left", "resting", "users", "open")
    now = {names.get(name, name): from_version_1(data[name]) if name in nested else data[name] for name in data}
    return {**now, "event": "dependents"} if now.get("event") == "dependents" else now


def parse_journal(name: str, data: bytes) -> BundleJournal:
    record, previous, length, number, old = BundleRunState(), "", 0, 0, False
    # What follows the last line feed is what a killed run leaves; nothing was done upon it.
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        entry = None
        with suppress(ValueError):
            text = line.decode("ascii")
            if hashed(re.sub(r',"hash":"[0-9a-f]{16}"\}$', "}", text)) == text:
                entry = json.loads(text)
        if entry is None or (entry["n"], entry["previous"]) != (number, previous):
            what = f"{name}: line {number} is not as winhost wrote it"
            meaning = "It cannot be relied on for going on or going back. Nothing was changed."
            raise BundleRefusal(2, "Damaged", what, meaning, "Restore the file from a copy.")
        old = old or entry.get("schema") == "winhost.bundle-journal/1"
        record.add(from_version_1(entry) if old else entry)
        previous, length = entry["hash"], length + len(line) + 1
    return BundleJournal(record, previous, number, length)


# ==== 8. a run: its folder, its journal, and that it is alone


class Run:
    """begun: it has a journal, which it gets with its first change: what is refused leaves nothing behind."""

    def __init__(self, bundle: Bundle, given: argparse.Namespace, folder: int | None) -> None:
        self.bundle = bundle
        self.journals: str = given.journals
        self.within: int = given.within
        self.check: bool = given.check
        self.quiet: bool = given.json
        self.changed = 0
        self.name = ""
        self.record = BundleRunState()
        self.asked_to_stop = False
        self._folder = folder
        self._file: int | None = None
        self._previous, self._entries = "", 0

    @property
    def begun(self) -> bool:
        return self.name != ""

    def say(self, line: str) -> None:
        if not self.quiet:
            with suppress(OSError):
                sys.stdout.write(f"{visible(line)}\n")
                sys.stdout.flush()

    def names(self) -> list[str]:
        """Of every plan, oldest first: a journal is named by the sum of its plan and the time at which it was begun."""
        found = [] if self._folder is None else os.listdir(self._folder)  # noqa: PTH208 - by the folder that was checked
        names = [name[: -len(".jsonl")] for name in found if name.endswith(".jsonl")]
        return sorted(names, key=lambda name: name.split(".", 1)[::-1])

    def read(self, name: str) -> BundleJournal:
        with os.fdopen(self._open(name, os.O_RDONLY), "rb") as file:
            return parse_journal(name, file.read())

    def go_on(self, name: str, journal: BundleJournal) -> None:
        """With a journal that is there, behind its last whole line."""
        self.name, self.record = name, journal.record
        self._previous, self._entries, self._length = journal.previous, journal.entries, journal.length

    def write(self, kind: str, **fields: Any) -> None:
        if self._file is None:
            self._file = self._begin()
        if not self._entries:
            plan = self.bundle.plan
            self._line("run", {"schema": "winhost.bundle-journal/2", "host": plan["host"], "winhost": WINHOST})
        self._line(kind, fields)

    def keep(self, result: Result) -> None:
        """For whoever was not there to see how it ended."""
        if self._file is not None:
            with suppress(OSError):
                file = self._open(self.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, ".result.json")
                with os.fdopen(file, "w", encoding="ascii") as written:
                    written.write(json.dumps(result.document))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def _begin(self) -> int:
        if self.begun:
            file = self._open(self.name, os.O_WRONLY)
            os.ftruncate(file, self._length)
            os.lseek(file, 0, os.SEEK_END)
            return file
        now = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
        self.name = f"{self.bundle.sum}.{stamp}-{int(now * 1000) % 1000:03d}"
        file = self._open(self.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        if self._folder is not None:
            os.fsync(self._folder)
        return file

    def _open(self, name: str, flags: int, ending: str = ".jsonl") -> int:
        return os.open(name + ending, flags | os.O_NOFOLLOW, 0o600, dir_fd=self._folder)

    def _line(self, kind: str, fields: State) -> None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        entry = {"n": self._entries + 1, "at": at, "event": kind, **fields, "previous": self._previous}
        line = hashed(json.dumps(entry, separators=(",", ":")))
        assert self._file is not None
        data = line.encode("ascii") + b"\n"
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)
        written = json.loads(line)
        self._previous, self._entries = written["hash"], self._entries + 1
        self.record.add(written)


@contextmanager
def running(bundle: Bundle, given: argparse.Namespace) -> Iterator[Run]:
    refuse_others(bundle)
    folder = open_journals(given.journals, make=not given.check)
    run = Run(bundle, given, folder)
    locked = None
    try:
        if not given.check:
            locked = lock(folder)
            stop_gently(run)
        yield run
    finally:
        run.close()
        for each in (locked, folder):
            if each is not None:
                os.close(each)


def open_journals(path: str, make: bool) -> int | None:
    """A folder for root alone; nothing where there is none yet and none is to be made."""
    if make:
        os.makedirs(path, 0o700, exist_ok=True)  # noqa: PTH103
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    found = os.fstat(folder)
    if found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(folder)
        hint = "Look at what it holds and remove it, or name another folder with --journals."
        raise BundleRefusal(1, "NotOurs", f"{path} was not made by winhost: others may look or write there", "", hint)
    return folder


def lock(folder: int | None) -> int:
    """Held until it is closed, or this process ends."""
    file = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise BundleRefusal(
            1, "Busy", "this machine is being changed by another run", "", "Wait for it to end."
        ) from None
    return file


def stop_gently(run: Run) -> None:
    """A package half unpacked is worse than a minute: a step comes to its end, also where the terminal is gone."""

    def stop(number: int, frame: object) -> None:
        run.asked_to_stop = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    asked = words().parse_args()
    ended_so = main(asked, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    show(ended_so, asked.json)
    sys.exit(ended_so.code)
