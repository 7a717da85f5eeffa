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
# The third-party modules that these commands end up with. pydantic loads its parts only when they are named.
IMPORTS = """
import click, rich.box, rich.console, rich.table, rich.text, yaml, packaging.version, platformdirs
from pydantic import BaseModel, TypeAdapter
"""
LIBRARIES = "importing the libraries that it needs"


@contextmanager
def help_start(_: Path) -> Iterator[Case]:
    """How long a user waits for the first word."""
    yield Case(
        what="winhost --help",
        against="a bare click program with as many commands",
        work=lambda: _python(WINHOST, "--help"),
        yardstick=lambda: _python(BARE_CLICK, "--help"),
        aim=1.1,
    )


@contextmanager
def offline_plan(folder: Path) -> Iterator[Case]:
    """A plan from a file: no wire, so that what is left is ours."""
    facts = str(write_facts(folder))
    yield Case(
        what="winhost plan --facts FILE",
        against=LIBRARIES,
        work=lambda: _python(WINHOST, "plan", "--facts", facts, "--vm", VM),
        yardstick=lambda: _python(IMPORTS),
        aim=1.5,
    )


@contextmanager
def offline_assess(folder: Path) -> Iterator[Case]:
    """All paths of a host in a file, likewise."""
    facts = str(write_facts(folder))
    yield Case(
        what="winhost assess --facts FILE",
        against=LIBRARIES,
        work=lambda: _python(WINHOST, "assess", "--facts", facts),
        yardstick=lambda: _python(IMPORTS),
        aim=1.5,
    )


def _python(code: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=300)
