"""The scripts can be read: they parse, call only what exists, and keep away from what Windows PowerShell lacks."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files as files_of
from operator import itemgetter
from pathlib import Path

import pytest
import tree_sitter_powershell
from tree_sitter import Language, Node, Parser

from tests.cases import read_cases
from tests.rows import each_row
from winhost import connect, lab
from winhost.bundle import bundle_files
from winhost.connect.agent import MARKS
from winhost.resources.base import ResourceType, State
from winhost.resources.registry import WINDOWS, WINDOWS_STATES
from winhost.resources.windows.windows_scripts import AGENT, agent_digest, agent_text, files, helpers

DATA = Path(__file__).parents[1] / "data" / "powershell"
TABLE = json.loads((Path(lab.__path__[0]) / "powershell" / "cmdlets.json").read_text("utf-8"))
CMDLETS = TABLE["cmdlets"]
REFUSED = read_cases(DATA / "refused.yaml")

# They work on what is in memory: nothing that a module could report and go on.
ONLY_IN_MEMORY = {"ForEach-Object", "New-Object", "Set-StrictMode", "Sort-Object"}
MAY_BE_ABSENT = {"Get-Command", "Remove-TypeData"}  # asked for what may not be there, with -ErrorAction Ignore
ASK_BACK = {"Disable-PnpDevice", "Dismount-VMHostAssignableDevice", "Enable-PnpDevice", "Install-WindowsFeature"}
ASK_BACK |= {"Mount-VMHostAssignableDevice", "Remove-VMAssignableDevice", "Stop-VM", "Uninstall-WindowsFeature"}
ASK_BACK |= {"Remove-NetFirewallHyperVRule", "Remove-NetFirewallRule", "Remove-VMSwitch"}
ASK_BACK |= {"Unregister-ScheduledTask", "Format-Volume", "Remove-Partition", "Resize-Partition"}
# Only there: the first with consent; the second asks back whatever -Confirm says, in a task that nobody could answer.
FORCED = {("assignable_device/script.ps1", "Dismount-VMHostAssignableDevice")}
FORCED |= {("external_switch/task.ps1", "Remove-VMSwitch"), ("nat_switch/script.ps1", "Remove-VMSwitch")}
FORCED |= {
    ("resize_limit/script.ps1", "Remove-Job"),
    ("vm_power/script.ps1", "Remove-Job"),
}  # one that still waits is not removed otherwise
FORCED |= {("own_vm/script.ps1", "Remove-VM")}  # the same, and nobody sits there; with consent
NAMES_ANEW = {"New-VM", "New-VMSwitch"}  # what it makes is called so
SINCE_6 = {"IsWindows", "IsLinux", "IsMacOS", "IsCoreCLR", "PSStyle", "EnabledExperimentalFeatures"}
HELPERS_OWN = {"expression", "label", "value", "values"}  # a script block sees these before the names of its caller
# Among the arguments of New-Object: their constructors with as many have a text there, and no number.
TAKES_TEXT = {"System.Threading.Mutex", "System.Security.Principal.SecurityIdentifier"}
COMPILED = {  # constant, and only there
    ("helpers/firmware.ps1", "$script:WinhostNativeSource"),
    ("yield_watcher/watcher.ps1", "$source"),
    ("watch.ps1", "$source"),
}
RUN_PROGRAMS = {"Invoke-WinhostNative", "Invoke-WinhostProgram"}
CALLS_BY_VALUE = {"& $Expression", "& $Function"}  # a block that a resource hands over, a function that was looked up


@dataclass(frozen=True)
class Script:
    """A script as text and as tree-sitter reads it."""

    name: str
    text: str

    @property
    def root(self) -> Node:
        return _parsed(self.text)

    def nodes(self, *types: str) -> Iterator[Node]:
        found = (each for kind in types for each in _by_type(self.text).get(kind, ()))
        return (node for _, node in sorted(found, key=itemgetter(0)))


@cache
def _parsed(text: str) -> Node:
    return Parser(Language(tree_sitter_powershell.language())).parse(text.encode()).root_node


@cache
def _by_type(text: str) -> dict[str, list[tuple[int, Node]]]:
    """All nodes, each with its number in the order of the text: a script is walked once for its twenty checks."""
    found: defaultdict[str, list[tuple[int, Node]]] = defaultdict(list)
    for number, node in enumerate(_walk(_parsed(text))):
        found[node.type].append((number, node))
    return dict(found)


def _walk(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(node.children)


def said(node: Node | None) -> str:
    return "" if node is None or node.text is None else node.text.decode().strip()


def first(node: Node, kind: str) -> Node | None:
    return next((n for n in _walk(node) if n.type == kind), None)


@dataclass(frozen=True)
class Call:
    """One command: its name, the parameters with their arguments, and the arguments without a parameter."""

    name: str
    named: dict[str, str]
    unnamed: tuple[str, ...]


def calls(script: Script) -> Iterator[Call]:
    for command in script.nodes("command"):
        name = next((c for c in command.children if c.type == "command_name"), None)
        if name is not None:
            yield _call(said(name), next((c for c in command.children if c.type == "command_elements"), None))


def _call(name: str, elements: Node | None) -> Call:
    named: dict[str, str] = {}
    unnamed: list[str] = []
    waiting = ""
    for element in () if elements is None else elements.children:
        if element.type == "command_parameter":
            waiting = said(element).removeprefix("-")
            named[waiting] = ""
        elif element.type not in ("command_argument_sep", "redirection"):
            if waiting:
                named[waiting] = said(element)
            else:
                unnamed.append(said(element))
            waiting = ""
    return Call(name, named, tuple(unnamed))


@cache
def scripts() -> tuple[Script, ...]:
    return tuple(Script(name, file.read_bytes().decode("utf-8")) for name, file in files().items())


@cache
def bundle_scripts() -> tuple[Script, ...]:
    """Those of bundles, without the agent and the resources that one has at its end."""
    texts = {name: content.decode("ascii") for name, content in bundle_files.scripts().items()}
    assert [name for name, text in texts.items() if agent_text() in text] == [bundle_files.SHARED]
    return tuple(Script(name, text.replace(agent_text(), "")) for name, text in texts.items())


@cache
def functions() -> tuple[str, ...]:
    return tuple(name for script in scripts() for name in defined(script))


def defined(script: Script) -> tuple[str, ...]:
    return tuple(said(node) for node in script.nodes("function_name"))


@cache
def programs() -> frozenset[str]:
    (found,) = re.findall(r"^\$script:WinhostPrograms = @\((.*)\)$", agent_text(), re.MULTILINE)
    return frozenset(re.findall(r"'([^']+)'", found))


# ---- the checks, each telling what it found


def does_not_parse(script: Script) -> Iterator[str]:
    for node in _walk(script.root):
        if (node.is_error and not (node.parent and node.parent.is_error)) or node.is_missing:
            yield f"does not parse: {said(node)}"


def not_in_51(script: Script) -> Iterator[str]:
    if any(True for _ in script.nodes("pipeline_chain_tail")):
        yield "&& and || are not in 5.1"
    if re.search(r"\?\?|[\w})]\?\.", bare(script)):
        yield "?? and ?. are not in 5.1"
    for number in re.findall(r"(?i)(?<![\w.])\d+[kmgtp]b\b", bare(script)):
        yield f"{number}: write bytes as a plain number"
    for variable in script.nodes("variable"):
        if said(variable).removeprefix("$") in SINCE_6:
            yield f"{said(variable)} is not in 5.1"


def bare(script: Script) -> str:
    """The code without comments and strings."""
    code = bytearray(script.text.encode())
    for node in script.nodes("comment", "string_literal"):
        code[node.start_byte : node.end_byte] = b" " * (node.end_byte - node.start_byte)
    return code.decode()


def makes_code_of_text(script: Script) -> Iterator[str]:
    for node in script.nodes("type_literal"):
        if said(node).lower() in ("[scriptblock]", "[system.management.automation.scriptblock]"):
            parent = node.parent
            if parent is not None and parent.type == "invokation_expression":
                yield f"{said(node)} makes code of text"
    for call in calls(script):
        if call.name == "Add-Type" and (script.name, call.named.get("TypeDefinition")) not in COMPILED:
            yield "Add-Type makes code of text"
    for node in script.nodes("member_name"):
        if said(node).lower() in ("invokescript", "newscriptblock"):
            yield f".{said(node)} makes code of text"


def calls_by_value(script: Script) -> Iterator[str]:
    for node in script.nodes("command_invokation_operator"):
        called = f"{said(node)} {said(node.next_named_sibling)}"
        if script.name != AGENT or called not in CALLS_BY_VALUE:
            yield f"{called}: only the agent calls by value"


def calls_what_exists(script: Script) -> Iterator[str]:
    own = defined(script)
    for call in calls(script):
        if call.name in RUN_PROGRAMS:
            if call.unnamed[0].strip("'") not in programs() and script.name != "helpers/programs.ps1":
                yield f"{call.name} {call.unnamed[0]} is not allowed"
        elif call.name in CMDLETS:
            yield from _cmdlet(call)
        elif call.name not in (*functions(), *own):
            yield f"unknown command {call.name}"


def _cmdlet(call: Call) -> Iterator[str]:
    known = {*CMDLETS[call.name]["parameters"], *TABLE["common"]}
    if CMDLETS[call.name].get("confirms"):
        known |= {"Confirm", "WhatIf"}
    for parameter in call.named:
        if parameter not in known:
            yield f"{call.name} has no -{parameter}"
    for argument in call.unnamed:
        yield f"{call.name} {argument}: name the parameter"


def stops_on_errors(script: Script) -> Iterator[str]:
    for call in calls(script):
        if call.name in CMDLETS and call.name not in ONLY_IN_MEMORY:
            desired = "Ignore" if call.name in MAY_BE_ABSENT else "Stop"
            if call.named.get("ErrorAction") != desired:
                yield f"{call.name} without -ErrorAction {desired}"


def is_careful(script: Script) -> Iterator[str]:
    for call in calls(script):
        if "Force" in call.named and (script.name, call.name) not in FORCED:
            yield f"{call.name} -Force weakens something"
        if call.name in ASK_BACK and call.named.get("Confirm") != "$false":
            yield f"{call.name} without -Confirm:$false"
        if call.named.get("WarningAction", "Continue") != "Continue":
            yield f"{call.name} silences warnings"
        for parameter in ("Name", "VMName"):
            of_hyper_v = CMDLETS.get(call.name, {}).get("module") == "Hyper-V"
            if parameter in call.named and of_hyper_v and call.name not in NAMES_ANEW:
                yield f"{call.name} -{parameter} takes wildcards and repeats"


# Of what is caught and not told there: why it need not be. By the function that catches it.
QUIET = {
    "Read-WinhostStateOrNull": "the fault before it is told, and `after` is null",
    "Read-WinhostAttributes": "what is not there has no attributes",
    "Remove-WinhostEmptyFolder": "its caller has what is in it taken away, and says where that comes to nothing",
    "Find-WinhostJobProgram": "only where there is no registry at all, which is no Windows",
    "Send-WinhostJobInput": "the code of the program that did not read on says why",
    "Test-WinhostTaskPassword": "whoever needs a job is told of it: WslVm, WslDistro and their like",
    "Wait-WinhostSwitchReady": "whatever comes after it fails by itself, and is written down",
    "ConvertFrom-WinhostBase64": "its caller takes nothing for no base64, and says so",
    "Close-WinhostRun": "it was told when the line was written",
    "ConvertFrom-WinhostLine": "its caller tells of a damaged journal, with the line",
    "Read-WinhostVolumeHash": "a file that is not there has no hash",
    "Read-WinhostVolumeFiles": "what is told of the file has neither size nor hash",
    "Enter-WinhostMutex": "an abandoned mutex is ours: no failure",
}
TELLS = re.compile(
    r"\bthrow\b|(Stop|Deny)-Winhost|Write-Warning|ConvertTo-Winhost(Error|Failure|Missing)|\.Message|= \$_\s"
)


def tells_what_it_catches(script: Script) -> Iterator[str]:
    for clause in script.nodes("catch_clause"):
        name = _function_around(clause)
        if not TELLS.search(said(clause)) and name not in QUIET:
            yield f"{name}: what is caught is told to nobody"


def _function_around(node: Node) -> str:
    """The name of the innermost function; nothing outside of all."""
    while node.parent is not None:
        node = node.parent
        if node.type == "function_statement":
            return said(first(node, "function_name"))
    return ""


# .NET's Exists also says no where access is denied. By the function that may ask them all the same: why.
MAY_TAKE_DENIED_FOR_ABSENT = {
    "": "a bundle whose shared part cannot be read is refused like one without it",
    "Assert-WinhostSums": "a file that cannot be read is refused like one that is missing",
    "Read-WinhostSums": "the same",
    "Read-WinhostStepSecret": "a secret that cannot be read is refused like one that is missing",
    "Register-WinhostTask": "the copy is checked against its sums",
    "New-WinhostVerdict": "it only says where more can be asked",
    "Write-WinhostJobBytes": "a move never writes over a file",
    "Test-WinhostJobPending": "the job is not begun, and whoever waits for it is told",
}


def knows_denied_from_absent(script: Script) -> Iterator[str]:
    for node in script.nodes("member_name"):
        if said(node) == "Exists" and _function_around(node) not in MAY_TAKE_DENIED_FOR_ABSENT:
            yield f"{said(node)}: takes what may not be seen for absent; ask Read-WinhostAttributes"


# An error in a cleanup takes the place of the one that it cleans up after. The first two make a warning of it.
KEEPS_THE_FIRST = {"Invoke-WinhostBestEffort", "Invoke-WinhostCleanup", "Close-WinhostRun"}
CANNOT_FAIL = {"Dispose", "ReleaseMutex", "ZeroFreeBSTR"}  # of what this very function opened
CANNOT_FAIL |= {"CurrentCulture"}  # that of before
CLEANS_UP = re.compile(r"(Remove|Dismount|Unregister|Clear|Initialize|Restore|Stop)-(?!Winhost(Script)?$)")


def keeps_the_first_error(script: Script) -> Iterator[str]:
    for clause in script.nodes("finally_clause"):
        for name in _reached(clause, "command_name", "member_name"):
            if name not in KEEPS_THE_FIRST | CANNOT_FAIL:
                yield f"finally: {name} may fail, and hide why"
    for clause in script.nodes("catch_clause"):
        if re.search(r"\bthrow\b|Stop-Winhost", said(clause)):
            for name in filter(CLEANS_UP.match, _reached(clause, "command_name")):
                yield f"catch: {name} may fail, and hide why"


def _reached(node: Node, *types: str) -> Iterator[str]:
    """Return the functions that are called, without those that receive a block and those in a try block."""
    for child in node.children:
        if child.type in types:
            yield said(child)
        elif child.type not in ("try_statement", "script_block_expression"):
            yield from _reached(child, *types)


def hashes_where_fips_is_enforced(script: Script) -> Iterator[str]:
    """There .NET refuses its own implementations, which Create gives in Windows PowerShell."""
    for found in re.findall(r"\b(?:MD5|SHA\d+)\]?(?:::|\.)Create\(|\bSHA\d+Managed\b", script.text):
        yield f"{found}: refused by the FIPS policy; SHA256CryptoServiceProvider is not"


def gives_numbers_and_words_their_types(script: Script) -> Iterator[str]:
    """Find texts for enumerations: PowerShell would convert them to numbers, and choose another constructor."""
    for call in calls(script):
        has_text = call.name == "New-Object" and "'" in call.named.get("ArgumentList", "")
        if has_text and call.named.get("TypeName") not in TAKES_TEXT:
            yield f"{call.named.get('TypeName')}: a text among the arguments may be taken for a number"


def keeps_its_own_names(script: Script) -> Iterator[str]:
    names = {said(node) for node in script.nodes("variable")}
    for name in sorted(names):
        if script.name != AGENT and name.removeprefix("$").lower() in HELPERS_OWN:
            yield f"{name} belongs to the agent's helpers"


AUTOMATIC = {"_", "true", "false", "null", "args", "matches", "lastexitcode", "psversiontable", "psscriptroot"}
AUTOMATIC |= {"executioncontext", "erroractionpreference"}


def reads_what_was_assigned(script: Script) -> Iterator[str]:
    """Find variables that a function reads and never assigns: strict mode stops there, or a caller's value is read."""
    for function in script.nodes("function_statement"):
        assigned = {name.lower() for node in _walk(function) for name in _assigned(node)}
        for node in _walk(function):
            name = said(node).lstrip("$@").strip("{}")
            if node.type == "variable" and ":" not in name and name.lower() not in assigned | AUTOMATIC:
                yield f"{said(first(function, 'function_name'))}: ${name} has no value"


