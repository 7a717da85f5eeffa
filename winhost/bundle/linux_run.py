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

This script is the same for every plan: what is wanted stands in plan.json beside it, and what is known of the resources
in resources.json; both are only ever read as data. agent.py is what winhost sends over SSH where it is allowed to, and
core/ is what winhost itself orders, undoes and compares by. Python 3.10 and its standard library are enough, and 3.8
for `facts`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.dont_write_bytecode = True
    if not sys.flags.isolated:
        # Before anything else is imported: a file of this folder with the name of a module would run in its place.
        sys.stderr.write(f"error: start it as: python3 -I {sys.argv[0]}\n")
        sys.exit(2)

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import signal
import stat
import time
import types
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.machinery import ModuleSpec

    State = dict[str, Any]
    Files = dict[str, bytes]

WINHOST = "@winhost@"  # the version that made this
CORE = (
    "__init__",
    "answers",
    "came_since",
    "changes",
    "checks",
    "conditions",
    "dependents",
    "host_answers",
    "journal_lines",
    "order",
    "requirements",
    "rules",
    "steps",
    "undo",
)
FILES = ("agent.py", *(f"core/{name}.py" for name in CORE), "plan.json", "resources.json", "run.py")
SUMS = "SHA256SUMS"
JOURNALS = "/var/lib/winhost/bundles"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"  # the one that WslAccess tells of
SHOWN = 60  # characters of a text
CHANGES_FROM = (3, 10)  # of Python, as Ubuntu 22.04 has it


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
            command.add_argument("--keep", action="store_true", help="keep a change after which you saw that SSH works")
            command.add_argument("--accept", metavar="RISK[,RISK...]", default="", help="approve what a step asks for")
        if name == "facts":
            command.add_argument("facts", metavar="FACTS", help="what Facts.ps1 wrote; - reads it from standard input")
            command.add_argument("-o", dest="output", metavar="WHOLE", help="a new file; by default it is printed")
    return parser


def result_of(action: Callable[[], Result]) -> Result:
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever reads one document gets one
        return failure(error)


def failure(error: Exception) -> Result:
    refusal = error if isinstance(error, BundleRefusal) else None
    return (refusal or BundleRefusal(1, "Failure", f"{type(error).__name__}: {error}")).result


def leave(result: Result, as_json: bool) -> NoReturn:
    show(result, as_json)
    sys.exit(result.code)


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


# ==== 2. the folder: each file is read once, so that what is checked is what is used


class Bundle(NamedTuple):
    """stage: of the plan, with what it wants of Linux alone; sum: of the plan; resources: what is declared of each, in
    the order of changes.
    """

    plan: State
    stage: State
    sum: str
    agent: Any
    resources: State

    @property
    def changeable(self) -> list[str]:
        return [name for name, declared in self.resources.items() if "sets" in declared]

    def titled(self, resource: str) -> str:
        return str(self.resources[resource]["title"])

    def credential_of(self, resource: str) -> str:
        """The property that holds a secret reference, if one does."""
        return str(self.resources[resource].get("credential", ""))


def bundle_of(files: Files) -> Bundle:
    plan, resources = plan_of(files["plan.json"]), json.loads(files["resources.json"])
    sum_ = hashlib.sha256(files["plan.json"]).hexdigest()[:16]
    return Bundle(plan, stage_of(plan, resources), sum_, load(files["agent.py"]), resources)


def open_files(folder: str) -> Files:
    with opened(folder) as top, opened("core", top) as core:
        sums = dict(sum_line(line) for line in text_of(top, SUMS).decode("utf-8", "replace").splitlines())
        files = {name: text_of(core if name.startswith("core/") else top, name) for name in FILES}
    for name, text in files.items():
        if sums.get(name) != hashlib.sha256(text).hexdigest():
            raise changed(name)
    return files


@contextmanager
def opened(path: str, folder: int | None = None) -> Iterator[int]:
    try:
        here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | (0 if folder is None else os.O_NOFOLLOW), dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        raise changed(path) from None
    try:
        refuse_writable(path, here)
        yield here
    finally:
        os.close(here)


