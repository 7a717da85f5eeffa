"""The screens that pages show are what winhost prints."""

import re
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Line

PAGE = (Path(__file__).parents[2] / "docs/my-servers.md").read_text("utf-8")


def test_the_first_example_is_what_a_terminal_of_80_columns_gets(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```console\n\$ winhost assess desk-01\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    facts = line.facts("win11-pro-1gpu")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = iter(row.rstrip() for row in line("assess", "--facts", facts).out.splitlines())
    for desired in block.splitlines():
        assert desired.strip() == "…" or desired in shown, desired
