#!/usr/bin/python3 -I
"""Applies plan.json in the Linux itself, with a journal and a rollback. For root, in a terminal of that Linux.

  python3 -I run.py apply --check           shows the steps; changes nothing and writes nothing
  python3 -I run.py apply                   runs them; after a crash or a failure, the same command continues
  python3 -I run.py verify                  checks all goals; changes nothing
  python3 -I run.py rollback [--check]      undoes exactly what apply changed
  python3 -I run.py facts -o WHOLE          reads this Linux; changes nothing. In WSL: facts FACTS -o WHOLE, with the
                                            file that Facts.ps1 wrote

It checks the sums of its folder, that this is the Linux of the plan, and that the Linux has not changed since. Then it
runs the steps one by one, and writes each to the journal before and after. At the end it checks all goals. Ctrl-C stops
it after the present step.

Changes that need a restart of this machine come last. The script says so and ends; restart, then run it again.

Exit codes: 0 done, 1 failure, 2 wrong usage, another machine or changed files, 4 the machine is not as the plan saw it
(or, at the end, not as desired), 75 restart this machine, then continue.

This script is the same for each plan. The goals are in plan.json next to it, and the rules of the resources in
resources.json; both are only read as data. agent.py is the program that winhost otherwise sends over SSH, and core/ has
winhost's own code that runs, undoes and compares steps. This file only checks the folder, then starts commands.py,
which uses bundle.py, host.py and journal.py. No file is used before its sum was checked. Python 3.10 and its standard
library are enough, and 3.8 for `facts`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.dont_write_bytecode = True
    if not sys.flags.isolated:
        # Before other imports: a file in this folder with the name of a module would be imported instead of that.
        sys.stderr.write(f"error: start it as: python3 -I {sys.argv[0]}\n")
        sys.exit(2)

import argparse
import hashlib
import importlib.util
import json
import os
import re
import signal
import types
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec

    Files = dict[str, bytes]

CORE = (
    "__init__",
    "answers",
    "changes",
    "checks",
    "conditions",
    "dataclass",
    "dependents",
    "journal_lines",
    "loop",
    "marks",
    "order",
    "rollback",
    "rules",
    "steps",
    "undo",
)
MODULES = ("bundle", "commands", "host", "journal")  # of winhost.bundle, each as linux_NAME
FILES = (
    "agent.py",
    *(f"core/{name}.py" for name in CORE),
    *(f"{name}.py" for name in MODULES),
    *("plan.json", "resources.json", "run.py"),
)
SUMS = "SHA256SUMS"
JOURNALS = "/var/lib/winhost/bundles"
OLDEST_PYTHON = (3, 10)  # for commands that change something; the version of Ubuntu 22.04


# ==== 1. the command line


def make_parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser("run.py", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = arguments.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in ("apply", "rollback", "verify", "facts"):
        command = commands.add_parser(name)
        command.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
        if name in ("apply", "rollback"):
            command.add_argument("--check", action="store_true", help="show the steps; change and write nothing")
            command.add_argument("--journals", metavar="FOLDER", default=JOURNALS, help=f"by default {JOURNALS}")
            command.add_argument("--within", metavar="SECONDS", type=int, default=300, help="for a slow change")
            command.add_argument("--keep", action="store_true", help="keep a change after which you saw that SSH works")
            command.add_argument("--accept", metavar="RISK[,RISK...]", default="", help="approve what a step asks for")
        if name == "facts":
            facts_help = "what Facts.ps1 wrote, for a Linux in WSL; - reads it from standard input"
            command.add_argument("facts", metavar="FACTS", nargs="?", help=facts_help)
            command.add_argument("-o", dest="output", metavar="WHOLE", help="a new file; by default it is printed")
    return arguments


class Refused(Exception):
    """An error before any file of the folder was run. kind, what, meaning and hint: as in all errors of winhost."""

    def __init__(self, kind: str, what: str, meaning: str = "", hint: str = "", code: int = 2) -> None:
        super().__init__(what)
        self.document = {"kind": kind, "exit_code": code, "what": what, "meaning": meaning, "hint": hint}
        self.code = code


def print_error_and_exit(refused: Refused, as_json: bool) -> NoReturn:
    """Print the error and end, as `print_and_exit` of linux_bundle does, whose sum may not have been checked."""
    error = refused.document
    lines = [f"error: {error['what']}", *(f"  {error[each]}" for each in ("meaning", "hint") if error[each])]
    # Escape characters that a terminal would interpret, hide or reorder.
    escaped = ["".join(c if c.isprintable() and c.isascii() else f"\\u{ord(c):04x}" for c in line) for line in lines]
    with suppress(OSError):
        stream = sys.stdout if as_json else sys.stderr
        stream.write("".join(f"{line}\n" for line in ([json.dumps({"error": error})] if as_json else escaped)))
        stream.flush()
    sys.exit(refused.code)


# ==== 2. the folder: each file is read once, so that the checked bytes are those that are used


def open_files(folder: str) -> Files:
    with open_folder(folder) as top, open_folder("core", top) as core:
        sums = dict(parse_sum(line) for line in read_file(top, SUMS).decode("utf-8", "replace").splitlines())
        files = {name: read_file(core if name.startswith("core/") else top, name) for name in FILES}
    for name, content in files.items():
        if sums.get(name) != hashlib.sha256(content).hexdigest():
            raise changed_error(name)
    return files


@contextmanager
def open_folder(path: str, folder: int | None = None) -> Iterator[int]:
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_DIRECTORY | (0 if folder is None else os.O_NOFOLLOW), dir_fd=folder
        )
    except (FileNotFoundError, NotADirectoryError):
        raise changed_error(path) from None
    try:
        refuse_writable(path, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def refuse_writable(path: str, descriptor: int) -> None:
    """Refuse a file or folder that accounts other than root and the caller of sudo can write: they could replace it."""
    status, owners = os.fstat(descriptor), {0, os.geteuid(), int(os.environ.get("SUDO_UID", "0"))}
    if status.st_uid not in owners or status.st_mode & 0o022:
        hint = "Copy the folder to a place of root's, as /root/winhost, and: chmod -R go-w /root/winhost"
        raise Refused("NotOurs", f"others may write to {path}", "Nothing was done.", hint)


def read_file(folder: int, name: str) -> bytes:
    try:
        descriptor = os.open(name.rpartition("/")[2], os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        raise changed_error(name) from None
    with os.fdopen(descriptor, "rb") as file:
        refuse_writable(name, descriptor)
        return file.read()


def parse_sum(line: str) -> tuple[str, str]:
    match = re.fullmatch(r"([0-9a-f]{64})  ([a-z_./]+)", line)
    if match is None or match[2] not in FILES:
        raise Refused("Changed", f"{SUMS} has a line that is not winhost's: {line}", "Nothing was done.")
    return match[2], match[1]


def changed_error(name: str) -> Refused:
    meaning = "It was changed, or lost, since the bundle was made. Nothing was done."
    return Refused("Changed", f"{name} is not as {SUMS} says", meaning, "Copy the whole folder again.")


# ==== 3. import the modules from the checked bytes


class CheckedModules:
    """Imports winhost.core and the modules next to this file from checked bytes. No folder is searched, and no compiled
    file is read or written.
    """

    def __init__(self, files: Files) -> None:
        core = {f"winhost.core.{name}": files[f"core/{name}.py"] for name in CORE}
        modules = {f"winhost.bundle.linux_{name}": files[f"{name}.py"] for name in MODULES}
        packages = {"winhost": b"", "winhost.bundle": b"", "winhost.core": core.pop("winhost.core.__init__")}
        self.packages, self.sources = frozenset(packages), {**packages, **core, **modules}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self.sources:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=name in self.packages)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        text = self.sources[module.__name__]
        exec(compile(text, module.__name__, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - its sum was checked


def refuse_old_python(command: str, version: tuple[int, ...]) -> None:
    if version < OLDEST_PYTHON:
        present, oldest = (".".join(map(str, each)) for each in (version, OLDEST_PYTHON))
        what = f"Python {present} is too old for {command}, which needs Python {oldest} or later"
        hint = "Upgrade this Linux; until then `facts` works."
        raise Refused("PythonTooOld", what, "Nothing was changed.", hint)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    OPTIONS = make_parser().parse_args()
    try:
        CHECKED_FILES = open_files(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
        if OPTIONS.command != "facts":
            refuse_old_python(OPTIONS.command, sys.version_info[:3])
    except Refused as refused:
        print_error_and_exit(refused, OPTIONS.json)
    except Exception as error:  # noqa: BLE001 - any error is printed as the one document
        print_error_and_exit(Refused("Failure", f"{type(error).__name__}: {error}", code=1), OPTIONS.json)
    sys.meta_path.insert(0, CheckedModules(CHECKED_FILES))
    if OPTIONS.command == "facts":  # works with an older Python than commands.py and core do
        from winhost.bundle.linux_bundle import main
    else:
        from winhost.bundle.linux_commands import main
    from winhost.bundle.linux_bundle import print_and_exit

    print_and_exit(main(OPTIONS, CHECKED_FILES), OPTIONS.json)
