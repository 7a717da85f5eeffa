#!/usr/bin/python3 -I
"""Does in the Linux itself what plan.json wants of it, with a journal and a way back. For root, in a terminal there.

  python3 -I run.py apply --check           shows the steps; changes nothing and writes nothing
  python3 -I run.py apply                   does them; run again after a crash or a failure, it goes on
  python3 -I run.py verify                  is it so? Changes nothing
  python3 -I run.py rollback [--check]      undoes exactly what apply changed
  python3 -I run.py facts -o WHOLE          what this Linux tells; changes nothing. In WSL: facts FACTS -o WHOLE, with
                                            what Facts.ps1 wrote

It checks the sums of its folder, that this is the Linux that was planned for, and that it still is as the plan saw it.
Then it does the steps, one by one, each written to the journal before and after, and reads at the end whether all is as
wanted. Ctrl-C ends it after the step that it is at.

What takes effect only with a restart of this machine is done last. It says so and ends; restart, and run it again.

Exit codes: 0 done, 1 failure, 2 wrong usage, another machine or changed files, 4 the machine is not as the plan saw it
(or, at the end, not as wanted), 75 restart this machine, then go on.

This script is the same for every plan: what is wanted stands in plan.json beside it, and what is known of the resources
in resources.json; both are only ever read as data. agent.py is what winhost sends over SSH where it is allowed to, and
core/ is what winhost itself does, undoes and compares by. This file only checks the folder, then starts commands.py,
which uses bundle.py, host.py and journal.py: none of them runs before its sum was checked. Python 3.10 and its standard
library are enough, and 3.8 for `facts`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.dont_write_bytecode = True
    if not sys.flags.isolated:
        # Before anything else is imported: a file of this folder with the name of a module would run in its place.
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
CHANGES_FROM = (3, 10)  # of Python, as Ubuntu 22.04 has it


# ==== 1. what is asked


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("run.py", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
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
            told = "what Facts.ps1 wrote, for a Linux in WSL; - reads it from standard input"
            command.add_argument("facts", metavar="FACTS", nargs="?", help=told)
            command.add_argument("-o", dest="output", metavar="WHOLE", help="a new file; by default it is printed")
    return made


class Refused(Exception):
    """Nothing of the folder ran. kind, what happened, what it means and a hint: as in every error of winhost."""

    def __init__(self, kind: str, what: str, meaning: str = "", hint: str = "", code: int = 2) -> None:
        super().__init__(what)
        self.document = {"kind": kind, "exit_code": code, "what": what, "meaning": meaning, "hint": hint}
        self.code = code


def stop(refused: Refused, as_json: bool) -> NoReturn:
    """Print the error and end, as `leave` of linux_bundle does, whose sum may not have been checked."""
    error = refused.document
    lines = [f"error: {error['what']}", *(f"  {error[each]}" for each in ("meaning", "hint") if error[each])]
    # What a terminal would obey, hide or reorder is escaped: the name of a folder is data.
    shown = ["".join(c if c.isprintable() and c.isascii() else f"\\u{ord(c):04x}" for c in line) for line in lines]
    with suppress(OSError):
        stream = sys.stdout if as_json else sys.stderr
        stream.write("".join(f"{line}\n" for line in ([json.dumps({"error": error})] if as_json else shown)))
        stream.flush()
    sys.exit(refused.code)


# ==== 2. the folder: each file is read once, so that what is checked is what is used


def open_files(folder: str) -> Files:
    with opened(folder) as top, opened("core", top) as core:
        sums = dict(sum_line(line) for line in text_of(top, SUMS).decode("utf-8", "replace").splitlines())
        files = {name: text_of(core if name.startswith("core/") else top, name) for name in FILES}
    for name, text in files.items():
        if sums.get(name) != hashlib.sha256(text).hexdigest():
            raise changed(name)
    return files


@contextmanager
def opened(path: str, folder: int | None = None) -> Iterator[int]:
    try:
        here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | (0 if folder is None else os.O_NOFOLLOW), dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        raise changed(path) from None
    try:
        refuse_writable(path, here)
        yield here
    finally:
        os.close(here)


def refuse_writable(path: str, opened: int) -> None:
    """Refuse a file that others than root and the caller of sudo can write: they could put something else there after
    all.
    """
    found, owners = os.fstat(opened), {0, os.geteuid(), int(os.environ.get("SUDO_UID", "0"))}
    if found.st_uid not in owners or found.st_mode & 0o022:
        hint = "Copy the folder to a place of root's, as /root/winhost, and: chmod -R go-w /root/winhost"
        raise Refused("NotOurs", f"others may write to {path}", "Nothing was done.", hint)


def text_of(folder: int, name: str) -> bytes:
    try:
        file_ = os.open(name.rpartition("/")[2], os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        raise changed(name) from None
    with os.fdopen(file_, "rb") as file:
        refuse_writable(name, file_)
        return file.read()


def sum_line(line: str) -> tuple[str, str]:
    found = re.fullmatch(r"([0-9a-f]{64})  ([a-z_./]+)", line)
    if found is None or found[2] not in FILES:
        raise Refused("Changed", f"{SUMS} has a line that is not winhost's: {line}", "Nothing was done.")
    return found[2], found[1]


def changed(name: str) -> Refused:
    meaning = "It was changed, or lost, since the bundle was made. Nothing was done."
    return Refused("Changed", f"{name} is not as {SUMS} says", meaning, "Copy the whole folder again.")


# ==== 3. the modules that do it: from the bytes that were checked


class CheckedModules:
    """Finds winhost.core and what lies beside this file, and nothing else. No folder is searched, and nothing compiled
    is read or left behind.
    """

    def __init__(self, files: Files) -> None:
        core = {f"winhost.core.{name}": files[f"core/{name}.py"] for name in CORE}
        beside = {f"winhost.bundle.linux_{name}": files[f"{name}.py"] for name in MODULES}
        packages = {"winhost": b"", "winhost.bundle": b"", "winhost.core": core.pop("winhost.core.__init__")}
        self.packages, self.sources = frozenset(packages), {**packages, **core, **beside}

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
    if version < CHANGES_FROM:
        found, oldest = (".".join(map(str, each)) for each in (version, CHANGES_FROM))
        what = f"Python {found} is too old for {command}, which needs Python {oldest} or later"
        hint = "Upgrade this Linux; until then `facts` works."
        raise Refused("PythonTooOld", what, "Nothing was changed.", hint)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    ASKED = parser().parse_args()
    try:
        HERE = open_files(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
        if ASKED.command != "facts":
            refuse_old_python(ASKED.command, sys.version_info[:3])
    except Refused as no:
        stop(no, ASKED.json)
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever reads one document gets one
        stop(Refused("Failure", f"{type(error).__name__}: {error}", code=1), ASKED.json)
    sys.meta_path.insert(0, CheckedModules(HERE))
    if ASKED.command == "facts":  # works with an older Python than commands.py and core do
        from winhost.bundle.linux_bundle import main
    else:
        from winhost.bundle.linux_commands import main
    from winhost.bundle.linux_bundle import leave

    leave(main(ASKED, HERE), ASKED.json)