def _assigned(node: Node) -> Iterator[str]:
    if node.type == "left_assignment_expression" and re.fullmatch(
        r"(?:(?:\[[\w.]+(?:\[\])?\])?\$\w+(?:, )?)+", said(node)
    ):
        yield from re.findall(r"\$(\w+)", said(node))
    if node.type in ("script_parameter", "foreach_statement"):
        yield said(next(each for each in node.children if each.type == "variable")).removeprefix("$")


def is_plain_text(script: Script) -> Iterator[str]:
    for number, line in enumerate(script.text.split("\n"), 1):
        if not re.fullmatch(r"[ -~]*", line):
            yield f"line {number} is not plain ASCII"


def is_part(script: Script) -> bool:
    """Tell whether it is a further file of a long script, whose contract is in `script.ps1`."""
    return "/" in script.name and script.name not in helpers() and not script.name.endswith("/script.ps1")


def has_a_contract(script: Script) -> Iterator[str]:
    if is_part(script):
        return
    kind = r"# key \{.*\}   state \{.*\}.*"
    if script.name == AGENT:
        kind = r"# Json \{.*\}   answer \{.*\}"
    elif script.name in helpers():
        kind = r"# [A-Z].*\."  # nobody calls it from without: it says what it is about
    if not re.fullmatch(kind, script.text.split("\n", 1)[0]):
        yield "the first line is no contract"


