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
# Runs a command, then prints an import of every third-party module that it ended up with.
LISTED = """
import contextlib, os, sys
from winhost.cli import run

with contextlib.redirect_stdout(open(os.devnull, "w")):
    run()
for name, module in sys.modules.items():
    if "site-packages" in (getattr(module, "__file__", None) or "") and not name.startswith("winhost"):
        print(f"__import__({name!r})")
"""
LIBRARIES = "importing the libraries that it needs"


@contextmanager
def help_start(_: Path) -> Iterator[Case]:
    """The time that a user waits for the first word."""
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
    arguments = ("plan", "--facts", str(write_facts(folder)), "--vm", VM)
    imports = _python(LISTED, *arguments)
    yield Case(
        what="winhost plan --facts FILE",
        against=LIBRARIES,
        work=lambda: _python(WINHOST, *arguments),
        yardstick=lambda: _python(imports),
        aim=1.5,
    )


@contextmanager
def offline_assess(folder: Path) -> Iterator[Case]:
    """All paths of a host in a file, likewise."""
    arguments = ("assess", "--facts", str(write_facts(folder)))
    imports = _python(LISTED, *arguments)
    yield Case(
        what="winhost assess --facts FILE",
        against=LIBRARIES,
        work=lambda: _python(WINHOST, *arguments),
        yardstick=lambda: _python(imports),
        aim=1.5,
    )


def _python(code: str, *arguments: str) -> str:
    """The output of a command."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout
