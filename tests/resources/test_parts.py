"""The parts of the agent's text that are sent: complete, constant, and known by their hashes."""

import json
import re
from importlib.resources import files

import pytest

from tests.resources.test_scripts import Script, calls
from tests.rows import each_row
from winhost.resources.registry import WINDOWS
from winhost.resources.windows import parts, windows_scripts
from winhost.resources.windows.parts import WindowsScripts, definitions, published, recognized, session_text

READ_ALL = [{"resource": resource, "verb": "get"} for resource in WINDOWS]


def needed(*calls: dict[str, str], compiling: bool = False) -> tuple[str, ...]:
    return WindowsScripts().needed(json.dumps({"calls": calls}), compiling=compiling)


def test_every_part_has_the_published_hash() -> None:
    shipped = files(parts.__package__ or "") / parts.PUBLISHED
    assert shipped.read_text("ascii") == published(), f"Run: python -m winhost.resources.windows.parts > {shipped}"


def test_the_parts_are_all_of_the_agent_and_nothing_else() -> None:
    sent = "".join(line + "\n" for line in session_text().splitlines() if not line.startswith("# winhost part: "))
    assert sent.endswith("\nInvoke-Winhost -Json $args[0]\n")
    whole = windows_scripts.agent_text() + "\nInvoke-Winhost -Json $args[0]\n"
    assert sorted(filter(None, sent.split("\n"))) == sorted(filter(None, whole.split("\n")))


def test_whatever_reads_a_host_is_sent_no_csharp() -> None:
    for asked in (READ_ALL, *([call] for call in READ_ALL)):
        text = WindowsScripts().text(needed(*asked))
        assert "Add-Type" not in text
        assert "DllImport" not in text
    assert "Add-Type" in WindowsScripts().text(needed(*READ_ALL, compiling=True))


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
    assert recognized(text)
    assert altered(text) != text
    assert recognized(altered(text)) == ()


CALLS = [
    {"resource": resource, "verb": verb}
    for resource in WINDOWS
    for verb in ("get", "set")
    if f"function {verb.title()}-Winhost{resource} " in windows_scripts.agent_text()
]


@each_row("call", CALLS)
def test_a_call_is_sent_every_function_that_it_may_use(call: dict[str, str]) -> None:
    text = definitions(needed(call, compiling=True))
    used = {each.name for each in calls(Script("sent", text)) if "-Winhost" in each.name}
    defined = set(re.findall(r"(?m)^ *function ([\w-]+) \{", text))
    assert used - defined == set()


def test_the_text_needs_no_escape_of_powershells_xml_but_those_of_xml_itself() -> None:
    """A line feed goes as it is; another control character, or `_x` as text, would have to be written otherwise."""
    text = session_text()
    assert text.isascii()
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "_x" not in text.lower()
