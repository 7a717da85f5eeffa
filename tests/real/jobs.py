"""Run programs side by side. The output of each is printed whole when it ends, and all of them end with this one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

POLL_S, SILENT_S = 0.2, 60
END_S = 120  # in which tests put back what they changed: mounts, machines, accounts


@dataclass(frozen=True)
class Job:
    """lane: the jobs of a lane share its capacity. size: how much of that this one takes."""

    name: str
    command: Sequence[str]
    lane: str
    size: int = 1
    environ: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Ended:
    """code: None where it was killed for its limit. cpu_s: of all processes that it waited for, too."""

    code: int | None
    seconds: float
    cpu_s: float


class _Running:
    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.began, self._said = job, time.monotonic(), folder / job.name
        self._cpu_s = 0.0
        self._asked = False
        with self._said.open("wb") as output:
            self._process = subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=job.environ,
                start_new_session=True,  # a signal reaches it and all that it started, and Ctrl-C only through us
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def ended(self) -> Ended | None:
        if self._process.returncode is None:
            pid, status, used = os.wait4(self._process.pid, os.WNOHANG)
            if not pid:
                return None
            self._process.returncode = os.waitstatus_to_exitcode(status)
            self._cpu_s = used.ru_utime + used.ru_stime
            self.signal(signal.SIGKILL)  # ends what it left behind
        return Ended(self._process.returncode, self.seconds, self._cpu_s)

    def end(self) -> None:
        """Ask as Ctrl-C does, so that tests put back what they changed, and then harder."""
        for signalled in (self.ask, lambda: self.signal(signal.SIGTERM), lambda: self.signal(signal.SIGKILL)):
            signalled()
            until = time.monotonic() + END_S
            while time.monotonic() < until:
                if self.ended():
                    return
                time.sleep(POLL_S)

    def ask(self) -> None:
        """Once: a second interrupt would end what is putting things back after the first."""
        if not self._asked:
            self._asked = True
            self.signal(signal.SIGINT)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def output(self) -> str:
        return self._said.read_text("utf-8", errors="replace")


def say(text: str) -> None:
    print(text, flush=True)


class SideBySide:
    """capacity: of each lane. A job begins as soon as its lane has room, in the order given; one that is larger than
    its lane has it alone. limit_s: after which a job is killed.
    """

    def __init__(
        self,
        capacity: Mapping[str, int],
        limit_s: float,
        say: Callable[[str], None] = say,
        silent_s: float = SILENT_S,
    ) -> None:
        self._capacity, self._limit_s, self._silent_s = capacity, limit_s, silent_s
        self._tell = say
        self._running: list[_Running] = []

    def run(self, jobs: Sequence[Job]) -> dict[str, Ended]:
        """Ctrl-C and SIGTERM end all of them before they are raised here."""
        waiting, results = list(jobs), dict[str, Ended]()
        before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        try:
            with TemporaryDirectory() as folder:
                try:
                    while waiting or self._running:
                        waiting = [job for job in waiting if not self._begins(job, Path(folder))]
                        time.sleep(POLL_S)
                        results |= self._ended()
                        self._break_silence(len(waiting))
                finally:
                    self._end_all()
        finally:
            signal.signal(signal.SIGTERM, before)
        return results

    def _say(self, text: str) -> None:
        self._tell(text)
        self._told = time.monotonic()

    def _begins(self, job: Job, folder: Path) -> bool:
        taken = sum(each.job.size for each in self._running if each.job.lane == job.lane)
        if taken and taken + job.size > self._capacity[job.lane]:
            return False
        self._say(f"== {job.name} begins")
        self._running.append(_Running(job, folder))
        return True

    def _ended(self) -> dict[str, Ended]:
        results = {}
        for each in [*self._running]:
            result = each.ended()
            if result is None and each.seconds > self._limit_s:
                each.end()
                result = Ended(None, each.seconds, 0)
            if result:
                self._running.remove(each)
                results[each.job.name] = result
                self._say(f"{each.output()}== {each.job.name} ended after {result.seconds:.0f} s")
        return results

    def _break_silence(self, waiting: int) -> None:
        if self._running and time.monotonic() - self._told >= self._silent_s:
            names = ", ".join(f"{each.job.name} for {each.seconds:.0f} s" for each in self._running)
            self._say(f"   running: {names}; {waiting} to come")

    def _end_all(self) -> None:
        for each in self._running:
            each.ask()  # at once, because each may take a while to put things back
        for each in self._running:
            each.end()
