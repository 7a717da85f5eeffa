"""docs/resources.md is true: its requests are answered as it says, and its excerpts are the code."""

import json
import re
from pathlib import Path
from typing import Any

from tests.rows import each_row
from winhost.lab.contract.agent_answers import AgentAnswers
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.simulated_machine import Machine
from winhost.resources.base import ResourceType
from winhost.resources.windows.windows_scripts import files

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "resources.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+) ?(.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ASKED = [(about.removeprefix("asked of "), text) for kind, about, text in BLOCKS if about.startswith("asked of ")]
ANSWERED = [text for kind, about, text in BLOCKS if about == "answered"]
EXCERPTS = [(about.removeprefix("in "), text) for kind, about, text in BLOCKS if about.startswith("in ")]
OWN_CODES = re.compile(r"`(Winhost\.\w+)` \| (\w+)")


def test_every_block_is_looked_at() -> None:
    plain = [kind for kind, about, _ in BLOCKS if not about]
    assert plain == ["console"]
    assert len(ASKED) == len(ANSWERED) >= 8
    assert len(ASKED) + len(ANSWERED) + len(EXCERPTS) + len(plain) == len(BLOCKS)


@each_row(("asked", "answered"), list(zip(ASKED, ANSWERED, strict=True)))
def test_what_is_asked_is_answered_so(asked: tuple[str, str], answered: str) -> None:
    host, request = asked
    answers = AgentAnswers(Machine(*expand(find(host)))).invoke(request)
    assert json.loads(answers) == json.loads(answered)


@each_row(("file", "text"), EXCERPTS)
def test_an_excerpt_is_the_code(file: str, text: str) -> None:
    assert text in (ROOT / file).read_text("utf-8")


def test_every_field_of_a_resource_is_told() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE))
    assert {name for name in ResourceType.__dataclass_fields__ if name not in ("name", "state")} <= told


def test_the_codes_of_the_agent_are_its_own() -> None:
    scripts = "".join(text.read_text("ascii") for text in files().values())
    told: dict[str, Any] = dict(OWN_CODES.findall(PAGE))
    assert len(told) >= 6
    of_programs = set(re.findall(r"Invoke-WinhostProgram .* '(Winhost\.\w+)'", scripts))
    for code, category in told.items():
        own = re.search(rf"'{re.escape(code)}'.{{0,12}}'{category}'|category = '{category}'; code = '{code}'", scripts)
        assert own or (code in of_programs and category == "InvalidResult"), code


# ---- the resource that the page adds: all files that name it, each listed once

RUNS_IT_TOO = re.compile(r"/fast_startup/")  # the same program, for another resource
EXAMPLE = re.compile(r"PowerPlan|power_plan|powercfg\.exe|never[_-]sleep|host-sleeps|modern-standby|Win32_PowerSetting")
SOURCES = {".py", ".ps1", ".yaml", ".json", ".j2"}


def listed(section: str) -> list[str]:
    """Return the files in the table of a section."""
    text = PAGE.partition(f"{section}\n")[2].partition("\n#")[0]
    return [
        file
        for line in text.split("\n")
        if line.startswith("| `")
        for file in re.findall(r"`([\w/.]+)`", line.split("|")[1])
    ]


def test_a_resource_takes_six_files_at_most() -> None:
    of_the_resource = listed("## Add a resource: Windows power plan")
    of_the_paths = listed("### 6. A path that uses it")
    assert 3 <= len(of_the_resource) <= 6
    folders = ("winhost", "playbooks", "templates", "examples")
    files = (file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in SOURCES)
    named = {str(file.relative_to(ROOT)) for file in files if EXAMPLE.search(file.read_text("utf-8"))}
    named = {file for file in named if not RUNS_IT_TOO.search(file)}
    assert named == {*of_the_resource, *of_the_paths}
    assert len(named) == len(of_the_resource) + len(of_the_paths)
