"""An offline package on the Linux where it runs: its plan, the machine, and the facts that this machine adds."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    State = dict[str, Any]
    Files = dict[str, bytes]

WINHOST = "@winhost@"  # the version that made this
MACHINE_ID = "/etc/machine-id"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"  # the one that WslAccess tells of
SHOWN = 60  # characters of a text


# ==== 1. how a command ends


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


def main(given: argparse.Namespace, files: Files) -> Result:
    """Answer `facts`; what changes a machine is in linux_commands."""
    return result_of(lambda: tell_facts(bundle_of(files), given))


# ==== 2. what the folder holds


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


def load(text: bytes) -> Any:
    """Run the agent's text as a module. It is not imported by its name: Python would take what it once compiled of
    another text.
    """
    agent = types.ModuleType("agent")
    agent.__dict__["PROGRAM"] = text.decode("ascii")  # what undoes a change that nobody keeps
    exec(compile(text, "agent.py", "exec", dont_inherit=True), agent.__dict__)  # noqa: S102 - its sum was checked
    return agent


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
    here = bundle.agent.read_file(MACHINE_ID).decode("ascii", "replace").strip()
    if here != bundle.plan["machine_id"]:
        what = f"this is another machine: its id is {here}, and the plan is for {bundle.plan['machine_id']}"
        raise BundleRefusal(2, "WrongHost", what, "Nothing was changed.", f"Compare: cat {MACHINE_ID}")


def refuse_other_linux(bundle: Bundle, keys: list[str]) -> None:
    """Refuse another Linux than that of the plan, by its host key, which Windows told when the plan was made."""
    here = bundle.agent.read_file(HOST_KEY).decode("utf-8", "replace").split()[:2]
    if here not in [key.split()[:2] for key in keys]:
        what = "this is not the one Linux that Windows let somebody into: its host key is another"
        raise BundleRefusal(2, "WrongHost", what, "Nothing was changed.", f"Compare: ssh-keygen -lf {HOST_KEY}")


class Here:
    """Takes the place of the agent's wire. Nobody leaves it, so a change that is under way is waited for."""

    def is_closed(self, within: float) -> bool:
        time.sleep(within)
        return False


def ask(bundle: Bundle, calls: list[State], settled: bool = False) -> list[State]:
    bundle.agent.ONCE.clear()
    answers: list[State] = bundle.agent.answer_calls({"exclusive": settled, "calls": calls}, Here())
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
