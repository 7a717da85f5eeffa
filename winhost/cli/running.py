"""What apply, resume and rollback share: consents on a terminal, Ctrl-C, progress, and how outcomes are shown."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from winhost.cli.streams import lasting_streams
from winhost.model.errors import Exit, UsageFault

if TYPE_CHECKING:
    from winhost.engine.run import Means, Outcome
    from winhost.model.fleet import Host


@dataclass(eq=False)
class NotAsked(UsageFault):
    """Nobody is there to answer whether to begin."""

    @property
    def what(self) -> str:
        return "there is no terminal to ask whether to begin"

    @property
    def hint(self) -> str:
        return "Add --yes"


def begin(question: str, yes: bool) -> None:
    """Ask once. Raises NotAsked without a terminal, Abort on no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotAsked
    click.confirm(question, abort=True, err=True)


def consents(needed: tuple[str, ...], accepted: tuple[str, ...], maybe: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Those given, and on a terminal those given now, one question each; what lacks then is refused by the run.

    `maybe`: what the host or a later stage may turn out to need.
    """
    from winhost.model.plan import RISKS

    given = list(accepted)
    if sys.stdin.isatty():
        for risk in (*needed, *maybe):
            when = "Allow it?" if risk in needed else "Allow it, should it turn out to be needed?"
            if risk not in given and click.confirm(f"{risk}: {RISKS[risk]}. {when}", err=True):
                given.append(risk)
    return tuple(given)


class Stop:
    """Whether a run is to stop after its step in flight, and why; what asks first counts."""

    def __init__(self) -> None:
        self._why = ""

    def __call__(self) -> bool:
        return bool(self._why)

    def why(self) -> str:
        return self._why

    def ask(self, why: str) -> None:
        self._why = self._why or why


# What stops a run, and how that is said. Windows has no SIGHUP, and sends SIGBREAK for Ctrl-Break.
_SIGNALS = {
    "SIGINT": "as you asked",
    "SIGTERM": "because it was told to end (SIGTERM)",
    "SIGHUP": "because its terminal was closed (SIGHUP)",
    "SIGBREAK": "as you asked",
}


@contextmanager
def stopping(hosts: int = 1) -> Iterator[Stop]:
    """Whatever would end this process asks to stop after the step in flight: a signal, or readers who are gone.

    A second Ctrl-C stops one host here and now. Several are waited for: a thread cannot be cut short, and what it does
    must end in its journal.
    """
    stop = Stop()
    if hosts == 1:
        told = "Stopping after the step in flight; Ctrl-C again stops now. Either way the run can go on or back."
    else:
        told = (
            "Stopping each host after its step in flight, which is waited for; then each says how it goes on or back."
        )

    def handle(number: int, frame: FrameType | None) -> None:
        if stop() and number == signal.SIGINT and hosts == 1:
            raise KeyboardInterrupt
        stop.ask(_SIGNALS[signal.Signals(number).name])
        click.echo(f"\n{told}", err=True)

    def gone(why: str) -> None:
        stop.ask(f"because nobody takes its output any more ({why})")

    with lasting_streams(gone), _handled_by(handle):
        yield stop


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    # Under nohup a hang-up is ignored, and stays so.
    ours = [n for n in numbers if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, handle)) for number in ours]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@dataclass(frozen=True)
class Deadlines:
    """How long to wait, in seconds, for a guest to shut down and for a host to be back."""

    guest: float
    restart: float


def means_for(
    host: "Host",
    deadlines: Deadlines,
    stop: Stop,
    watch: Callable[[Any], None],
    plan_file: Path | None = None,
) -> "Means":
    """What a run of this host works with. plan_file: beside which files may lie; a run that has begun knows it."""
    from winhost.cli.reach import way_to
    from winhost.connect.reboot import Patience
    from winhost.engine.run import Means
    from winhost.engine.store import Store

    return Means(
        way_to(host),
        Store(),
        Patience(deadline=deadlines.restart),
        deadlines.guest,
        watch,
        stop,
        folder=plan_file.parent if plan_file else Path(),
        why=stop.why,
    )


def show_outcome(outcome: "Outcome") -> None:
    """One host's end, for people."""
    from winhost.cli.output import say
    from winhost.cli.show_plan import shown

    good = outcome.holds
    say(f"{outcome.host}: {outcome.outcome}, {_changes(outcome.changed)}", fg="green" if good else "red", bold=True)
    for check in outcome.checks:
        if not check.holds:
            say(f"  {check.title}: {check.property} should be {shown(check.want)}, is {shown(check.found)}")
    for sentence in outcome.kept:
        say(f"  {sentence}")
    if outcome.outcome == "applied":
        say(f"  {len(outcome.checks)} properties verified. Go back at any time: winhost rollback {outcome.run}")


def _changes(count: int) -> str:
    return "1 change" if count == 1 else f"{count} changes"


def outcome_code(outcome: "Outcome") -> int:
    """4 where the final verify found a difference."""
    return int(Exit.SUCCESS if outcome.holds else Exit.DRIFT)


def go_either_way(
    go: "Callable[[str, tuple[str, ...], Means], Outcome]",
    verb: str,
    run_name: str,
    accepted: tuple[str, ...],
    yes: bool,
    deadlines: Deadlines,
    fleet_file: Path | None,
    as_json: bool,
    as_jsonl: bool,
) -> int:
    """Resume or roll back one run; on a terminal, a consent that turns out to be needed is asked for once."""
    from winhost.cli.answers import Ended
    from winhost.cli.envelope import answer
    from winhost.cli.output import print_line
    from winhost.cli.reach import hosts_named
    from winhost.cli.watch import watching
    from winhost.engine.failures import ConsentNeeded
    from winhost.engine.journal import read_journal
    from winhost.engine.record import replay
    from winhost.engine.store import Store

    record = replay(run_name, read_journal(Store().existing(run_name)))
    host = hosts_named([record.host], fleet_file)[0]
    begin(f"{verb} {run_name} on {record.host}?", yes)

    def watched(given: tuple[str, ...]) -> "Outcome":
        with stopping() as stop, watching(as_jsonl) as watch:
            return go(run_name, given, means_for(host, deadlines, stop, watch))

    try:
        outcome = watched(accepted)
    except ConsentNeeded as needed:
        more = consents(needed.risks, accepted)
        if set(more) == set(accepted):
            raise
        outcome = watched(more)
    if as_json:
        answer("outcome", [Ended(outcome.host, outcome)])
    elif as_jsonl:
        print_line(Ended(outcome.host, outcome))
    else:
        show_outcome(outcome)
    return outcome_code(outcome)
