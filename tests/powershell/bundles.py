"""A person who runs the scripts of bundles on a simulated host: the real text, in a real PowerShell, on stand-ins."""

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.world import EVERY_CONSENT
from tests.powershell.conftest import BUSY_S
from tests.processes import PATIENCE_S, started
from winhost.bundle.bundle_files import SHARED, SUMS, bundle, sums
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, seams
from winhost.lab.powershell.powershell_engine import LAB_VARIABLE, Loopback, PowerShellEngine, find_engine
from winhost.lab.powershell.standins import standins
from winhost.model.facts import Facts
from winhost.model.plan import Plan
from winhost.model.yamlfile import adapter

RESTART = 3010
LINE = "Watch-Journal"  # what a watched script tells the host around each line of its journal
AGENTS_HEADER = "# Json {exclusive"

# A watched run tells where its journal stands: before a line, with half of it on disk, and after it.
WATCHED = r"""
${function:Write-TestLine} = ${function:Write-WinhostLine}

function Write-WinhostLine {
    param($Run, [string]$Kind, $Fields)
    $null = Invoke-Lab 'Watch-Journal' @{ when = 'before'; kind = $Kind; journal = $Run.stream.Name }
    Write-TestLine $Run $Kind $Fields
    $null = Invoke-Lab 'Watch-Journal' @{ when = 'after'; kind = $Kind; journal = $Run.stream.Name }
}
"""


# A script has variables of its own; the stand-ins of its process are those of the whole runspace.
CONNECTED = r"""
foreach ($testVariable in 'LabReader', 'LabWriter', 'LabTypes', 'LabKeys') {
    Set-Variable -Scope Script -Name $testVariable -Value (Get-Variable -Scope Global -Name $testVariable -ValueOnly)
}
"""


class WatchedCmdlets(CmdletProcess):
    """Also hears of journal lines, and hands them to whoever listens; and fails where it is to."""

    listener: Callable[[BoundParameters], None] = staticmethod(lambda given: None)
    broken = ""

    def run(self, name: str, given: BoundParameters) -> list[Any]:
        if name == LINE:
            WatchedCmdlets.listener(given)
            return []
        if name == WatchedCmdlets.broken:
            raise CmdletError(name, "ReadError", "OperationFailed", ("0x80131501",), "no")
        return super().run(name, given)


@contextmanager
def listening(listener: Callable[[BoundParameters], None]) -> Iterator[None]:
    WatchedCmdlets.listener = staticmethod(listener)
    try:
        yield
    finally:
        WatchedCmdlets.listener = staticmethod(lambda given: None)


@contextmanager
def broken(cmdlet: str) -> Iterator[None]:
    """No call of it succeeds meanwhile."""
    WatchedCmdlets.broken = cmdlet
    try:
        yield
    finally:
        WatchedCmdlets.broken = ""


@dataclass(frozen=True)
class Done:
    """How a script ended, and what it printed."""

    code: int
    output: str

    @property
    def said(self) -> dict[str, Any]:
        """The document of -Json."""
        found: dict[str, Any] = json.loads(self.output)
        return found

    @property
    def refused(self) -> str:
        """Return the kind of its error, or nothing."""
        return str(self.said.get("error", {}).get("kind", ""))


class Person:
    """Runs scripts in one PowerShell process, which is led from host to host: starting one takes longer than a run."""

    def __init__(self, loopback: Loopback) -> None:
        self._loopback = loopback
        self._engine = PowerShellEngine(loopback)

    def run(self, machine: Machine, script: Path, *words: str) -> Done:
        self._loopback.machine = machine
        said = self._engine.ask({"script": f"& {_quoted(script)} {' '.join(words)}\n$LASTEXITCODE"})
        return Done(int(said[-1]), "\n".join(said[:-1]))

    def alone(
        self, machine: Machine, script: Path, *words: str, kill_at: str = "", kill_after: float | None = None
    ) -> Done:
        """In a process of its own, as on Windows; `script` must bring its stand-ins. It may be killed: at a line of
        the journal, as `end`, or after so many seconds.
        """
        self._loopback.machine = machine
        command = [find_engine(), "-NoLogo", "-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass", "-File"]
        with started(
            [*command, str(script), *words],
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, LAB_VARIABLE: self._loopback.address},
        ) as process:

            def kill(given: BoundParameters) -> None:
                if given["kind"] == kill_at:
                    process.kill()
                    process.wait(PATIENCE_S)

            with listening(kill):
                try:
                    output = process.communicate(timeout=kill_after or BUSY_S)[0]
                except subprocess.TimeoutExpired:
                    process.kill()
                    output = process.communicate(timeout=BUSY_S)[0]
                    if kill_after is None:
                        raise
        return Done(process.returncode, output)

    def hold(self, path: Path) -> None:
        """Have a file open for itself alone, until this process ends."""
        self._engine.ask({"script": f"$global:held = [System.IO.File]::Open({_quoted(path)}, 4, 3, 0)"})

    def close(self) -> None:
        self._engine.close()


