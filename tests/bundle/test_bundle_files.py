"""What a bundle is made of, without a PowerShell: constant scripts, the plan, sums, and a readme for this very plan."""

import dataclasses
import json
import re
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import winhost
from tests.cases import read_cases
from tests.engine.guest_world import with_image
from tests.engine.test_dual_boot import plan as dual_boot_plan
from tests.engine.world import world
from tests.engine.wsl2_world import wsl2_world
from tests.errors import raises
from winhost.bundle.bundle_files import (
    HEADS,
    SCRIPTS,
    SHARED,
    bundle,
    facts_bundle,
    format_value,
    markdown,
    scripts,
    sums,
)
from winhost.core.rules import ConsentRule, NeedRule, UndoRule, from_json
from winhost.model.documents import write_document
from winhost.model.errors import visible
from winhost.model.plan import Plan
from winhost.model.shipped import shipped
from winhost.resources.registry import WINDOWS
from winhost.resources.windows.windows_scripts import agent_digest

ROOT = Path(__file__).parents[2]
READMES = read_cases(ROOT / "tests" / "data" / "bundle" / "readmes.yaml")


def plan_of(folder: Path, case: dict[str, Any]) -> Plan:
    path = case.pop("path", "dda")
    if path == "wsl2":
        return wsl2_world(folder, case.pop("host")).plan()
    if path == "dual-boot":
        return dual_boot_plan(world(folder, case.pop("host")))
    here = world(folder, case.pop("host"))
    vm, machine = next(iter(here.machine.vms.items()))
    machine.traits = {**machine.traits, "name": case.pop("rename", machine.name)}
    request = case.pop("request", {})
    if case.pop("applied", False):
        assert here.apply(here.plan(vm)).holds
    return here.plan(vm, **request)


@pytest.mark.parametrize("name", READMES)
def test_the_readme_is_written_for_this_very_plan(tmp_path: Path, name: str) -> None:
    case = dict(READMES[name])
    says, never = case.pop("says"), case.pop("never")
    readme = bundle(plan_of(tmp_path, case))["README.md"].decode()
    assert case == {}, "a key that this harness does not know"
    place = 0
    for text in says:
        assert text in readme[place:], text
        place = readme.index(text, place)
    assert [text for text in never if text in readme] == []
    assert "\n\n\n" not in readme


def test_the_scripts_are_the_same_for_every_plan(tmp_path: Path) -> None:
    hosts = ("server2025-3gpu", "server2022-2gpu", "hostile-vm-names")
    made = [bundle(plan_of(tmp_path / host, {"host": host})) for host in hosts]
    assert len({files["plan.json"] for files in made}) == len(made)
    for name in SCRIPTS:
        assert {files[name] for files in made} == {scripts()[name]}
    assert facts_bundle().items() >= {name: scripts()[name] for name in ("Facts.ps1", SHARED)}.items()


def test_a_plan_for_a_linux_says_for_which(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"host": "server2025-role-installed"})
    step = dataclasses.replace(next(plan.steps), resource="DebianPackage")
    stage = dataclasses.replace(plan.stages[0], steps=(step,))
    with raises("WhichLinux", match="by what key the Linux of gpu-"):
        bundle(dataclasses.replace(plan, stages=(stage,)))


def test_the_plan_goes_with_it_as_winhost_writes_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"host": "server2025-3gpu"})
    assert bundle(plan)["plan.json"] == write_document(plan).encode()


def test_a_file_that_lies_beside_the_scripts_is_fetched_through_no_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = with_image(tmp_path, monkeypatch)
    here.settings = {**here.settings, "upload": "http"}
    plan = here.plan()
    assert [(step.resource, step.risks) for step in plan.steps if step.risks] == [("StagedFile", ("network",))]
    carried = bundle(plan)
    assert [step for step in json.loads(carried["plan.json"])["stages"][0]["steps"] if step["risks"]] == []
    assert b"-Accept network" not in carried["README.md"]


def test_the_shared_part_ends_with_the_agent_that_its_heading_names() -> None:
    *_, agent = re.split(
        r"^# ==== \d+\. the agent and the resources [^\n]*\n\n", scripts()[SHARED].decode(), flags=re.M
    )
    assert sha256(agent.encode()).hexdigest() == agent_digest()


