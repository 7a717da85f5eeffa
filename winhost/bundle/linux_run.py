#!/usr/bin/python3 -I
"""Does in the Linux itself what plan.json wants of it, with a journal and a way back. For root, in a terminal there.

  python3 -I run.py apply --check           shows the steps; changes nothing and writes nothing
  python3 -I run.py apply                   does them; run again after a crash or a failure, it goes on
  python3 -I run.py verify                  is it so? Changes nothing
  python3 -I run.py rollback [--check]      undoes exactly what apply changed
  python3 -I run.py facts -o WHOLE          what this Linux tells; changes nothing. In WSL: facts FACTS -o WHOLE, with
                                            what Facts.ps1 wrote

It checks the sums of its folder, that this is the Linux that was planned for, and that it still is as the plan saw it.
Then it does the steps, one by one, each written to the journal before and after, and reads at the end whether all is as
wanted. Ctrl-C ends it after the step that it is at.

What takes effect only with a restart of this machine is done last. It says so and ends; restart, and run it again.

Exit codes: 0 done, 1 failure, 2 wrong usage, another machine or changed files, 4 the machine is not as the plan saw it
(or, at the end, not as wanted), 75 restart this machine, then go on.

This script is the same for every plan: what is wanted stands in plan.json beside it, and what is known of the resources
in resources.json; both are only ever read as data. agent.py is what winhost sends over SSH where it is allowed to, and
core/ is what winhost itself does, undoes and compares by. commands.py, host.py and journal.py belong to this one: it
runs them once their sums were checked. Python 3.10 and its standard library are enough, and 3.8
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
import hashlib
import importlib.util
import json
import os
import re
import signal
import time
import types
from contextlib import contextmanager, suppress
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
    "changes",
    "checks",
    "conditions",
    "dataclass",
    "dependents",
    "journal_lines",
    "loop",
    "marks",
    "order",
    "rollback",
    "rules",
    "steps",
    "undo",
)
MODULES = ("commands", "host", "journal")  # of what this does, beside it
FILES = (
    "agent.py",
    *(f"core/{name}.py" for name in CORE),
    *(f"{name}.py" for name in MODULES),
    *("plan.json", "resources.json", "run.py"),
)
SUMS = "SHA256SUMS"
JOURNALS = "/var/lib/winhost/bundles"
MACHINE_ID = "/etc/machine-id"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"  # the one that WslAccess tells of
SHOWN = 60  # characters of a text
CHANGES_FROM = (3, 10)  # of Python, as Ubuntu 22.04 has it
RESTART_NEEDED = 75  # exit code, as EX_TEMPFAIL: it failed for now


# ==== 1. what is asked, and how it ends


class BundleRefusal(Exception):
    """An error with what happened, what it means, and what to do."""

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
            told = "what Facts.ps1 wrote, for a Linux in WSL; - reads it from standard input"
            command.add_argument("facts", metavar="FACTS", nargs="?", help=told)
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
    """Print the result and end. A reader that is gone misses it; the journal has it."""
    if as_json or "resources" in result.document:
        lines = [json.dumps(result.document)]
    else:
        lines = [visible(line) for line in result.lines]
    with suppress(OSError):
        stream = sys.stderr if "error" in result.document and not as_json else sys.stdout
        stream.write("".join(f"{line}\n" for line in lines))
        stream.flush()
    sys.exit(result.code)


def visible(text: str) -> str:
    """Escape what a terminal would obey, hide or reorder: names are data."""
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
    def is_of_its_own(self) -> bool:
        """A machine without a Windows around it."""
        return bool(self.plan["request"]["path"] == "linux")

    @property
    def is_guest(self) -> bool:
        """This Linux is a VM that gets GPUs."""
        return bool(self.plan["request"]["path"] == "dda")

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
    # A plan that was just made has one stage: what is deferred becomes a plan of its own, from facts read then.
    first = plan["stages"][0]
    ours = {name: [each for each in first[name] if each["resource"] in resources] for name in ("desired", "steps")}
    sum_ = hashlib.sha256(files["plan.json"]).hexdigest()[:16]
    return Bundle(plan, {**first, **ours}, sum_, load(files["agent.py"]), resources)


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
    """Run the agent's text as a module. It is not imported by its name: Python would take what it once compiled of
    another text.
    """
    agent = types.ModuleType("agent")
    agent.__dict__["PROGRAM"] = text.decode("ascii")  # what undoes a change that nobody keeps
    exec(compile(text, "agent.py", "exec", dont_inherit=True), agent.__dict__)  # noqa: S102 - its sum was checked
    return agent


def refuse_writable(path: str, opened: int) -> None:
    """Refuse a file that others than root and the caller of sudo can write: they could put something else there after
    all.
    """
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
    if not isinstance(plan, dict) or plan.get("schema") != "winhost.plan/3":
        raise BundleRefusal(
            2, "WrongDocument", "plan.json has not the schema winhost.plan/3", "", "Make the bundle again."
        )
    return plan


# ==== 3. the machine: whose it is, and what its agent answers, as over SSH


def refuse_stranger() -> None:
    if os.geteuid() != 0:
        raise BundleRefusal(2, "NotRoot", "this needs root", "Nothing was changed.", "Type the same behind sudo.")


def refuse_others(bundle: Bundle) -> None:
    refuse_stranger()
    if bundle.is_of_its_own:
        refuse_other_machine(bundle)
        return
    key = bundle.plan.get("linux_key")
    if key is None:
        what = "this plan is not for a Linux: when it was made, none let anybody in"
        raise BundleRefusal(2, "WrongHost", what, "Nothing was changed.", "Plan again, from what `facts` says.")
    # Also once it shows the key that this very plan has it take.
    steps = [each for stage in bundle.plan["stages"] for each in stage["steps"] if each["resource"] == "SshHostKey"]
    refuse_other_linux(bundle, [key, *(each["desired"]["key"] for each in steps if "key" in each["desired"])])


def refuse_other_machine(bundle: Bundle) -> None:
    """Refuse another machine than that of the plan, by its id, which was read when the plan was made."""
    here = bundle.agent.content(MACHINE_ID).decode("ascii", "replace").strip()
    if here != bundle.plan["machine_id"]:
        what = f"this is another machine: its id is {here}, and the plan is for {bundle.plan['machine_id']}"
        raise BundleRefusal(2, "WrongHost", what, "Nothing was changed.", f"Compare: cat {MACHINE_ID}")


def refuse_other_linux(bundle: Bundle, keys: list[str]) -> None:
    """Refuse another Linux than that of the plan, by its host key, which Windows told when the plan was made."""
    here = bundle.agent.content(HOST_KEY).decode("utf-8", "replace").split()[:2]
    if here not in [key.split()[:2] for key in keys]:
        what = "this is not the one Linux that Windows let somebody into: its host key is another"
        raise BundleRefusal(2, "WrongHost", what, "Nothing was changed.", f"Compare: ssh-keygen -lf {HOST_KEY}")


class Here:
    """Takes the place of the agent's wire. Nobody leaves it, so a change that is under way is waited for."""

    def gone(self, within: float) -> bool:
        time.sleep(within)
        return False


