"""The agent, core and run.py with every Python of this machine, because distros have older and newer ones."""

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S, python_of
from tests.rows import each_row
from winhost.bundle.bundle_files import linux_sources, sums
from winhost.resources.linux.linux_scripts import agent_text

READS, CHANGES = (3, 8), (3, 10)
MINORS = range(READS[1], 40)


@cache
def minors() -> list[int]:
    return [minor for minor in MINORS if python_of(minor)] or pytest.skip("no python3.N is on the PATH")


def run(minor: int, *words: str, given: str = "") -> Any:
    return subprocess.run(
        [str(python_of(minor)), "-I", *words], input=given, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/"
    )


ASK = """
import json, sys
names = {"__name__": "agent"}
exec(compile(sys.stdin.read(), "agent.py", "exec", dont_inherit=True), names)
print(json.dumps([names["answer"](call) for call in json.loads(sys.argv[1])]))
"""


def answers(minor: int, *calls: dict[str, Any]) -> Any:
    return json.loads(run(minor, "-c", ASK, json.dumps(calls), given=agent_text()).stdout)


@pytest.mark.costly
@each_row("minor", minors)
def test_the_agent_reads(minor: int) -> None:
    path = "/etc/docker/daemon.json"
    (answer,) = answers(minor, {"resource": "LinuxFile", "verb": "get", "key": {"path": path}})
    assert answer["ok"], answer
    assert set(answer["state"]) == {"text", "link", "mode", "owner"}


@pytest.mark.costly
@each_row("minor", minors)
def test_the_agent_changes_nothing_under_a_python_that_changes_were_never_tried_with(minor: int) -> None:
    (answer,) = answers(minor, {"resource": "LinuxFile", "verb": "set"})
    assert answer["error"]["code"] == ("Winhost.PythonTooOld" if (3, minor) < CHANGES else "Winhost.BadRequest")


def test_a_refusal_names_the_python_that_is_there_and_what_to_do() -> None:
    names: dict[str, Any] = {"__name__": "agent"}
    exec(compile(agent_text(), "agent.py", "exec", dont_inherit=True), names)
    names["refuse_old_python"]((3, 10, 0))
    with pytest.raises(names["AgentFault"], match=re.escape("Python 3.8.18 can read this machine.")) as raised:
        names["refuse_old_python"]((3, 8, 18))
    assert "needs Python 3.10 or later: upgrade the distro" in str(raised.value)


# ---- run.py


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The Linux folder of a bundle whose plan is for no real machine."""
    stage = {"desired": [], "steps": [], "deferred": []}
    plan = {"schema": "winhost.plan/3", "request": {"path": "wsl2"}, "stages": [stage]}
    files = {**linux_sources(), "plan.json": json.dumps(plan).encode()}
    for name, content in {**files, "SHA256SUMS": sums(files)}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def error(minor: int, folder: Path, *words: str, given: str = "") -> Any:
    return json.loads(run(minor, str(folder / "run.py"), *words, "--json", given=given).stdout)["error"]


@pytest.mark.skipif(os.geteuid() != 0, reason="run.py reads only where root asks")
@each_row("minor", minors)
def test_run_py_tells_facts(minor: int, folder: Path) -> None:
    assert run(minor, str(folder / "run.py"), "--help").returncode == 0
    assert "winhost.facts/3" in error(minor, folder, "facts", "-", given="{}")["what"]


@pytest.mark.costly
@each_row("minor", minors)
@each_row("command", ["apply", "rollback", "verify"])
def test_run_py_comes_as_far_as_its_python_allows(minor: int, folder: Path, command: str) -> None:
    told = error(minor, folder, command)
    if (3, minor) < CHANGES:
        assert (told["kind"], told["exit_code"]) == ("PythonTooOld", 2)
        assert f"Python 3.{minor}." in told["what"]
        assert "needs Python 3.10 or later" in told["what"]
    else:
        assert told["kind"] == ("WrongHost" if os.geteuid() == 0 else "NotRoot")
    assert not [path for path in folder.rglob("*") if "__pycache__" in path.parts]