def load(text: bytes) -> Any:
    """Not by its name: Python would take what it once compiled of another text."""
    agent = types.ModuleType("agent")
    agent.__dict__["PROGRAM"] = text.decode("ascii")  # what undoes a change that nobody keeps
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
        file_ = os.open(name.rpartition("/")[2], os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        raise changed(name) from None
    with os.fdopen(file_, "rb") as file:
        refuse_writable(name, file_)
        return file.read()


def sum_line(line: str) -> tuple[str, str]:
    found = re.fullmatch(r"([0-9a-f]{64})  ([a-z_./]+)", line)
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


def stage_of(plan: State, resources: State) -> State:
    """A plan that was just made has one stage: what is deferred becomes a plan of its own, from facts read then."""
    first = plan["stages"][0]
    ours = {name: [each for each in first[name] if each["resource"] in resources] for name in ("desired", "steps")}
    return {**first, **ours}


# ==== 3. the machine: whose it is, and what its agent answers, as over SSH


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


class Here:
    """Stands where the agent has its wire: nobody leaves, so a change that is under way is waited for."""

    def gone(self, within: float) -> bool:
        time.sleep(within)
        return False


def ask(bundle: Bundle, calls: list[State], settled: bool = False) -> list[State]:
    bundle.agent.ONCE.clear()
    answers: list[State] = bundle.agent.answers({"exclusive": settled, "calls": calls}, Here())
    return json.loads(json.dumps(answers))  # type: ignore[no-any-return]


def read(bundle: Bundle, resources: list[str]) -> State:
    """As they are now: by resource, the agent's answer."""
    calls = [{"resource": resource, "verb": "get"} for resource in resources]
    return dict(zip(resources, ask(bundle, calls, settled=True)))


# ==== 4. facts: what this Linux adds to those of Windows


def tell_facts(bundle: Bundle, given: argparse.Namespace) -> Result:
    refuse_stranger()
    document = facts_of_windows(given.facts)
    resources = {resource: as_fact(answer) for resource, answer in read(bundle, list(bundle.resources)).items()}
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


# ==== 5. core: from the bytes that were checked


class CheckedCore:
    """Finds winhost.core and nothing else. No folder is searched, and nothing compiled is read or left behind."""

    def __init__(self, files: Files) -> None:
        modules = {f"winhost.core.{name}": files[f"core/{name}.py"] for name in CORE}
        self.sources = {"winhost": b"", "winhost.core": modules.pop("winhost.core.__init__"), **modules}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self.sources:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=name in ("winhost", "winhost.core"))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        text = self.sources[module.__name__]
        exec(compile(text, module.__name__, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - its sum was checked


def refuse_old_python(command: str, version: tuple[int, ...]) -> None:
    if version < CHANGES_FROM:
        found, oldest = (".".join(map(str, each)) for each in (version, CHANGES_FROM))
        what = f"Python {found} is too old for {command}, which needs Python {oldest} or later"
        hint = "Upgrade this Linux; until then `facts` works."
        raise BundleRefusal(2, "PythonTooOld", what, "Nothing was changed.", hint)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    ASKED = words().parse_args()
    try:
        HERE = open_files(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
        if ASKED.command == "facts":
            leave(tell_facts(bundle_of(HERE), ASKED), ASKED.json)
        refuse_old_python(ASKED.command, sys.version_info[:3])
    except Exception as error:  # noqa: BLE001 - as in result_of
        leave(failure(error), ASKED.json)
    sys.meta_path.insert(0, CheckedCore(HERE))

from winhost.core.answers import Id, MissingFact, Record, Unavailable, Unknown, fault, identity
from winhost.core.came_since import judge
from winhost.core.changes import Changes, Dependent, Unfitting, begun, left, noted
from winhost.core.checks import Check, check
from winhost.core.dependents import resting
from winhost.core.host_answers import HostAnswers
from winhost.core.journal_lines import DamagedLine, LineFormat, append
from winhost.core.order import NoInstance, differences, steps_for
from winhost.core.rules import ResourceRules, from_json
from winhost.core.steps import DesiredResource, Step

# ==== 6. what is so, and what is to be done


def host_of(bundle: Bundle) -> HostAnswers:
    rules = {name: from_json(ResourceRules, declared) for name, declared in bundle.resources.items()}
    return HostAnswers({name: answer_of(each) for name, each in read(bundle, bundle.changeable).items()}, rules)


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
    names = ("resource", "key", "role", "before", "desired", "title")
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


# ==== 7. doing it: going on after a crash and going back are the same over other goals


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
    how = {"accept": [each for each in run.accepted if each in asked], "within": run.within}
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
    run.write("end", after=answer["after"], **known_as)
    run.changed += 1
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


KEEP = "Log in again over SSH, then type the same there. At the machine itself: look whether SSH works, then add --keep"
GO_BACK = "python3 -I run.py rollback"
AGAIN = f"Mend that and type the same again to go on; or go back: {GO_BACK}"


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
    only when what came since is taken back. open: all that stays for that.
    """

    goals: list[DesiredResource]
    kept: list[str]
    missing: list[State]
    waits: bool
    open: list[State]

    @property
    def sentences(self) -> list[str]:
        return [*self.kept, *(f"{each['title']}: not judged: {each['why']}" for each in self.missing)]


def find_back(run: Run, host: HostAnswers) -> Back:
    verdicts, back = judge(run.record, host), Back([], [], [], False, [])
    for id_, each in run.record.touched.items():
        known_as = {"resource": each.resource, "key": each.key}
        rest = verdicts.rests(id_)
        if rest:
            back.goals.append(DesiredResource(each.resource, each.key, rest, each.title, "As it was found."))
        if id_ in verdicts.kept:
            back.kept.append(f"{each.title}: kept: {verdicts.kept[id_]}")
        if id_ in verdicts.missing:
            unread = why_unread(run.bundle, verdicts.missing[id_], each.resource)
            back.missing.append({**known_as, "title": each.title, "why": unread})
        if rest or id_ in verdicts.kept or id_ in verdicts.missing:
            back.open.append(known_as)
    return back._replace(waits=bool(verdicts.waiting))


# ==== 8. the journal: each line on disk before the next thing happens


LINES = LineFormat(lambda entry: json.dumps(entry, separators=(",", ":")))


@dataclass(frozen=True)
class BundleRun(Changes):
    """What the lines tell. stage: its steps are done. waits: it is to go back once more, later."""

    stage: bool = False
    waits: bool = False
    outcome: str = ""


def fold(record: BundleRun, entry: State) -> BundleRun:
    kind = entry["event"]
    return FOLDS[kind](record, entry) if kind in FOLDS else record


def id_of(each: State) -> Id:
    return identity(each["resource"], each["key"])


def step_of(told: State) -> Step:
    return Step(id="", why="", **{**told, "risks": tuple(told["risks"])})


def after_step(record: BundleRun, entry: State) -> BundleRun:
    return replace(left(record, id_of(entry), entry["after"]), in_flight=None)


def after_dependents(record: BundleRun, entry: State) -> BundleRun:
    users = {id_of(each): tuple(Dependent(u["resource"], u["key"]) for u in each["users"]) for each in entry["resting"]}
    return noted(record, users)


def after_outcome(record: BundleRun, entry: State) -> BundleRun:
    stays = map(id_of, entry["open"]) if "open" in entry else set(record.touched) - record.restored
    restored = frozenset(record.touched) - frozenset(stays)
    return replace(record, outcome=entry["outcome"], waits=entry.get("waits", False), restored=restored)


FOLDS: dict[str, Callable[[BundleRun, State], BundleRun]] = {
    "begin": lambda record, entry: replace(begun(record, step_of(entry["step"]), entry["found"]), outcome=""),
    "end": after_step,
    "failed": after_step,
    "stage": lambda record, entry: replace(record, stage=True),
    "back": lambda record, entry: replace(record, going_back=True, outcome=""),
    "dependents": after_dependents,
    "outcome": after_outcome,
}


class BundleJournal(NamedTuple):
    """As it was read. length: bytes up to the end of its last whole line."""

    record: BundleRun
    entries: list[Any]
    length: int


def from_version_1(data: Any) -> Any:
    """Journals of the first release have other words for the same; they tell whether another plan's run stands."""
    if isinstance(data, list):
        return [from_version_1(each) for each in data]
    names = {"noun": "resource", "want": "desired"}
    nested = ("step", "left", "resting", "users", "open")
    now = {names.get(name, name): from_version_1(data[name]) if name in nested else data[name] for name in data}
    return {**now, "event": "dependents"} if now.get("event") == "dependents" else now


def parse_journal(name: str, data: bytes) -> BundleJournal:
    record, old = BundleRun(), False
    try:
        entries: list[Any] = list(LINES.entries(data))
        for entry in entries:
            old = old or entry.get("schema") == "winhost.bundle-journal/1"
            record = fold(record, from_version_1(entry) if old else entry)
    except (DamagedLine, Unfitting) as error:
        which = f"line {error.number} is" if isinstance(error, DamagedLine) else f"the lines are ({error})"
        meaning = "It cannot be relied on for going on or going back. Nothing was changed."
        what = f"{name}: {which} not as winhost wrote it"
        raise BundleRefusal(2, "Damaged", what, meaning, "Restore the file from a copy.") from None
    return BundleJournal(record, entries, data.rfind(b"\n") + 1)


# ==== 9. a run: its folder, its journal, and that it is alone


class Run:
    """begun: it has a journal, which it gets with its first change: what is refused leaves nothing behind."""

    def __init__(self, bundle: Bundle, given: argparse.Namespace, folder: int | None) -> None:
        self.bundle = bundle
        self.journals: str = given.journals
        self.within: int = given.within
        self.keeps: bool = given.keep
        self.accepted = tuple(filter(None, given.accept.split(",")))
        self.check: bool = given.check
        self.quiet: bool = given.json
        self.changed = 0
        self.name = ""
        self.record = BundleRun()
        self.asked_to_stop = False
        self._folder = folder
        self._file: int | None = None
        self._entries: list[Any] = []
        self._length = 0

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
        self._entries, self._length = journal.entries, journal.length

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
            file = self._open(self.name, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(file, self._length)
            return file
        now = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
        self.name = f"{self.bundle.sum}.{stamp}-{int(now * 1000) % 1000:03d}"
        file = self._open(self.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        if self._folder is not None:
            os.fsync(self._folder)
        return file

    def _open(self, name: str, flags: int, ending: str = ".jsonl") -> int:
        return os.open(name + ending, flags | os.O_NOFOLLOW, 0o600, dir_fd=self._folder)

    def _line(self, kind: str, fields: State) -> None:
        assert self._file is not None
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        line = LINES.line(LINES.following(self._entries, at, kind, fields))
        append(self._file, line, self._length)
        written = json.loads(line)
        self._length += len(line)
        self._entries.append(written)
        self.record = fold(self.record, written)


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


# ==== 10. apply, rollback, verify


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
    host, goals = host_of(run.bundle), goals_of(run.bundle)
    if run.check or not run.record.stage:
        refuse_drift(run, host)
        steps = find_steps(run.bundle, goals, host, "desired")
        if run.check:
            return preview(run, steps, [])
        do(run, steps, host)
        if run.begun:
            run.write("stage", number=run.bundle.stage["number"])
        host = host_of(run.bundle)
    note_dependents(run, host)
    return applied(run, compared(run.bundle, goals, host))


def resume(run: Run) -> None:
    """A run of this plan that did not come to its end is gone on with; what has ended is followed by a new run."""
    for name in reversed(run.names()):
        if not name.startswith(f"{run.bundle.sum}."):
            continue
        journal = run.read(name)
        if not journal.entries:
            continue  # begun, nothing done
        if journal.record.going_back and journal.record.outcome != "rolled back":
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
    host = host_of(run.bundle)
    back = find_back(run, host)
    steps = find_steps(run.bundle, back.goals, host, "undo")
    if run.check:
        return preview(run, steps, back.sentences)
    if not run.record.going_back:
        run.write("back", accepted=list(run.accepted))
    do(run, steps, host)
    host = host_of(run.bundle)
    back = find_back(run, host)
    checks = [each for each in compared(run.bundle, back.goals, host) if not each.holds]
    outcome = "not all rolled back" if checks or back.missing else "rolled back"
    run.write("outcome", outcome=outcome, waits=back.waits, open=back.open)
    following = ["An earlier run of this plan stands as well. To undo that too: the same once more."] * older
    following += [f"Mend what could not be read, then go on with going back: {GO_BACK}"] * bool(back.missing)
    result = ended(run, outcome, checks, back.sentences, following)
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
    checks = compared(bundle, goals_of(bundle), host_of(bundle))
    holds = all(each.holds for each in checks)
    host = bundle.plan["host"]
    lines = [*check_lines(checks, every=True), f"{host}: {'as planned' if holds else 'not as planned'}."]
    if bundle.stage["deferred"]:
        lines.append("  This says nothing of later stages, which this plan could not know.")
    return Result(0 if holds else 4, {"host": host, "holds": holds, "checks": list(map(asdict, checks))}, lines)


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


def main(given: argparse.Namespace, files: Files) -> Result:
    return COMMANDS[given.command](bundle_of(files), given)


if __name__ == "__main__":
    leave(result_of(lambda: main(ASKED, HERE)), ASKED.json)