def ask(bundle: Bundle, calls: list[State], settled: bool = False) -> list[State]:
    bundle.agent.ONCE.clear()
    answers: list[State] = bundle.agent.answers({"exclusive": settled, "calls": calls}, Here())
    return json.loads(json.dumps(answers))  # type: ignore[no-any-return]


def read(bundle: Bundle, resources: list[str]) -> State:
    """Read resources now: the agent's answer by resource."""
    calls = [{"resource": resource, "verb": "get"} for resource in resources]
    return dict(zip(resources, ask(bundle, calls, settled=True)))


# ==== 4. facts: what this Linux tells, and in WSL what it adds to those of Windows


def tell_facts(bundle: Bundle, given: argparse.Namespace) -> Result:
    refuse_stranger()
    if bundle.is_of_its_own != (given.facts is None):
        needs = (
            "takes no FACTS: it is a machine of its own" if given.facts else "needs FACTS of Facts.ps1 on its Windows"
        )
        raise BundleRefusal(2, "WrongUsage", f"facts of this Linux {needs}", "Nothing was changed.")
    document = own_facts(bundle) if bundle.is_of_its_own else facts_of_windows(given.facts)
    resources = {resource: as_fact(answer) for resource, answer in read(bundle, list(bundle.resources)).items()}
    add_named(bundle, resources)
    if bundle.is_of_its_own:
        refuse_other_machine(bundle)
    else:
        refuse_other_linux(bundle, ways_in(document))
    whole = dict(document, resources={**document["resources"], **resources})
    if given.output is None:
        return Result(0, whole, [])
    made = os.open(given.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(made, "w", encoding="ascii") as file:
        file.write(json.dumps(whole) + "\n")
    return Result(0, {"host": whole["host"], "written": given.output}, [f"Written to {given.output}."])


def add_named(bundle: Bundle, resources: State) -> None:
    """Add instances that the plan names and nothing lists, such as a file of what serves: the next plan needs them."""
    entries = [each for stage in bundle.plan["stages"] for each in stage["desired"]]
    entries += bundle.plan["request"]["playbook"].get("resources", [])
    for entry in entries:
        key, listed = entry.get("key") or {}, resources.get(entry["resource"])
        there = isinstance(listed, list) and any(each["key"] == key for each in listed)
        if not key or there or not isinstance(listed, list) or any("${" in value for value in key.values()):
            continue
        (answer,) = ask(bundle, [{"resource": entry["resource"], "verb": "get", "key": key}], settled=True)
        unread = {name: {"unknown": answer.get("error")} for name in entry["desired"]}
        state = answer.get("state") if answer["ok"] else unread if "error" in answer else None
        if state is not None:
            listed.append({"key": key, "state": state})


def own_facts(bundle: Bundle) -> State:
    """Begin a document of facts about this machine."""
    read_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    known = {"host": bundle.plan["host"], "origin": bundle.plan["origin"], "read_at": read_at, "winhost": WINHOST}
    return {"schema": "winhost.facts/3", **known, "resources": {}}


def facts_of_windows(path: str) -> State:
    with open(0 if path == "-" else path, "rb") as file:  # noqa: PTH123 - or what is piped in
        data = file.read()
    # > of Windows PowerShell writes UTF-16.
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        document = json.loads(data.decode(encoding))
    except ValueError as error:
        raise BundleRefusal(2, "WrongDocument", f"{path} is no JSON: {error}", "Nothing was changed.") from None
    if not isinstance(document, dict) or document.get("schema") != "winhost.facts/3":
        raise BundleRefusal(
            2, "WrongDocument", f"{path} has not the schema winhost.facts/3", "", "Make it with Facts.ps1."
        )
    return document


def ways_in(document: State) -> list[str]:
    """The host keys of the one Linux that lets somebody in, distro or guest, as Windows knows them."""
    distros = [each for each in told(document, "WslAccess") if each.get("active") is True]
    guests = [each for each in told(document, "VmSeed") if each.get("host_keys")]
    if len(distros) + len(guests) != 1:
        return []
    keys = guests[0]["host_keys"] if guests else [distros[0].get("host_key")]
    return [key for key in keys if isinstance(key, str)]


def told(document: State, resource: str) -> list[State]:
    answer = document["resources"].get(resource)
    return [each["state"] for each in answer] if isinstance(answer, list) else []


def as_fact(answer: State) -> Any:
    if answer["ok"]:
        return answer["instances"]
    return {"unavailable": answer["unavailable"]} if "unavailable" in answer else {"unknown": answer["error"]}


# ==== 5. core, and the rest of this: from the bytes that were checked


class CheckedModules:
    """Finds winhost.core and what lies beside this file, and nothing else. No folder is searched, and nothing compiled
    is read or left behind.
    """

    def __init__(self, files: Files) -> None:
        core = {f"winhost.core.{name}": files[f"core/{name}.py"] for name in CORE}
        beside = {f"winhost.bundle.linux_{name}": files[f"{name}.py"] for name in MODULES}
        packages = {"winhost": b"", "winhost.bundle": b"", "winhost.core": core.pop("winhost.core.__init__")}
        self.packages, self.sources = frozenset(packages), {**packages, **core, **beside}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self.sources:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=name in self.packages)  # type: ignore[arg-type]

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
    # What it consists of besides asks this very file for what stands in it.
    sys.modules["winhost.bundle.linux_run"] = sys.modules["__main__"]
    sys.meta_path.insert(0, CheckedModules(HERE))
    COMMANDS = importlib.import_module("winhost.bundle.linux_commands")
    leave(result_of(lambda: COMMANDS.main(ASKED, HERE)), ASKED.json)
