"""The parts of the agent's text that are sent: complete, constant, and known by their hashes."""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from importlib.resources import files
from typing import Any

import pytest

from tests.resources.test_scripts import Script, calls
from tests.rows import each_row
from winhost.resources.registry import WINDOWS
from winhost.resources.windows import parts, windows_scripts
from winhost.resources.windows.parts import (
    WindowsScripts,
    definitions,
    published_digests,
    recognize_parts,
    session_text,
)

READ_ALL = [{"resource": resource, "verb": "get"} for resource in WINDOWS]


def needed(*calls: dict[str, Any], asked_for: Collection[str] = ()) -> tuple[str, ...]:
    return WindowsScripts().needed(json.dumps({"calls": calls}), asked_for)


def test_every_part_has_the_published_hash() -> None:
    shipped = files(parts.__package__ or "") / parts.PUBLISHED
    assert shipped.read_text("ascii") == published_digests(), (
        f"Run: python -m winhost.resources.windows.parts > {shipped}"
    )


def test_the_parts_are_all_of_the_agent_and_nothing_else() -> None:
    call = "Invoke-Winhost -Json $args[0]"
    sent = session_text().splitlines()
    assert sent[-1] == call
    whole = [*windows_scripts.agent_text().splitlines(), call]
    assert sorted(code_of(sent)) == sorted(code_of(whole))


def code_of(lines: Iterable[str]) -> Iterator[str]:
    """Lines without those that are only a comment, and without their indentation."""
    return (line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))


def test_what_the_account_and_the_distro_run_is_sent_to_the_byte() -> None:
    assert windows_scripts.distro_script() in session_text()
    assert windows_scripts.job_script() in session_text()


def test_a_part_reads_like_its_file() -> None:
    """Lines, words and names stay: only comments and blanks before a line go."""
    (part,) = re.findall(r"(?s)# winhost part: vm_mmio/change\n(.*?)\n# winhost", session_text() + "\n# winhost")
    file = windows_scripts.texts()["vm_mmio/script.ps1"]
    assert list(code_of(part.splitlines())) == list(code_of(file[file.index("function Set-") :].splitlines()))
    assert "\n\tAssert-WinhostDesired " in part


def test_whatever_reads_a_host_is_sent_no_csharp() -> None:
    for asked in (READ_ALL, *([call] for call in READ_ALL)):
        text = WindowsScripts().text(needed(*asked))
        assert "Add-Type" not in text
        assert "DllImport" not in text
    assert "Add-Type" in WindowsScripts().text(needed(*READ_ALL, asked_for=["Add-WinhostNative"]))


def test_what_changes_firmware_or_volumes_is_sent_the_csharp_at_once() -> None:
    compiling = {call["resource"] for call in READ_ALL if "Add-Type" in definitions(needed({**call, "verb": "set"}))}
    assert {"EfiBackup", "OwnBootEntry", "UbuntuInstaller"} <= compiling
    assert compiling.isdisjoint({"VmMmio", "AssignableDevice", "WslConfig", "PowerPlan", "LocalAccount"})


@each_row("resource", list(WINDOWS))
def test_a_change_of_one_resource_is_sent_no_change_of_an_unrelated_one(resource: str) -> None:
    call = {"resource": resource, "verb": "set"}
    assert set(needed({**call, "verb": "get"})) <= set(needed(call))
    assert "own_vm/change" not in needed(call) or resource in {"OwnVm", "VmDisk", "VmSeed"}
    assert needed(call)[0] == "agent/core"


@pytest.mark.parametrize(
    "altered",
    [
        lambda text: text + " ",
        lambda text: "\n" + text,
        lambda text: text.replace("$true", "$TRUE", 1),
        lambda text: text.replace("Invoke-Winhost -Json $args[0]\n", ""),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text + text,
        lambda text: text.replace("# winhost part: boot/read\n", ""),
        lambda text: text.replace("# winhost part: boot/read\n", "# winhost part: boot/read\nGet-Date\n"),
    ],
)
def test_no_altered_text_is_recognized(altered) -> None:  # type: ignore[no-untyped-def]
    text = WindowsScripts().text(needed(READ_ALL[0], {"resource": "Boot", "verb": "get"}))
    assert recognize_parts(text)
    assert altered(text) != text
    assert recognize_parts(altered(text)) == ()


CALLS = [
    {"resource": resource, "verb": verb}
    for resource in WINDOWS
    for verb in ("get", "set")
    if f"function {verb.title()}-Winhost{resource} " in windows_scripts.agent_text()
]


def called_by_function() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """By function: what it calls, and which of that it asks for before."""
    called, asked_for = {}, {}
    for function in re.split(r"(?m)^(?=function )", windows_scripts.agent_text())[1:]:
        name = function.split()[1]
        asked_for[name] = {
            each
            for line in re.findall(r"Assert-WinhostPart (.*)", function)
            for each in re.findall(r"'([\w-]+)'", line)
        }
        inner = set(re.findall(r"(?m)^ +function ([\w-]+) \{", function))
        called[name] = {each.name for each in calls(Script(name, function)) if "-Winhost" in each.name} - inner
    return called, asked_for


def test_a_call_is_sent_every_function_that_it_uses() -> None:
    """A read: or else it asks for that before. A change: also what it asks for, because it is never made twice."""
    called, asked_for = called_by_function()
    lacking = {}
    for call in CALLS:
        verb, resource = call["verb"], call["resource"]
        sent = set(re.findall(r"(?m)^function ([\w-]+) \{", definitions(needed(call))))
        left = ["Invoke-Winhost", f"Get-Winhost{resource}", *([f"Set-Winhost{resource}"] if verb == "set" else [])]
        seen: set[str] = set()
        while left:
            if (name := left.pop()) in seen:
                continue
            seen.add(name)
            others = called[name] - (asked_for[name] if verb == "get" else set()) - VERBS
            left += others | ({"Invoke-WinhostSet"} if verb == "set" else set())
        if seen - sent:
            lacking[f"{verb} {resource}"] = seen - sent
    assert lacking == {}


VERBS = {"Invoke-WinhostSet", "Invoke-WinhostSend", "Invoke-WinhostRestart"}


def test_only_names_of_functions_are_asked_for() -> None:
    asked_for = {
        name
        for line in re.findall(r"Assert-WinhostPart (?!\{)(.*)", windows_scripts.agent_text())
        for name in re.findall(r"'([\w-]+)'", line)
    }
    assert asked_for
    assert {name for name in asked_for if f"function {name} {{" not in windows_scripts.agent_text()} == set()


def test_what_reads_all_of_a_host_is_small() -> None:
    """And what only some hosts need is none of it, unless something else reads with it as well."""
    sent = needed(*READ_ALL)
    assert {part for part in sent if part.endswith(("/found", "/change", "/compile"))} == set()
    assert len(WindowsScripts().text(sent)) < 84_000
    assert len(WindowsScripts().text(needed({"resource": "Boot", "verb": "get"}))) < 10_000


def test_the_text_needs_no_escape_of_powershells_xml_but_those_of_xml_itself() -> None:
    """Line feeds and tabs go as they are; other control characters, or `_x` as text, would have to be escaped."""
    text = session_text()
    assert text.isascii()
    assert all(character.isprintable() or character in "\n\t" for character in text)
    assert "_x" not in text.lower()
