"""Whole commands, each in a process of its own, as a user starts them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.host import VM, write_facts
from bench.measure import Case
from winhost.cli import COMMANDS

WINHOST = "from winhost.__main__ import main; main()"  # what the console script does
BARE_CLICK = f"""
import click

@click.group()
def bare(): "A program with as many commands."

for name, line in {COMMANDS!r}.items():
    bare.command(name, help=line)(lambda: None)
bare()
"""
# The third-party modules that a plan ends up with. pydantic loads its parts only when they are named.
IMPORTS = """
import click, rich.box, rich.console, rich.table, rich.text, yaml
from pydantic import BaseModel, RootModel, TypeAdapter
"""


@contextmanager
def help_start(_: Path) -> Iterator[Case]:
    """How long a user waits for the first word."""
    yield Case(
        what="winhost --help",
        against="a bare click program with as many commands",
        work=lambda: _python(WINHOST, "--help"),
        yardstick=lambda: _python(BARE_CLICK, "--help"),
    )


@contextmanager
def offline_plan(folder: Path) -> Iterator[Case]:
    """A plan from a file: no wire, so that what is left is ours."""
    facts = str(write_facts(folder))
    yield Case(
        what="winhost plan --facts FILE",
        against="importing the libraries that it needs",
        work=lambda: _python(WINHOST, "plan", "--facts", facts, "--vm", VM),
        yardstick=lambda: _python(IMPORTS),
    )


def _python(code: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=300)
