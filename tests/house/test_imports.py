"""The house stands on two rules: dependencies point downward, and `--help` is quick."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.house.tree import HOUSE, imports, modules, source, sources
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.lab.hostfile import expand, find
from winhost.model.documents import write_document

# A part may import itself, `core` and the parts below it. `__main__` only starts the command line.
MAY_IMPORT = {
    "core": set(),
    "model": set(),
    "connect": {"model", "web"},
    "agent": {"gateway"},  # which has the form of its files of keys
    # Those of Linux are a part of their own: the registry finds both kinds by their folders.
    "resources": {"model", "agent"},
    "resources/linux": {"model", "agent", "gateway", "resources"},
    "imports": {"model", "resources"},
    "findings": {"model"},
    "knowledge": {"model", "findings"},
    "hardware": {"model", "resources"},
    "sizing": {"model"},
    "wslconfig": {"model", "findings", "resources"},
    "web": {"model"},
    "images": {"model", "web"},
    "autoinstall": {"model", "findings", "web", "images", "resources", "hardware"},
    "hub": {"model", "web"},
    "offline": {"model", "web", "images", "hub"},
    "gateway": set(),  # runs on the Linux that serves
    "paths": {"model", "resources", "resources/linux", "hardware", "sizing", "wslconfig", "images", "autoinstall"},
    "compat": {
        *("model", "findings", "knowledge", "resources", "resources/linux", "hardware", "sizing", "wslconfig", "paths"),
    },
    "serving": {
        "findings",
        "gateway",
        "model",
        "hub",
        "knowledge",
        "resources",
        "hardware",
        "sizing",
        "wslconfig",
        "paths",
        "compat",
        "symptoms",
    },
    "cluster": {"model", "gateway", "resources", "resources/linux", "sizing", "compat", "serving"},
    "symptoms": {"model", "findings", "knowledge", "resources", "compat"},
    "recipes": {"model", "findings", "resources", "hardware", "wslconfig", "compat", "serving"},
    "engine": {
        "hardware",
        "wslconfig",
        "model",
        "symptoms",
        "knowledge",
        "sizing",
        "resources",
        "resources/linux",
        "images",
        "autoinstall",
        "paths",
        "compat",
        "connect",
    },
    # The lab's rooms are parts of their own; what lies beside them ties a lab together.
    "lab/physics": {"model", "resources", "images"},
    "lab/contract": {"model", "resources", "lab/physics"},
    "lab/linux": {"model", "gateway", "resources", "resources/linux", "lab/physics", "lab/contract"},
    "lab/wire": {"web", "resources", "resources/linux", "lab/physics"},
    "lab/powershell": {"model", "web", "resources", "lab/physics", "lab/wire"},
    "lab": {
        "model",
        "resources",
        "autoinstall",
        "lab/physics",
        "lab/contract",
        "lab/linux",
        "lab/wire",
        "lab/powershell",
    },
    "bundle": {"model", "resources", "resources/linux"},
    "render": {
        "model",
        "findings",
        "knowledge",
        "resources",
        "resources/linux",
        "hardware",
        "sizing",
        "paths",
        "compat",
    },
    "cli": {
        *(
            "model",
            "findings",
            "knowledge",
            "resources",
            "resources/linux",
            "sizing",
            "wslconfig",
            "images",
            "paths",
            "compat",
        ),
        *(
            "connect",
            "engine",
            "imports",
            "lab",
            "bundle",
            "render",
            "gateway",
            "serving",
            "cluster",
            "symptoms",
            "hub",
            "offline",
            "autoinstall",
            "recipes",
        ),
    },
    "__main__": {"cli"},
}
MODULES = modules()


# All that `winhost --help` may load beside the standard library and click: a slow help is a tool that feels broken.
HELP_MAY_LOAD = {
    "winhost",
    "winhost.__main__",
    "winhost.cli",
    "winhost.cli.groups",
    "winhost.cli.terminal",
}


def part_of(module: str) -> str:
    """Its folder, or its room in that."""
    _, part, inner, *_ = [*module.split("."), "", ""]
    room = f"{part}/{inner}"
    return room if room in MAY_IMPORT else part


@each_row("module", MODULES)
def test_dependencies_point_downward(module: str) -> None:
    part = part_of(module)
    assert {part_of(name) for name in imports()[module] - {"winhost"}} - {part, "core"} <= MAY_IMPORT.get(part, set())


CARRIED = ("core", "gateway")  # to machines that have the standard library


@each_row("module", [module for module in MODULES if part_of(module) in CARRIED])
def test_what_is_carried_runs_in_a_folder_of_its_own(module: str) -> None:
    """Elsewhere the files are as they are here: they know each other by relative names, and no other package."""
    file = source(MODULES[module])
    names = {node.module or "." for node in file.every(ast.ImportFrom) if node.level != 1} | {
        name.name for node in file.every(ast.Import) for name in node.names
    }
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


@each_row("module", [module for module in MODULES if "wsl" in module])
def test_wsl_knows_nothing_of_dda(module: str) -> None:
    """Each path stands alone: what two of them share lies in a room below both."""
    assert [name for name in imports()[module] if "dda" in name] == []


def test_every_part_has_its_rule() -> None:
    folders = {path.name for path in HOUSE.iterdir() if (path / "__init__.py").exists()}
    folders |= {f"lab/{path.parent.name}" for path in HOUSE.glob("lab/*/__init__.py")} | {"resources/linux"}
    assert folders == set(MAY_IMPORT) - {"__main__"}


# Libraries that the lab imports, and hardly anybody else. The clients of `connect` raise two of them's errors, and name
# categories by one; `autoinstall` makes keys, and reads who signed a loader.
OF_THE_LAB = {
    "cryptography": {
        *(f"winhost.autoinstall.{name}" for name in ("install_plan", "settings_server", "shim_signers")),
        "winhost.connect.own_key",
        "winhost.engine.keys",
    },
    "psrpcore": {"winhost.connect.psrp"},
    "spnego": {f"winhost.connect.{name}" for name in ("file_copy", "libraries", "psrp", "winrs")},
}
DECLARED = {"cryptography": "cryptography", "psrpcore": "psrpcore", "spnego": "pyspnego"}


@pytest.mark.parametrize("library", OF_THE_LAB)
def test_what_only_the_lab_needs_is_declared_and_imported_by_it_alone(library: str) -> None:
    uses = re.compile(rf"^\s*(?:from|import) {library}\b", re.MULTILINE)
    users = {module for module, path in MODULES.items() if uses.search(source(path).text)}
    of_the_lab = {module for module in users if module.startswith("winhost.lab.")}
    assert of_the_lab
    assert users - of_the_lab == OF_THE_LAB[library]
    project = tomllib.loads((HOUSE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(re.match(rf"{DECLARED[library]}\b", line) for line in project["dependencies"])


# What a tab may load beside that: each press starts winhost again, and whoever waits for it types on.
TAB_MAY_LOAD = {"yaml", "_yaml", "platformdirs"}
TOO_HEAVY = {
    "winhost.lab",
    "winhost.bundle",
    "winhost.render",
    "winhost.connect",
    "winhost.model.fleet",
    "winhost.compat.assess",
}


def loaded_by(words: list[str], **variables: str) -> tuple[set[str], str]:
    """Return the modules that a command loads in addition to those of click, and the command's output."""
    code = (
        "import atexit, os, sys\n"
        f"os.environ.update({variables!r})\n"
        "atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))\n"
        "from winhost.__main__ import main\n"
        f"sys.argv = ['winhost', *{words!r}]\n"
        "main()"
    )
    done = python(code)
    return set(done.stderr.split()) - loaded_by_click(), done.stdout