@contextmanager
def a_person(machine: Machine) -> Iterator[Person]:
    with Loopback(machine) as loopback:
        person = Person(loopback)
        try:
            yield person
        finally:
            person.close()


@dataclass
class ByHand:
    """One host, its folder for journals, and a person at it. The bundles are folders of their own."""

    person: Person
    machine: Machine
    journals: Path

    def facts(self, made: Path) -> Facts:
        return adapter(Facts).validate_python(json.loads(self.person.run(self.machine, made / "Facts.ps1").output))

    def verify(self, made: Path) -> Done:
        return self.person.run(self.machine, made / "Verify.ps1", "-Json")

    def apply(self, made: Path, *words: str, accept: Iterable[str] = EVERY_CONSENT) -> Done:
        return self._change(made / "Apply.ps1", words, accept)

    def rollback(self, made: Path, *words: str, accept: Iterable[str] = EVERY_CONSENT) -> Done:
        return self._change(made / "Rollback.ps1", words, accept)

    def _change(self, script: Path, words: tuple[str, ...], accept: Iterable[str]) -> Done:
        folder = ("-JournalFolder", _quoted(self.journals))
        return self.person.run(
            self.machine, script, "-Json", *folder, "-Accept", f"@({','.join(map(_quoted, accept))})", *words
        )

    def through(self, script: Callable[..., Done], made: Path) -> Done:
        """Restarting the host where the script says so, as its readme tells."""
        done = script(made)
        for _ in range(2):
            if done.code == RESTART:
                restart(self.machine)
                done = script(made)
        return done

    def state(self) -> Mapping[str, Any]:
        return self.machine.comparable_state()

    def copy(self, folder: Path) -> "ByHand":
        """The same host and its journals, going its own way from here."""
        shutil.copytree(self.journals, folder)
        give_rights(folder)
        return ByHand(self.person, twin(self.machine), folder)


def give_rights(folder: Path) -> None:
    """Those that the scripts give a folder of journals and ask of it; on Windows another one is not believed."""
    if os.name == "nt":
        administrators, system = "*S-1-5-32-544", "*S-1-5-18"
        grants = [word for who in (administrators, system) for word in ("/grant:r", f"{who}:(OI)(CI)F")]
        for words in (["/setowner", administrators], ["/inheritance:r", *grants]):
            subprocess.run(["icacls", str(folder), *words, "/q"], check=True, timeout=PATIENCE_S)


def restart(machine: Machine) -> None:
    machine.restart_computer()
    machine.wait_until_ready()


def twin(machine: Machine) -> Machine:
    """The same host as it is now, going its own way from here."""
    made = Machine(machine.facts(), machine.lab, machine.clock)
    kept = {"mutex", "_lock", "_up", "_ready", "_restart", "_shutdown_callbacks"}  # a runspace's, not the host's
    state = {n: v for n, v in machine.__dict__.items() if n not in kept}
    # Its parts belong to the twin, and a lock is not copied.
    memo = {id(machine): made, id(machine.network._lock): made.network._lock}
    made.__dict__.update(copy.deepcopy(state, memo))
    return made


# ---- bundles with what a test needs in their scripts


def unpack(plan: Plan, folder: Path, *, watched: bool = False, alone: bool = False) -> Path:
    """A bundle whose scripts reach the lab, with the sums of that. `alone`: for a process without our stand-ins."""
    folder.mkdir(parents=True)
    made = bundle(plan)
    made[SHARED] = _reaching_the_lab(
        made[SHARED].decode(), standins() if alone else CONNECTED, WATCHED if watched else ""
    )
    for name, content in (*made.items(), (SUMS, sums(made))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def _reaching_the_lab(script: str, way: str, told: str) -> bytes:
    """With a way to the lab before the agent, and the agent's seams put over it behind."""
    chapters, agent = script.split(AGENTS_HEADER)
    return f"{chapters}{way}\n{AGENTS_HEADER}{agent}{seams()}{told}\n".encode()


# ---- a run that is watched


@dataclass
class Moment:
    """Return the state of a run that is killed at this point."""

    here: ByHand
    name: str


@dataclass
class Film:
    """Copies of a host around every journal line of the runs that are made on it."""

    here: ByHand
    folder: Path
    moments: list[Moment] = field(default_factory=list)

    def note(self, given: BoundParameters) -> None:
        if given["when"] == "after" and given["kind"] != "begin":
            return  # nothing happens between this and the moment before the next line
        if self.here.machine.network.is_busy:
            return  # a task that is at work cannot be copied
        name = f"{len(self.moments):02d}-{given['when']}-{given['kind']}"
        self.moments.append(Moment(self.here.copy(self.folder / name), name))


@contextmanager
def filmed(here: ByHand, folder: Path) -> Iterator[list[Moment]]:
    film = Film(here, folder)
    with listening(film.note):
        yield film.moments


def _quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"