def test_the_contents_of_the_shared_part_are_its_chapters() -> None:
    text = scripts()[SHARED].decode()
    contents = re.findall(r"^# (\d+\. .*)$", text, re.M)
    assert contents == re.findall(r"^# ==== (\d+\. .*)$", text, re.M)
    assert contents[0] == "1. Facts.ps1: what this host is"
    assert [int(line.split(".")[0]) for line in contents] == list(range(1, len(contents) + 1))


@pytest.mark.parametrize("name", HEADS)
def test_what_people_start_is_short_and_ends_with_what_it_does(name: str) -> None:
    """Each line of what runs is read once: a head has none of the rest."""
    *lines, start, end = scripts()[name].decode().splitlines()
    assert (start, end) == (HEADS[name], "exit $script:WinhostCode")
    assert len(lines) < 100
    assert f"\nfunction {start.split()[0]} {{\n" in scripts()[SHARED].decode()


@pytest.mark.parametrize("name", HEADS)
def test_the_help_names_every_parameter(name: str) -> None:
    head = scripts()[name].decode().split("\n# Loads Winhost.ps1, ")[0]
    told = re.findall(r"^\.PARAMETER (\w+)$", head, re.M)
    taken = re.findall(r"\$(\w+)", head.split("param(")[1].split("\n)")[0])
    assert told == [word for word in taken if word not in ("true", "false")] != []


def test_sums_are_as_sha256sum_writes_them() -> None:
    files = {"b.txt": b"two", "a.txt": b"one"}
    assert sums(files).decode().splitlines() == [
        f"{sha256(b'one').hexdigest()}  a.txt",
        f"{sha256(b'two').hexdigest()}  b.txt",
    ]


@given(st.text())
def test_words_from_a_host_are_no_markup(text: str) -> None:
    written = markdown(text)
    assert written.isprintable()
    assert not set(re.sub(r"\\[\\`*_\[\]<>|~&]", "", written)) & set("\\`*_[]<>|~&")
    assert re.sub(r"\\([\\`*_\[\]<>|~&])", r"\1", written) == visible(text)


def test_the_scripts_have_the_rules_that_the_engine_has() -> None:
    """Each as it is declared: a word that PowerShell alone would have to know is in no table."""
    text = scripts()[SHARED].decode()
    for resource in WINDOWS.values():
        row = re.search(rf"^    @\{{ name = '{resource.name}'; .*$", text, re.M)
        assert row is not None
        for column, kind in (("needs", NeedRule), ("risks", ConsentRule), ("undo", UndoRule)):
            written = re.search(rf"{column} = '((?:[^']|'')*)'", row[0])
            assert written is not None
            said = json.loads(written[1].replace("''", "'"))
            read = from_json(kind, said) if column == "undo" else tuple(from_json(kind, each) for each in said)
            assert read == getattr(resource, column)


def test_the_only_need_is_a_vm_that_is_off() -> None:
    """The scripts move VMs alone: whatever else a step may need has to be written there first."""
    needs = [need for resource in WINDOWS.values() for need in resource.needs]
    assert {(need.resource, need.part, *need.desired.items()) for need in needs} == {
        ("VmPower", "vm", ("state", "off"))
    }


def test_what_users_copy_from_is_in_the_wheel() -> None:
    included = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    source = "\n".join(path.read_text("utf-8") for path in Path(winhost.__file__).parent.rglob("*.py"))
    asked = set(re.findall(r'shipped\("(\w+)"\)', source))
    assert {name: f"winhost/shipped/{name}" for name in asked} == included["force-include"]
    assert all(shipped(name).is_dir() for name in asked)


@pytest.mark.parametrize(
    ("value", "text"), [([], "none"), ([2222, 80], "2222, 80"), (True, "yes"), (False, "no"), (None, "none")]
)
def test_a_value_is_shown_in_words(value: object, text: str) -> None:
    assert format_value(value) == text  # type: ignore[arg-type]


def test_the_scripts_know_every_file_of_a_bundle(tmp_path: Path) -> None:
    """A file that they do not know is refused as not winhost's, and is not copied for a run after a restart."""
    with_linux = bundle(wsl2_world(tmp_path).plan())
    listed = re.search(r"^\$script:WinhostFiles = @\((.*)\)$", with_linux[SHARED].decode(), re.M)
    assert listed
    assert "linux/core/__init__.py" in with_linux
    assert sorted(re.findall("'([^']+)'", listed[1])) == sorted(with_linux)