CHECKS: tuple[Callable[[Script], Iterator[str]], ...] = (
    does_not_parse,
    not_in_51,
    makes_code_of_text,
    calls_by_value,
    calls_what_exists,
    stops_on_errors,
    is_careful,
    tells_what_it_catches,
    knows_denied_from_absent,
    keeps_the_first_error,
    hashes_where_fips_is_enforced,
    gives_numbers_and_words_their_types,
    keeps_its_own_names,
    reads_what_was_assigned,
    is_plain_text,
    has_a_contract,
)


def faults(script: Script) -> list[str]:
    return [fault for check in CHECKS for fault in check(script)]


# ---- the scripts


@pytest.mark.costly
@each_row("script", scripts(), ids=lambda script: script.name)
def test_a_script_has_no_faults(script: Script) -> None:
    assert faults(script) == []


@pytest.mark.parametrize("script", bundle_scripts(), ids=lambda script: script.name)
def test_a_script_of_a_bundle_has_no_faults_but_that_it_loads_the_shared_part(script: Script) -> None:
    start = bundle_files.HEADS.get(script.name, "").partition(" ")[0]
    loads = [". '.\\Winhost.ps1': only the agent calls by value", f"unknown command {start}"] if start else []
    assert [fault for check in CHECKS if check is not has_a_contract for fault in check(script)] == loads


