"""The text for a Linux machine is plain ASCII, parses with its Python, and calls nothing but what it is meant to."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from tests.rows import each_row
from winhost.resources.base import ResourceType, State
from winhost.resources.linux.linux_scripts import AGENT, AGENT_PARTS, agent_digest, agent_text, files, session_text
from winhost.resources.registry import LINUX, LINUX_STATES

HELPERS = {f"{name}.py" for name in AGENT_PARTS}
OLDEST = (3, 8)  # of Ubuntu 20.04
OPENS_FILES = {"files.py", "disks.py", "packages.py", "revocable.py", "serve.py"}
RUNS_PROGRAMS = {"subprocess": {"agent.py"}}  # who may import it
# Code made of text, and programs started past the one helper.
FORBIDDEN = {"eval", "exec", "compile", "__import__", "system", "popen", "spawnv", "execv", "execve", "fork"}


@dataclass(frozen=True)
class Script:
    name: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, feature_version=OLDEST)

    @property
    def contract(self) -> str:
        lines = self.text.split("\n")
        comment = lines[: next(n for n, line in enumerate(lines) if not line.startswith("#"))]
        return " ".join(line.removeprefix("# ") for line in comment)


def scripts() -> list[Script]:
    return [Script(name, file.read_text("utf-8")) for name, file in files().items()]


# ---- the checks, each telling what it found


def is_no_python_of_the_oldest(script: Script) -> Iterator[str]:
    try:
        ast.parse(script.text, feature_version=OLDEST)
    except SyntaxError as error:
        yield f"line {error.lineno}: {error.msg}"


def needs_more_than_the_standard_library(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            top = module.split(".")[0]
            if top not in sys.stdlib_module_names and not re.fullmatch(r"winhost\.agent\.linux_[a-z]+", module):
                yield f"imports {module}"
            if script.name not in RUNS_PROGRAMS.get(top, {script.name}):
                yield f"imports {module}"


def makes_code_or_runs_past_the_helper(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in FORBIDDEN and ast.unparse(node.func) != "re.compile":
                yield f"calls {name}"
            if any(keyword.arg == "shell" for keyword in node.keywords):
                yield "runs a shell"


def follows_links(script: Script) -> Iterator[str]:
    """Yield calls that open files. Only the agent's helpers, which follow no link, may do that; `Path` may only test
    paths.
    """
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Attribute) and node.attr in ("read_text", "read_bytes", "write_text", "write_bytes"):
            yield node.attr
        opens = isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "os.open", "os.fdopen")
        if opens and script.name not in OPENS_FILES:
            yield ast.unparse(node)


def is_not_plain_text(script: Script) -> Iterator[str]:
    for number, line in enumerate(script.text.split("\n"), 1):
        if not re.fullmatch(r"[ -~]*", line):
            yield f"line {number} is not plain ASCII"


def has_no_contract(script: Script) -> Iterator[str]:
    kind = r"Json \{.*\}   answer \{.*\}" if script.name == AGENT else r"key \{.*\}   state \{.*\}"
    if script.name in HELPERS:
        kind = "Part of the agent[:,] .*"
    if not re.fullmatch(kind, script.contract):
        yield "the first lines are no contract"


CHECKS: tuple[Callable[[Script], Iterator[str]], ...] = (
    is_no_python_of_the_oldest,
    needs_more_than_the_standard_library,
    makes_code_or_runs_past_the_helper,
    follows_links,
    is_not_plain_text,
    has_no_contract,
)
BITES: dict[str, tuple[Callable[[Script], Iterator[str]], str]] = {
    "a match statement": (is_no_python_of_the_oldest, "match 1:\n    case 1: pass\n"),
    "a package": (needs_more_than_the_standard_library, "import yaml\n"),
    "programs in a resource": (needs_more_than_the_standard_library, "import subprocess\n"),
    "a shell": (makes_code_or_runs_past_the_helper, "import os\nos.system('x')\n"),
    "a shell by a word": (makes_code_or_runs_past_the_helper, "run('x', shell=True)\n"),
    "code of text": (makes_code_or_runs_past_the_helper, "exec('x')\n"),
    "a file opened by name": (follows_links, "open('/etc/passwd')\n"),
    "a file read by name": (follows_links, "Path('/etc/passwd').read_text()\n"),
    "an umlaut": (is_not_plain_text, "x = 'ä'\n"),
    "no contract": (has_no_contract, "# a resource\nx = 1\n"),
}


@each_row("script", scripts(), ids=lambda script: script.name)
def test_a_script_has_no_faults(script: Script) -> None:
    assert [fault for check in CHECKS for fault in check(script)] == []


@each_row(("check", "text"), BITES.values(), ids=BITES.keys())
def test_what_bites_is_found(check: Callable[[Script], Iterator[str]], text: str) -> None:
    assert list(check(Script("resource.py", text)))


def test_each_check_has_a_case_that_proves_it() -> None:
    assert {check for check, _ in BITES.values()} == set(CHECKS)


# ---- all in one text


def test_no_name_is_defined_twice() -> None:
    names = Counter(name for script in scripts() for node in script.tree.body for name in defined(node))
    assert [name for name, times in names.items() if times > 1] == []
    # Whoever starts the agent gives it its own text by this name, which undoes a change that nobody keeps.
    assert "PROGRAM" not in names


def defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    if isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def test_every_function_is_used() -> None:
    called = {node.id for node in ast.walk(ast.parse(session_text())) if isinstance(node, ast.Name)}
    functions = [node for script in scripts() for node in script.tree.body if isinstance(node, ast.FunctionDef)]
    assert [f.name for f in functions if f.name not in called and not f.decorator_list] == []


def test_a_program_is_allowed_only_if_something_runs_it() -> None:
    called = set()
    for script in scripts():
        for node in ast.walk(script.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "run",
                "run_checked",
                "find_program",
                "check_with",
            ):
                called |= {a.value for a in node.args[:1] if isinstance(a, ast.Constant)}
    (allowed,) = re.findall(r"^PROGRAMS = \((.*?)^\)$", scripts()[0].text, re.MULTILINE | re.DOTALL)
    assert called == set(re.findall(r'"([^"]+)"', allowed))


def test_the_text_on_the_wire_is_constant_and_old_enough() -> None:
    shown = agent_text()
    agent_text.cache_clear()
    assert agent_text() == shown
    assert agent_digest() == sha256(shown.encode()).hexdigest()
    tree = ast.parse(session_text(), feature_version=OLDEST)
    imports = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert [module for module in imports if module and module.startswith("winhost")] == []
    assert imports.count("__future__") == 1


# ---- scripts and resources


def script_of(resource: ResourceType) -> Script:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", resource.name).lower() + "/script.py"
    return next(script for script in scripts() if script.name == name)


def declared(script: Script, by: str) -> tuple[str, ...]:
    """Return the arguments of a script's `@reads(...)` or `@changes(...)`."""
    for node in script.tree.body:
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == by:
                parts = [str(keyword.arg) for keyword in decorator.keywords if by == "reads"]
                return (*map(ast.literal_eval, decorator.args), *parts)
    return ()


def names(braced: str) -> tuple[str, ...]:
    inner = re.sub(r"\[.*?\]", "", braced[1:-1])
    return tuple(part.split(":")[0].strip() for part in inner.split(",")) if inner else ()


def test_every_resource_has_its_script_and_every_script_its_resource() -> None:
    assert {script.name for script in scripts()} == {
        AGENT,
        *HELPERS,
        *(script_of(resource).name for resource in LINUX.values()),
    }


@each_row("resource", LINUX.values(), ids=lambda resource: resource.name)
def test_a_script_reads_and_changes_what_its_resource_says(resource: ResourceType) -> None:
    script = script_of(resource)
    assert declared(script, "reads") == (resource.name, *resource.key)
    changed = declared(script, "changes")
    assert set(changed[1:]) == set(resource.sets)
    assert changed[:1] == ((resource.name,) if resource.sets else ())


@each_row("state", LINUX_STATES, ids=lambda state: state.resource_type.name)
def test_the_contract_has_the_properties_of_the_state(state: type[State]) -> None:
    ((key, properties),) = re.findall(r"key (\{.*?\})   state (\{.*\})", script_of(state.resource_type).contract)
    assert names(key) == state.resource_type.key
    assert names(properties) == tuple(state.__annotations__)