@cache
def loaded_by_click() -> set[str]:
    return set(python("import click, sys; print(*sorted(sys.modules))").stdout.split())


def python(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-I", "-c", code, *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S)


def test_help_loads_click_and_nothing_else() -> None:
    loaded, out = loaded_by(["--help"])
    known = {*sys.stdlib_module_names, "click"}
    assert {name for name in loaded if name.split(".")[0] not in known} <= HELP_MAY_LOAD
    assert "Usage: winhost" in out


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("winhost de", "detect"),
        ("winhost detect ", "gpu-01"),
        ("winhost rollback ", "gpu-01.20261121-101502"),
        ("winhost explain dda.client", "dda.client-sku"),
        ("winhost assess --need nv", "nvlink"),
        ("winhost apply --accept vm-stop,", "vm-stop,restart"),
        ("winhost lab up server2025-3", "server2025-3gpu"),
    ],
)
def test_a_tab_loads_little(tmp_path: Path, line: str, offered: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "gpu-01.20261121-101502.jsonl").write_text("")
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("hosts: {gpu-01: {}}")
    words = line.split(" ")
    loaded, out = loaded_by(
        [],
        _WINHOST_COMPLETE="bash_complete",
        COMP_WORDS=line,
        COMP_CWORD=str(len(words) - 1),
        WINHOST_FLEET=str(fleet),
        WINHOST_STATE=str(tmp_path),
    )
    assert f"plain,{offered}\n" in out
    known = {*sys.stdlib_module_names, "click", "winhost", *TAB_MAY_LOAD}
    assert {name for name in loaded if name.split(".")[0] not in known and "cython" not in name} == set()
    assert not {name for name in loaded if any(f"{name}.".startswith(f"{heavy}.") for heavy in TOO_HEAVY)}


@each_row("path", MODULES.values(), ids=MODULES)
def test_what_is_kept_is_made_by_one_thread_alone(path: Path) -> None:
    """`functools.cache` lets two threads make it at once, and parsers take that badly: `model.once` does not."""
    assert "\n@cache\n" not in source(path).text


def test_the_command_line_imports_at_the_top_of_its_files() -> None:
    """A command and a completion import what they run when it runs. Any other import within a function says why."""
    by_need = {HOUSE / "cli" / "completion.py", *(HOUSE / "cli").glob("*/commands.py")}
    for file in (each for each in sources(HOUSE / "cli") if each.path not in by_need):
        lines = file.text.splitlines()
        inner = {
            lines[node.lineno - 1]
            for node in (*file.every(ast.Import), *file.every(ast.ImportFrom))
            for function in file.every(ast.FunctionDef)
            if function.lineno < node.lineno <= (function.end_lineno or 0)
        }
        assert [line for line in inner if "  # " not in line] == [], file.path


# How many modules of ours a command may load. Each costs a third of a millisecond, and most had nothing to do there.
MOST_MODULES = {"assess": 160, "plan": 170}
NOT_NEEDED = {
    f"winhost.{room}" for room in ("autoinstall", "bundle", "cluster", "hub", "lab", "offline", "recipes", "serving")
}


@pytest.fixture(scope="module")
def facts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    facts, _ = expand(find("server2025-role-installed"))
    file = tmp_path_factory.mktemp("facts") / "facts.json"
    file.write_text(write_document(facts), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("command", "words"), [("assess", ["--facts"]), ("plan", ["--path", "dda", "--vm", "llm-01", "--facts"])]
)
def test_a_command_loads_what_it_runs(facts_file: Path, command: str, words: list[str]) -> None:
    loaded, _ = loaded_by([command, *words, str(facts_file)])
    ours = loaded & MODULES.keys()
    assert {".".join(name.split(".")[:2]) for name in ours} & NOT_NEEDED == set()
    assert len(ours) <= MOST_MODULES[command]
