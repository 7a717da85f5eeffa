"""Commands, options and times are not broken on terminals of any width."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.rows import each_row
from winhost.cli import COMMANDS
from winhost.cli.terminal import glue, unglue
from winhost.model.documents import read_document
from winhost.model.plan import Plan
from winhost.model.shipped import shipped

WIDTHS = (40, 60, 80, 120)
each_width = pytest.mark.parametrize("columns", WIDTHS)

# What is shown, and what of it stands together although there are blanks in it.
SCREENS = {
    "assess": ("assess", "--facts", "desk.json", "--explain"),
    "assess gpu": ("assess", "--facts", "gpu.json"),
    "plan": ("plan", "--facts", "gpu.json", "--vm", "llm-01", "-o", "plan.json"),
    "verify": ("verify", "plan.json", "--facts", "gpu.json"),
    "diff": ("diff", "gpu.json", "later.json", "--all"),
    "lint": ("lint", "wslconfig", "some.wslconfig"),
    "explain": ("explain", "wsl2.gpu-not-driven"),
    "codes": ("explain", "--list", "dda"),
    "lab hosts": ("lab", "list"),
    "runs": ("runs",),
    "profile": ("serve", "profile", "--facts", "desk.json", "--workload", "model.yaml"),
}
WHOLE = {
    "assess": ["winhost plan --facts desk.json --path wsl2/mirrored", "winhost explain CODE"],
    "plan": ["--accept vm-stop"],
}


@pytest.fixture
def files(line: Line, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setenv("NO_COLOR", "1")
    line.facts("server2025-role-installed").rename("gpu.json")
    line.facts("win11-pro-1gpu").rename("desk.json")
    later = json.loads(Path("gpu.json").read_text())
    later["resources"]["Vm"].pop()
    Path("later.json").write_text(json.dumps(later))
    Path("some.wslconfig").write_text("[wsl2]\nmemory\nprocessors=many\n")
    shutil.copy(shipped("examples") / "workloads" / "one-7b-on-24gb.yaml", "model.yaml")
    line("plan", "--facts", "gpu.json", "--vm", "llm-01", "-o", "plan.json")
    return line


def shown_in(line: Line, monkeypatch: pytest.MonkeyPatch, columns: int, *words: str) -> str:
    """Return what is shown on a terminal with this number of columns; None for a pipe."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: bool(columns))
    said = line(*words)
    return said.out + said.err


def words_of(screen: str) -> set[str]:
    """Return the words, without the lines of tables and the names of columns, which become labels."""
    return {word for word in screen.split() if set(word) != {"─"} and word != "#" and not word.endswith(":")}


@pytest.mark.costly
@each_width
@pytest.mark.parametrize("screen", SCREENS)
def test_no_word_is_broken_and_none_is_lost(
    files: Line, monkeypatch: pytest.MonkeyPatch, screen: str, columns: int
) -> None:
    whole = shown_in(files, monkeypatch, 0, *SCREENS[screen])
    narrow = shown_in(files, monkeypatch, columns, *SCREENS[screen])
    assert words_of(narrow) <= words_of(whole) | {"→"}
    assert len(narrow.split()) >= len(whole.split()) - 10
    for text in WHOLE.get(screen, []):
        assert text in narrow
    longest = max(len(word) for word in glue(whole).split())
    assert max(map(len, narrow.splitlines())) <= max(columns, longest + 8)


@each_width
def test_the_command_that_follows_stands_whole_in_its_line(
    files: Line, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    screen = shown_in(files, monkeypatch, columns, *SCREENS["plan"])
    accept = ",".join(read_document(Path("plan.json"), Plan).risks)
    assert f"\n  winhost apply plan.json --accept {accept}\n" in screen


@each_width
@each_row("command", [(name,) for name in COMMANDS] + [("facts", "import"), ("lab", "up"), ()])
def test_help_breaks_no_option_and_no_command(
    line: Line, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], columns: int
) -> None:
    whole = shown_in(line, monkeypatch, 300, *command, "--help")
    narrow = shown_in(line, monkeypatch, columns, *command, "--help")
    assert set(narrow.split()) == set(whole.split())
    quoted = re.findall(r"`winhost [^`]+`", " ".join(whole.split()))
    assert [text for text in quoted if text not in narrow] == []
    prose = [row for row in narrow.splitlines() if not row.lstrip().startswith("-")]
    assert max(map(len, prose)) <= columns


@each_row(
    ("text", "whole"),
    [
        (
            "Go on: winhost resume gpu-01.20261121-101502 --accept vm-stop",
            "winhost resume gpu-01.20261121-101502 --accept vm-stop",
        ),
        ("See winhost runs, which lists them.", "winhost runs,"),
        ("The command winhost lists nothing", "winhost lists"),
        ("With winhost facts import smi.xml you can go on", "winhost facts import smi.xml"),
        ("Try it: winhost host test gpu-01; or not", "winhost host test gpu-01;"),
        ("Add --accept vm-stop,restart to it", "--accept vm-stop,restart"),
        ("Say -o plan.json", "-o plan.json"),
        ("Run (wsl.exe --update --pre-release) now", "wsl.exe --update --pre-release)"),
        ("Start the service: Start-Service vmms; if it stops", "Start-Service vmms;"),
        (
            "Do: Set-VMProcessor -ExposeVirtualizationExtensions $false.",
            "Set-VMProcessor -ExposeVirtualizationExtensions $false.",
        ),
        ("Read at 2026-11-21 10:15:02 UTC", "2026-11-21 10:15:02"),
    ],
)
def test_what_stands_together(text: str, whole: str) -> None:
    assert unglue(glue(text)) == text
    assert whole in [unglue(word).lstrip("(") for word in glue(text).split(" ")]