def test_what_brings_the_agent_to_a_process_has_no_faults_but_that_it_does() -> None:
    script = Script("winrs.ps1", (files_of(connect) / "winrs.ps1").read_bytes().decode("utf-8"))
    assert [fault for check in CHECKS if check is not has_a_contract for fault in check(script)] == [
        "[ScriptBlock] makes code of text",
        ". ([ScriptBlock]::Create($sent.script)): only the agent calls by value",
    ]


@each_row("name", REFUSED)
def test_what_bites_is_refused(name: str) -> None:
    case = dict(REFUSED[name])
    text = f"{case.pop('contract', '# key {}   state {}')}\n{case.pop('script')}\n"
    expected = case.pop("faults")
    assert case == {}, "a key that this harness does not know"
    assert sorted(set(faults(Script("resource.ps1", text)))) == sorted(expected)


def test_each_check_has_a_case_that_proves_it() -> None:
    texts = [
        Script("resource.ps1", f"{c.get('contract', '# key {}   state {}')}\n{c['script']}\n") for c in REFUSED.values()
    ]
    assert [check.__name__ for check in CHECKS if not any(list(check(script)) for script in texts)] == []


def test_what_is_caught_in_silence_is_caught_there() -> None:
    every = {name for script in (*scripts(), *bundle_scripts()) for name in defined(script)}
    assert set(QUIET) - every == set()
    assert set(MAY_TAKE_DENIED_FOR_ABSENT) - every == {""}


