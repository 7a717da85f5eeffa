"""Everything that detect reads is used: by a rule, a plan, the report, a symptom, or the undo of a resource."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from inspect import getfile, getsource
from pathlib import Path
from typing import Any, cast

from tests.house.tree import HOUSE, ROOT, Source, source, sources
from tests.rows import each_row
from winhost.resources.base import State
from winhost.resources.registry import LINUX_STATES, WINDOWS_STATES

# The rooms that decide, plan or show something; the others read, carry or simulate.
USERS = (
    "autoinstall",
    "bundle",
    "cli",
    "compat",
    "recipes",
    "engine",
    "hardware",
    "paths",
    "render",
    "serving",
    "sizing",
    "symptoms",
    "wslconfig",
)
# How typed facts are reached without the name of their class.
BY_ANOTHER_NAME = {
    "Boot": r"\bBoot\b|boot_id",
    "DeviceAssignmentPolicy": r"\.policy\b",
    "Firmware": r"\.firmware\b",
    "HyperVHost": r"\.hyperv\b",
    "HyperVRole": r"\.role\b",
    "LinuxGpu": r"\bgpu\.state\b",
    "Memory": r"\.memory\b",
    "OperatingSystem": r"\.os\b|\bos = ",
    "PciDevice": r"\bgpu\.state\b|\bGpu\b",
    "Session": r"\.session\b",
    "Vm": r"\bvm\.state\b|\bvms\b",
}
# What is read for a plan that winhost does not make yet, or that only agents and scripts go by on the machine itself.
ELSEWHERE = {
    "CdiSpec": {"devices"},  # said in its title where a container asks for one
    "EfiVolume": {"file_system"},  # of dual-boot, as the next ones
    "KernelModule": {"loaded"},  # decides restart_due where it is read
    "Partition": {"hidden", "no_letter"},
    "PowerSource": {"batteries"},
    "ResizeLimit": {"largest"},
    "SecureBoot": {"revoked"},
    "SystemdUnit": {"failed", "loaded"},  # in the error of a unit that does not start
}
# How rows ask a GPU or a VM.
AS_ROWS_ASK = {"PciDevice": "gpu", "Vm": "vm", "VmMemory": "memory", "PartitionableGpu": "parts"}
STATES = (*WINDOWS_STATES, *LINUX_STATES)


@cache
def code() -> tuple[tuple[str, frozenset[str]], ...]:
    """Each file of the users with the names that it reads: attributes, and words in quotes."""
    files = [*sources(*(HOUSE / room for room in USERS)), source(HOUSE / "resources" / "host.py")]
    return tuple((file.text, frozenset(names(file))) for file in files)


def names(file: Source) -> Iterator[str]:
    yield from (node.attr for node in file.every(ast.Attribute))
    yield from (node.value for node in file.every(ast.Constant) if isinstance(node.value, str))


@cache
def read_beside(resource: str) -> frozenset[str]:
    """The names that are read in files that know this resource."""
    plain, other = re.compile(rf"\b{resource}\b"), BY_ANOTHER_NAME.get(resource)
    found = (
        read for text, read in code() if (resource in text and plain.search(text)) or (other and re.search(other, text))
    )
    return frozenset[str]().union(*found)


@cache
def data() -> str:
    """Playbooks, and what rows of rules and symptoms ask of facts."""
    rows = (ROOT / "winhost" / folder for folder in ("symptoms/known", "knowledge/reasons"))
    found = [*(ROOT / "playbooks").rglob("*.yaml"), *(file for folder in rows for file in folder.glob("*.yaml"))]
    return "\n".join(file.read_text(encoding="utf-8") for file in found)


@cache
def own_text(state: type[State]) -> str:
    """A state, and the values and functions beside it that it names."""
    own = re.sub(r"\busual=\{[^}]*\}", "", getsource(state))  # of simulated hosts; nobody reads a property there
    beside = re.finditer(
        r"^(?:def )?(\w+)(?:\(|:| =|,)(?:.|\n(?!\S))*", Path(getfile(state)).read_text("utf-8"), re.MULTILINE
    )
    return "\n".join((own, *(found[0] for found in beside if re.search(rf"\b{found[1]}\b", own))))


def uses(state: type[State], name: str) -> bool:
    resource = state.resource_type.name
    asked = AS_ROWS_ASK.get(resource, resource)
    if name in read_beside(resource) or f"{resource}.{name}" in data() or f"{asked}.{name}" in data():
        return True
    if re.search(rf"among: {resource}\n(?:  (?:which|none|named): .*\n)*  (?:which|none|named): .*\b{name}\b", data()):
        return True
    # Undo rules, conditions, what a playbook wants, and properties made of others.
    if re.search(rf"""["']{name}["']|self\.{name}\b""", own_text(state)):
        return True
    return any(
        re.search(rf"^\s+(?:desired|key): .*\b{name}\b", block, re.MULTILINE)
        for block in data().split("- resource: ")
        if block.startswith(resource)
    )


@each_row("state", STATES, ids=lambda state: state.resource_type.name)
def test_each_property_that_is_read_is_used(state: type[State]) -> None:
    read = {each.name for each in fields(cast(Any, state))}
    unused = {name for name in read if not uses(state, name)}
    assert unused == unused & ELSEWHERE.get(state.resource_type.name, set())


def test_nothing_is_excused_that_is_used_by_now() -> None:
    by_name = {state.resource_type.name: state for state in STATES}
    excused = [(by_name[resource], name) for resource, names in ELSEWHERE.items() for name in names]
    assert [(state.resource_type.name, name) for state, name in excused if uses(state, name)] == []
