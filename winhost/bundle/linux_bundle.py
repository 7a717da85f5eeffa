"""An offline package on the Linux where it runs: read its plan, check the machine, and write the machine's facts."""

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

WINHOST = "@winhost@"  # the version of winhost that made the package
MACHINE_ID = "/etc/machine-id"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"  # the key in the facts of WslAccess
MAX_SHOWN = 60  # characters of a text


# ==== 1. the result of a command


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
        details = [f"  {line}" for line in (*self.meaning.split("\n"), self.hint) if line]
        return Result(self.code, {"error": document}, [f"error: {self.what}", *details])


class Result(NamedTuple):
    code: int
    document: State
    lines: list[str]


def result_of(action: Callable[[], Result]) -> Result:
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - any error is printed as the one document
        return error_result(error)


def error_result(error: Exception) -> Result:
    refusal = error if isinstance(error, BundleRefusal) else None
    return (refusal or BundleRefusal(1, "Failure", f"{type(error).__name__}: {error}")).result


def print_and_exit(result: Result, as_json: bool) -> NoReturn:
    """Print the result and exit. If the reader has closed the pipe, the result is still in the journal."""
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
    """Escape characters that a terminal would interpret, hide or reorder."""
    return "".join(each if each.isprintable() and each.isascii() else f"\\u{ord(each):04x}" for each in text)


def format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"


def main(options: argparse.Namespace, files: Files) -> Result:
    """Run the command `facts`. Commands that change the machine are in linux_commands."""
    return result_of(lambda: write_facts(bundle_of(files), options))


# ==== 2. the files of the package


class Bundle(NamedTuple):
    """An offline package. stage: the first one of the plan, with its entries for Linux alone; sum: of the plan;
    resources: the rules by resource, in the order of changes.
    """

    plan: State
    stage: State
    sum: str
    agent: Any
    resources: State

    @property
    def is_standalone(self) -> bool:
        """True for a Linux machine of its own, without Windows."""
        return bool(self.plan["request"]["path"] == "linux")

    @property
    def is_guest(self) -> bool:
        """True for the Linux of a VM that gets GPUs."""
        return bool(self.plan["request"]["path"] == "dda")

    @property
    def changeable(self) -> list[str]:
        return [name for name, declared in self.resources.items() if "sets" in declared]

    def titled(self, resource: str) -> str:
        return str(self.resources[resource]["title"])

    def credential_of(self, resource: str) -> str:
        """Return the property of a resource that holds a secret reference; empty if there is none."""
        return str(self.resources[resource].get("credential", ""))


def bundle_of(files: Files) -> Bundle:
    plan, resources = plan_of(files["plan.json"]), json.loads(files["resources.json"])
    # A plan for a package has one stage. Its deferred resources are planned later, from new facts.
    stage = plan["stages"][0]
    own_entries = {
        name: [each for each in stage[name] if each["resource"] in resources] for name in ("desired", "steps")
    }
    sum_ = hashlib.sha256(files["plan.json"]).hexdigest()[:16]
    return Bundle(plan, {**stage, **own_entries}, sum_, load_agent(files["agent.py"]), resources)


def load_agent(text: bytes) -> Any:
    """Run the agent's text as a module. An import by name could use a compiled file of another version."""
    agent = types.ModuleType("agent")
    agent.__dict__["PROGRAM"] = text.decode("ascii")  # the program that undoes a change which is not confirmed
    exec(compile(text, "agent.py", "exec", dont_inherit=True), agent.__dict__)  # noqa: S102 - its sum was checked
    return agent


def plan_of(text: bytes) -> State:
    try:
        plan = json.loads(text.decode("utf-8-sig"))
    except ValueError as error:
        reason = f"is no JSON: {error}" if text.strip() else "is empty"
        raise BundleRefusal(
            2, "WrongDocument", f"plan.json {reason}", "Nothing was done.", "Make the bundle again."
        ) from None
    if not isinstance(plan, dict) or plan.get("schema") != "winhost.plan/3":
        raise BundleRefusal(
            2, "WrongDocument", "plan.json has not the schema winhost.plan/3", "", "Make the bundle again."
        )
    return plan


# ==== 3. the machine: check its identity, and call the agent as over SSH


def require_root() -> None:
    if os.geteuid() != 0:
        raise BundleRefusal(2, "NotRoot", "this needs root", "Nothing was changed.", "Type the same behind sudo.")


def require_planned_machine(bundle: Bundle) -> None:
    require_root()
    if bundle.is_standalone:
        refuse_other_machine(bundle)
        return
    key = bundle.plan.get("linux_key")
    if key is None:
        what = "this plan is not for a Linux: when it was made, none let anybody in"
        raise BundleRefusal(2, "WrongHost", what, "Nothing was changed.", "Plan again, from what `facts` says.")
    # The plan itself may have changed the host key.
    steps = [each for stage in bundle.plan["stages"] for each in stage["steps"] if each["resource"] == "SshHostKey"]
    refuse_other_linux(bundle, [key, *(each["desired"]["key"] for each in steps if "key" in each["desired"])])


