"""`make real`: what takes long or needs real programs, part by part, and whether each part ran.

    python -m tests.real [--all] [PART…]

It installs what the parts need, where it may (root, with apt), and runs them side by side. A part is required where its
needs can be met. The exit code is 1 if a test failed or one of a required part was skipped. With --all every test of
every part runs, and no part is skipped because nothing that it reads has changed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.house.tree import ROOT
from tests.real.inputs import Tree, Unknown, changed_since
from tests.real.jobs import Ended, Job, SideBySide, say
from tests.real.parts import PARTS, PATH, WORKERS, Part, can_install

# Ends what hangs for ever. What is slow goes on: CI has a limit of its own, and so has each test.
LIMIT_S = 4 * 3600
LANES = {"waits": 2, "computes": WORKERS}


@dataclass(frozen=True)
class Result:
    """The result of a part. why: each reason for which a test was skipped, once."""

    ran: int
    failed: int
    skipped: int
    ended: Ended
    why: tuple[str, ...] = ()

    def verdict(self, required: bool) -> str:
        if self.ended.code is None:
            return f"FAILED: it did not end within {LIMIT_S} s"
        if self.failed or (self.ran == 0 and not self.skipped):
            return "FAILED"
        if self.skipped:
            return "FAILED: skipped, and required here" if required else "skipped" if not self.ran else "ran in part"
        return "ran"


def is_there(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program, path=PATH) is not None


def install(parts: Iterable[Part]) -> None:
    """All at once, or else what can be had: a package that is not there fails the part that needs it, and no other."""
    wanted = [{package for program, package in part.programs.items() if not is_there(program)} for part in parts]
    lacking = set().union(*wanted)
    if not lacking or not can_install():
        return
    if "cloud-init" in lacking:  # it is read with, and shall not set this machine up when that starts again
        Path("/etc/cloud").mkdir(exist_ok=True)
        Path("/etc/cloud/cloud-init.disabled").touch()
    say(f"== installing {' '.join(sorted(lacking))}")
    apt("update")
    if apt("install", "--no-install-recommends", *sorted(lacking)):
        for each in wanted:
            apt("install", "--no-install-recommends", *sorted(each))


def apt(*words: str) -> int:
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "--yes", "--quiet=2", "-o", "DPkg::Lock::Timeout=600", *words]
    return subprocess.run(command, env=quietly, timeout=LIMIT_S, check=False).returncode


def job(name: str, part: Part, costly: str, report: Path) -> Job:
    command = [sys.executable, "-m", "pytest", "-m", part.marks, "--costly", costly, *part.options]
    command += ["-n", str(part.workers), "--dist", "loadfile", f"--junitxml={report}", *part.tests]
    lane = "waits" if part.waits else "computes"
    return Job(name, command, lane, 1 if part.waits else part.workers, {**os.environ, "PATH": PATH})


def read(report: Path, ended: Ended) -> Result:
    """Read the report of pytest; an exit code that no test explains is a failure, too."""
    if not report.exists():
        return Result(0, 1, 0, ended)
    cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = [found for case in cases if (found := case.find("skipped")) is not None]
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    why = tuple(sorted({found.get("message", "") for found in skipped}))
    return Result(len(cases) - len(skipped), max(failed, int(ended.code != 0)), len(skipped), ended, why)


def unchanged(parts: Mapping[str, Part], base: str, root: Path) -> set[str]:
    """The parts whose tests read nothing that changed since this commit; none of them where that cannot be told."""
    if not base:
        return set()
    try:
        changed = changed_since(base, root)
    except Unknown as why:
        say(f"Every part runs, because it is unknown what changed since {base}: {why}")
        return set()
    tree = Tree(root)
    return {name for name, part in parts.items() if not any(map(tree.inputs(part.tests).has, changed))}


def row(name: str, verdict: str, result: Result) -> str:
    ended = result.ended
    counts = f"{result.ran} ran, {result.skipped} skipped, {ended.seconds:.0f} s, {ended.cpu_s:.0f} s of CPU"
    return "\n".join([f"{name:12}{verdict}: {counts}", *(f"{'':12}{why}" for why in result.why)])


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real", description="Parts: " + ", ".join(PARTS))
    parser.add_argument("--all", action="store_true", help="every test of every part")
    parser.add_argument("parts", nargs="*", metavar="PART")
    asked = parser.parse_args(words)
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    chosen = {name: PARTS[name] for name in asked.parts or [name for name in PARTS if not PARTS[name].only_by_name]}
    base = "" if asked.all or asked.parts else os.environ.get("WINHOST_BASE", "")
    left = unchanged(chosen, base, ROOT)
    running = {name: part for name, part in chosen.items() if name not in left}
    install(running.values())
    with tempfile.TemporaryDirectory() as folder:
        reports = {name: Path(folder) / f"{name}.xml" for name in running}
        jobs = [job(name, part, "all" if asked.all else "some", reports[name]) for name, part in running.items()]
        ended = SideBySide(LANES, LIMIT_S).run(jobs)
        results = {name: read(reports[name], ended[name]) for name in running}
    verdicts = {name: result.verdict(running[name].required()) for name, result in results.items()}
    say("")
    for name in chosen:
        told = f"{name:12}skipped: nothing that it reads changed since {base}"
        say(told if name in left else row(name, verdicts[name], results[name]))
    return int(any(verdict.startswith("FAILED") for verdict in verdicts.values()))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("stopped")