def test_the_cmdlet_table_holds_what_is_called_and_nothing_else() -> None:
    called = {call.name for script in (*scripts(), *bundle_scripts()) for call in calls(script)}
    assert set(CMDLETS) == {name for name in called if "-Winhost" not in name}


def test_a_program_is_allowed_only_if_a_resource_runs_it() -> None:
    run = {call.unnamed[0].strip("'") for s in scripts() for call in calls(s) if call.name in RUN_PROGRAMS}
    assert run - {"$Program"} == programs()


def test_every_function_is_defined_once_and_used() -> None:
    entries = {"Invoke-Winhost", "Invoke-WinhostSwitchTask", "Restart-WinhostBoot", "Send-WinhostStagedFile"}
    entries |= {f"{verb}-Winhost{resource}" for resource in (*WINDOWS, MARKS) for verb in ("Get", "Set")}
    called = {call.name for script in scripts() for call in calls(script)}
    assert len(set(functions())) == len(functions())
    assert set(functions()) - called - entries == set()


def test_every_function_of_a_bundle_is_defined_once_and_used() -> None:
    called = {call.name for script in bundle_scripts() for call in calls(script)}
    own = [name for script in bundle_scripts() for name in defined(script)]
    assert len({*own, *functions()}) == len(own) + len(functions())
    assert set(own) - called == set()