def refuse_other_machine(bundle: Bundle) -> None:
    """Refuse another machine than that of the plan, by its machine id."""
    machine_id = bundle.agent.read_file(MACHINE_ID).decode("ascii", "replace").strip()
    if machine_id != bundle.plan["machine_id"]:
        what = f"this is another machine: its id is {machine_id}, and the plan is for {bundle.plan['machine_id']}"
        raise BundleRefusal(2, "WrongHost", what, "Nothing was changed.", f"Compare: cat {MACHINE_ID}")


def refuse_other_linux(bundle: Bundle, keys: list[str]) -> None:
    """Refuse another Linux than that of the plan, by its host key. keys: the host keys that Windows has recorded."""
    host_key = bundle.agent.read_file(HOST_KEY).decode("utf-8", "replace").split()[:2]
    if host_key not in [key.split()[:2] for key in keys]:
        what = "this is not the one Linux that Windows let somebody into: its host key is another"
        raise BundleRefusal(2, "WrongHost", what, "Nothing was changed.", f"Compare: ssh-keygen -lf {HOST_KEY}")


class LocalWire:
    """Replaces the agent's wire. It never disconnects, so the agent waits for a running change."""

    def is_closed(self, within: float) -> bool:
        time.sleep(within)
        return False


def call_agent(bundle: Bundle, calls: list[State], settled: bool = False) -> list[State]:
    bundle.agent.ONCE.clear()
    answers: list[State] = bundle.agent.answer_calls({"exclusive": settled, "calls": calls}, LocalWire())
    return json.loads(json.dumps(answers))  # type: ignore[no-any-return]


def read_resources(bundle: Bundle, resources: list[str]) -> State:
    """Read resources now. Returns the agent's answers by resource."""
    calls = [{"resource": resource, "verb": "get"} for resource in resources]
    return dict(zip(resources, call_agent(bundle, calls, settled=True)))


# ==== 4. facts of this Linux, which in WSL are added to those of Windows


def write_facts(bundle: Bundle, options: argparse.Namespace) -> Result:
    require_root()
    if bundle.is_standalone != (options.facts is None):
        needs = (
            "takes no FACTS: it is a machine of its own" if options.facts else "needs FACTS of Facts.ps1 on its Windows"
        )
        raise BundleRefusal(2, "WrongUsage", f"facts of this Linux {needs}", "Nothing was changed.")
    document = new_facts(bundle) if bundle.is_standalone else facts_of_windows(options.facts)
    resources = {
        resource: to_fact(answer) for resource, answer in read_resources(bundle, list(bundle.resources)).items()
    }
    add_named(bundle, resources)
    if bundle.is_standalone:
        refuse_other_machine(bundle)
    else:
        refuse_other_linux(bundle, linux_host_keys(document))
    facts = dict(document, resources={**document["resources"], **resources})
    if options.output is None:
        return Result(0, facts, [])
    descriptor = os.open(options.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(json.dumps(facts) + "\n")
    return Result(0, {"host": facts["host"], "written": options.output}, [f"Written to {options.output}."])


def add_named(bundle: Bundle, resources: State) -> None:
    """Add instances that the plan names and the agent does not list, such as files: the next plan needs them."""
    entries = [each for stage in bundle.plan["stages"] for each in stage["desired"]]
    entries += bundle.plan["request"]["playbook"].get("resources", [])
    for entry in entries:
        key, listed = entry.get("key") or {}, resources.get(entry["resource"])
        is_listed = isinstance(listed, list) and any(each["key"] == key for each in listed)
        if not key or is_listed or not isinstance(listed, list) or any("${" in value for value in key.values()):
            continue
        (answer,) = call_agent(bundle, [{"resource": entry["resource"], "verb": "get", "key": key}], settled=True)
        unread = {name: {"unknown": answer.get("error")} for name in entry["desired"]}
        state = answer.get("state") if answer["ok"] else unread if "error" in answer else None
        if state is not None:
            listed.append({"key": key, "state": state})


def new_facts(bundle: Bundle) -> State:
    """Return a facts document for this machine, without resources."""
    read_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    about = {"host": bundle.plan["host"], "origin": bundle.plan["origin"], "read_at": read_at, "winhost": WINHOST}
    return {"schema": "winhost.facts/3", **about, "resources": {}}


def facts_of_windows(path: str) -> State:
    with open(0 if path == "-" else path, "rb") as file:  # noqa: PTH123 - 0 is standard input
        data = file.read()
    # The operator > of Windows PowerShell writes UTF-16.
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


def linux_host_keys(document: State) -> list[str]:
    """Return the host keys of the one Linux with SSH access, distro or guest, from the facts of Windows."""
    distros = [each for each in states_of(document, "WslAccess") if each.get("active") is True]
    guests = [each for each in states_of(document, "VmSeed") if each.get("host_keys")]
    if len(distros) + len(guests) != 1:
        return []
    keys = guests[0]["host_keys"] if guests else [distros[0].get("host_key")]
    return [key for key in keys if isinstance(key, str)]


def states_of(document: State, resource: str) -> list[State]:
    answer = document["resources"].get(resource)
    return [each["state"] for each in answer] if isinstance(answer, list) else []


def to_fact(answer: State) -> Any:
    if answer["ok"]:
        return answer["instances"]
    return {"unavailable": answer["unavailable"]} if "unavailable" in answer else {"unknown": answer["error"]}
