"""The rules that are copied into a Linux with run.py are those of winhost, and its Python can parse them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.house.tree import HOUSE
from tests.linux.test_scripts import (
    Script,
    is_no_python_of_the_oldest,
    is_not_plain_text,
    needs_more_than_the_standard_library,
)
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost import __version__
from winhost.bundle import linux_journal, linux_run
from winhost.bundle.bundle_files import linux_sources
from winhost.bundle.linux_bundle import BundleRefusal
from winhost.core.rules import ResourceRules, from_json
from winhost.resources.registry import LINUX, RULES

SOURCES = linux_sources()
SCRIPTS = [Script(f"{name}.py", SOURCES[f"{name}.py"].decode("ascii")) for name in ("run", *linux_run.MODULES)]
CHECKS: tuple[Callable[[Script], Iterator[str]], ...] = (is_no_python_of_the_oldest, is_not_plain_text)


def test_core_there_is_core_here_byte_for_byte() -> None:
    assert {name: SOURCES[f"core/{name}"] for name in (path.name for path in (HOUSE / "core").glob("*.py"))} == {
        path.name: path.read_bytes() for path in (HOUSE / "core").glob("*.py")
    }
    assert {*SOURCES, "plan.json"} == set(linux_run.FILES)


def test_it_is_the_same_each_time_it_is_made() -> None:
    linux_sources.cache_clear()  # type: ignore[attr-defined]
    assert linux_sources() == SOURCES


def test_each_resource_has_all_that_is_declared_of_it_but_windows() -> None:
    found = {name: from_json(ResourceRules, told) for name, told in json.loads(SOURCES["resources.json"]).items()}
    assert list(found) == sorted(LINUX, key=lambda name: RULES[name].order)
    for name, rules in found.items():
        ours = RULES[name]
        assert {rule.resource for rule in ours.dependents} <= LINUX.keys()
        assert (rules.undo, rules.dependents, rules.sets, rules.key) == (
            ours.undo,
            ours.dependents,
            ours.sets,
            ours.key,
        )
        assert (rules.needs, rules.risks, rules.may_need) == (ours.needs, ours.risks, ours.may_need)
        assert (rules.absent, rules.credential) == (ours.absent, ours.credential)


def test_it_can_be_read_where_it_is_to_run() -> None:
    assert [fault for script in SCRIPTS for check in CHECKS for fault in check(script)] == []
    assert f'WINHOST = "{__version__}"' in SOURCES["bundle.py"].decode("ascii")
    told = {each for script in SCRIPTS for each in needs_more_than_the_standard_library(script)}
    assert {each for each in told if not each.startswith(("imports winhost.core", "imports winhost.bundle."))} == set()


@each_row("name", [name for name in linux_run.CORE if name != "__init__"])
def test_core_needs_the_standard_library_alone(name: str) -> None:
    text = (HOUSE / "core" / f"{name}.py").read_text("ascii")
    imported = Script("run.py", text.replace("from .", "from winhost.core."))
    told = needs_more_than_the_standard_library(imported)
    assert [each for each in told if not each.startswith("imports winhost.core.")] == []
    assert import_module(f"winhost.core.{name}").__doc__


def test_a_journal_of_another_version_is_refused_by_name() -> None:
    """It may have an unfinished run, so no other run starts."""
    for number in (2, 4):
        line = json.dumps({"n": 1, "event": "run", "schema": f"winhost.bundle-journal/{number}"})
        with pytest.raises(BundleRefusal, match=f"bundle-journal/{number}") as refused:
            linux_journal.parse_journal("0b91.20261122", f"{line}\n".encode())
        assert (refused.value.code, refused.value.kind) == (2, "OtherVersion")


def test_what_it_refuses_before_it_runs_anything_is_one_document_or_lines_that_no_terminal_obeys(
    tmp_path: Path,
) -> None:
    for name, content in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    line = "a \x1b[2J\u202e\u05d0 line '\""
    (tmp_path / "SHA256SUMS").write_text(f"{line}\n", "utf-8")

    def ended(*words: str, **variables: str) -> tuple[int, str, str]:
        command = [sys.executable, "-I", str(tmp_path / "run.py"), "verify", *words]
        shown = {**os.environ, "PYTHONIOENCODING": "utf-8", **variables}
        done = subprocess.run(command, capture_output=True, encoding="utf-8", env=shown, timeout=PATIENCE_S)
        return done.returncode, done.stdout, done.stderr

    escaped = "a \\u001b[2J\\u202e\\u05d0 line '\""
    told = f"error: SHA256SUMS has a line that is not winhost's: {escaped}\n  Nothing was done.\n"
    assert ended() == (2, "", told)
    code, document, errors = ended("--json")
    assert (code, errors) == (2, "")
    assert json.loads(document)["error"]["what"] == f"SHA256SUMS has a line that is not winhost's: {line}"

    code, document, errors = ended("--json", SUDO_UID="nobody")
    assert (code, errors) == (1, "")
    assert {name: json.loads(document)["error"][name] for name in ("kind", "exit_code")} == {
        "kind": "Failure",
        "exit_code": 1,
    }