# ---- scripts and resources


def folder(resource: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", resource.replace("HyperV", "Hyperv")).lower()


def script_of(resource: ResourceType) -> Script:
    return next(script for script in scripts() if script.name == f"{folder(resource.name)}/script.ps1")


def parts_of(resource: ResourceType) -> list[Script]:
    """Its script, and what is told apart from it."""
    return [script for script in scripts() if script.name.startswith(f"{folder(resource.name)}/")]


def names(braced: str) -> tuple[str, ...]:
    """The names in `{a, b: int, c: [{start, length: bytes}], d: text}`."""
    inner = braced[1:-1]
    while re.search(r"[\[{][^\[\]{}]*[\]}]", inner):
        inner = re.sub(r"[\[{][^\[\]{}]*[\]}]", "", inner)
    return tuple(part.split(":")[0].strip() for part in inner.split(",")) if inner else ()


def test_every_resource_has_its_script_and_every_script_its_resource() -> None:
    folders = sorted(folder(resource) for resource in WINDOWS)
    assert [s.name for s in scripts() if not is_part(s)] == [AGENT, *helpers(), *(f"{f}/script.ps1" for f in folders)]
    assert {s.name.partition("/")[0] for s in scripts() if is_part(s)} <= set(folders)
    assert {f for f in functions() if f.startswith("Get-")} == {
        f"Get-Winhost{resource}" for resource in (*WINDOWS, MARKS)
    }


def test_no_function_takes_the_place_of_another() -> None:
    """Agent, resources and the chapters of bundles are one text: of two with one name the last would be called."""
    chapters = [name for script in bundle_scripts() if script.name == bundle_files.SHARED for name in defined(script)]
    assert [name for name, times in Counter((*functions(), *chapters)).items() if times > 1] == []


def test_what_can_be_set_has_a_set_and_nothing_else_has() -> None:
    settable = {f"Set-Winhost{name}" for name in (MARKS, *(each.name for each in WINDOWS.values() if each.sets))}
    assert {f for f in functions() if f.startswith("Set-")} == settable


@each_row("resource", [resource for resource in WINDOWS.values() if resource.sets], ids=lambda resource: resource.name)
def test_a_set_takes_what_its_resource_says(resource: ResourceType) -> None:
    (taken,) = re.findall(r"Assert-WinhostDesired \$Desired @\((.*)\)", script_of(resource).text)
    assert set(re.findall(r"'(\w+)'", taken)) == set(resource.sets)


@each_row("state", WINDOWS_STATES, ids=lambda state: state.resource_type.name)
def test_contract_and_script_have_the_properties_of_the_state(state: type[State]) -> None:
    script = script_of(state.resource_type)
    contract = script.text.split("\n", 1)[0]
    ((key, properties),) = re.findall(r"# key (\{.*?\})   state (\{.*\})", contract.split("; ")[0])
    desired = set(state.__annotations__)
    assert names(key) == state.resource_type.key
    assert set(names(properties)) == desired
    for table, own in (("state", desired), ("key", state.resource_type.key)):
        written = {frozenset(each) for part in parts_of(state.resource_type) for each in tables(part, table)}
        assert written == {frozenset(own)}


def tables(script: Script, name: str) -> Iterator[set[str]]:
    """The keys of each hashtable literal that is given to `$name` or put under `name`."""
    for table in script.nodes("hash_literal_expression"):
        holder = table.parent
        while holder is not None and holder.type not in ("assignment_expression", "hash_entry"):
            holder = holder.parent
        if holder is not None and said(holder).split("=")[0].strip() in (name, f"${name}"):
            entries = (n for body in table.children for n in body.children if n.type == "hash_entry")
            yield {said(entry.children[0]) for entry in entries}


# ---- on the wire


def test_the_text_on_the_wire_is_constant() -> None:
    shown = agent_text()
    agent_text.cache_clear()
    assert agent_text() == shown
    assert agent_digest() == sha256(shown.encode()).hexdigest()
    assert shown == "\n".join(script.text for script in scripts())


def test_the_agent_comes_first_then_its_helpers_and_the_resources_in_order() -> None:
    agent, *rest = files()
    shared, resources = rest[: len(helpers())], rest[len(helpers()) :]
    assert agent == AGENT
    assert shared == sorted(helpers())
    assert resources == sorted(resources)
