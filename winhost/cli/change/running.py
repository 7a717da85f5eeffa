"""The common part of apply, resume, rollback, up and down: consents on a terminal, Ctrl-C, progress and outcomes."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click

from winhost.cli.envelope import show_results
from winhost.cli.jsonl import print_end
from winhost.cli.live_hosts import connector_for
from winhost.cli.named_hosts import hosts_named, is_local, known_fleet
from winhost.cli.options import RunOptions
from winhost.cli.output import say, with_fleet
from winhost.cli.serve.hosts import describe_endpoint, find_serving_run, hosts_by_name
from winhost.cli.serve.target import save_verified_versions
from winhost.cli.tables import format_two
from winhost.cli.terminal import lasting_streams
from winhost.cli.up.first_completion import completions
from winhost.cli.watch import Watch, watching
from winhost.connect.patience import Patience
from winhost.core.checks import Check
from winhost.core.dataclass import dataclass
from winhost.core.steps import Step
from winhost.engine.failures import ConsentNeeded
from winhost.engine.journal import read_journal
from winhost.engine.run_context import Outcome, RunContext
from winhost.engine.run_state import RunState, replay
from winhost.engine.store import Store
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.fleet import AnyHost, Host
from winhost.model.plan import RISKS, Plan, Stage, in_order


@dataclass(frozen=True)
class EndedHost:
    """The outcome of apply, resume or rollback on a host."""

    host: str
    outcome: Outcome


_LISTED = 4  # of what a consent is for, in one question


def begin(question: str, yes: bool) -> None:
    """Ask whether to begin. Raises UsageError (NotAsked) without a terminal, Abort on no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise not_asked("Add --yes")
    click.confirm(question, abort=True, err=True)


def not_asked(hint: str, what: str = "whether to begin", host: str | None = None) -> UsageError:
    """Make the error for a question without a terminal. hint: the command that asks nothing."""
    return UsageError(
        "NotAsked", what=f"there is no terminal to ask {what}", meaning="Nothing was changed.", hint=hint, host=host
    )


@dataclass(frozen=True)
class Asking:
    """Consents to ask for on a host, each with what it is for; maybe: those that may turn out to be needed.

    vm: as the request names it; run: None if none was begun; changed: the run has changed something in this direction.
    """

    host: str
    needed: Mapping[str, tuple[str, ...]]
    maybe: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vm: str | None = None
    run: str | None = None
    going_back: bool = False
    changed: bool = False
    retry_options: str | None = None


def asking_for(plan: Plan, stages: Sequence[Stage], **more: Any) -> Asking:
    """Collect the consents that these stages of a plan ask for, and what is deferred in them."""
    steps = [step for stage in stages for step in stage.steps]
    asking = asking_for_steps(plan.host, steps, vm=plan.request.vm, **more)
    possible = [(step.may_need, step.title) for step in steps]
    possible += [(each.asks, f"{each.title}, later") for stage in stages for each in stage.deferred]
    maybe = {risk: titles for risk, titles in _titles_by_risk(possible).items() if risk not in asking.needed}
    return replace(asking, maybe=maybe)


def asking_for_steps(host: str, steps: Iterable[Step], **more: Any) -> Asking:
    """Collect the consents that steps ask for."""
    return Asking(host, _titles_by_risk((step.risks, step.title) for step in steps), **more)


def _titles_by_risk(asked: Iterable[tuple[Iterable[str], str]]) -> dict[str, tuple[str, ...]]:
    titles: dict[str, list[str]] = {}
    for risks, title in asked:
        for risk in risks:
            titles.setdefault(risk, []).append(title)
    return {risk: tuple(dict.fromkeys(titles[risk])) for risk in in_order(titles)}


def consents(asking: Asking, accepted: tuple[str, ...], yes: bool) -> tuple[str, ...]:
    """Ask for missing consents, one question each, if there is a terminal. The run refuses what is still missing.

    With --yes, ask only for those without which the run could not begin. Raises ConsentNeeded at the first no.
    """
    if not sys.stdin.isatty():
        return accepted
    given = list(accepted)
    for risk, titles in {**asking.needed, **({} if yes else asking.maybe)}.items():
        if risk in given:
            continue
        where = f"{asking.host}, VM {asking.vm}" if asking.vm else asking.host
        when = "Allow it?" if risk in asking.needed else "Allow it if it turns out to be needed?"
        named = "; ".join(titles[:_LISTED]) + (f"; and {len(titles) - _LISTED} more" if len(titles) > _LISTED else "")
        if not click.confirm(visible(f"{where}: {risk}: {RISKS[risk]}. For: {named}. {when}"), err=True):
            raise ConsentNeeded(
                asking.host, asking.run, (risk,), asking.going_back, asking.changed, asking.retry_options
            )
        given.append(risk)
    return tuple(given)


class Stop:
    """A request to stop a run after its step in flight. The first reason counts. say: tells people, called from a
    signal's handler.
    """

    def __init__(self) -> None:
        self.say: Callable[[str], None] = lambda text: click.echo(f"\n{text}", err=True)
        self._why = ""
        self._now = False
        self._cuttable = False

    def __call__(self) -> bool:
        return bool(self._why)

    def why(self) -> str:
        return self._why

    def ask(self, why: str) -> None:
        self._why = self._why or why

    def now(self) -> None:
        """Interrupt the run as soon as it waits for its host. Raises KeyboardInterrupt if it does so now."""
        self._now = True
        if self._cuttable:
            self._cuttable = False  # here, because a `finally` can be interrupted itself
            raise KeyboardInterrupt

    @contextmanager
    def cuttable(self) -> Iterator[None]:
        """Let `now` interrupt the block, which waits for the host. Raises KeyboardInterrupt, also if it came before."""
        if self._cuttable:
            yield
            return
        self._cuttable = True  # before it is asked: who asks in between is heard by one of the two
        try:
            if self._now:
                raise KeyboardInterrupt
            yield
        finally:
            self._cuttable = False


# Signals that stop a run, each with the reason that is shown. Windows has no SIGHUP; Ctrl-Break sends SIGBREAK.
_SIGNALS = {
    "SIGINT": "as you asked",
    "SIGTERM": "because it was asked to terminate (SIGTERM)",
    "SIGHUP": "because its terminal was closed (SIGHUP)",
    "SIGBREAK": "as you asked",
}


@contextmanager
def shown_on(document: bool) -> Iterator[None]:
    """Print what comes before questions on stderr if stdout is for a document."""
    with redirect_stdout(sys.stderr if document else sys.stdout):
        yield


@contextmanager
def stopping(hosts: int = 1) -> Iterator[Stop]:
    """Make signals and closed pipes ask for a stop after the step in flight instead of ending this process.

    A second Ctrl-C interrupts a single host while winhost waits for it. Several hosts run in threads, which cannot be
    interrupted: each ends its step and its line of the journal.
    """
    stop = Stop()
    heard = False
    if hosts == 1:
        message = (
            "Stopping after the current step; press Ctrl-C again to stop now. "
            "Either way, the run can be resumed or rolled back."
        )
    else:
        message = "Stopping each host after its current step; each then shows how to resume it or roll it back."

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if heard and number == signal.SIGINT and hosts == 1:
            stop.now()
            return
        heard = True
        stop.ask(_SIGNALS[signal.Signals(number).name])
        stop.say(message)

    def gone(why: str) -> None:
        stop.ask(f"because nobody reads its output any more ({why})")

    with lasting_streams(gone), _handled_by(handle):
        yield stop


@contextmanager
def under_way(hosts: int = 1, as_jsonl: bool = False, *, brief: bool = False) -> Iterator[tuple[Stop, Watch]]:
    """Do as `stopping`, with progress on the screen, which also shows what is said of signals."""
    with stopping(hosts) as stop, watching(as_jsonl, brief=brief) as watch:
        by_itself, stop.say = stop.say, watch.say
        try:
            yield stop, watch
        finally:
            stop.say = by_itself


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


def run_context(
    host: AnyHost, options: RunOptions, stop: Stop, watch: Callable[[Any], None], plan_file: Path | None = None
) -> RunContext:
    """Make the context of a run. plan_file: the plan that files may lie beside; a run that has begun knows its own."""
    return RunContext(
        connector_for(host),
        Store(),
        Patience(deadline=options.restart_deadline),
        options.guest_deadline,
        partial(_tell_of_own_restart, watch) if is_local(host) else watch,
        stop,
        folder=plan_file.parent if plan_file else Path(),
        why=stop.why,
        cuttable=stop.cuttable,
        machine=host if isinstance(host, Host) else None,
        final=completions(watch, stop, host.address, partial(save_verified_versions, host)),
    )


def _tell_of_own_restart(watch: Callable[[Any], None], event: Any) -> None:
    """Tell of a restart of the machine that winhost runs on, which also ends winhost."""
    if event.kind == "restart":
        event = replace(
            event, text="restarting, which ends winhost. Log on again and type winhost: it says how to go on"
        )
    watch(event)


def show_outcome(outcome: Outcome, *, brief: bool = False) -> None:
    """Show how a run ended on a host. brief: the caller tells the next command."""
    good, changes = outcome.holds, "1 change" if outcome.changed == 1 else f"{outcome.changed} changes"
    say(f"{outcome.host}: {outcome.outcome}, {changes}", fg="green" if good else "red", bold=True)
    for check in outcome.checks:
        if not check.holds:
            desired, found = format_two(check.desired, check.found)
            say(f"  {check.title}: {check.property} should be {desired}, is {found}")
    for sentence in outcome.kept:
        say(f"  {sentence}")
    for unchecked in outcome.missing:
        say(f"  {unchecked.title}: not restored and not kept: {unchecked.why}")
    if outcome.next:
        say(f"  {outcome.next}")
    if outcome.outcome == "applied" and not brief:
        undo = with_fleet(f"To undo this at any time: winhost rollback {outcome.run}")
        say(f"  {len(outcome.checks)} properties verified. {undo}")


def show_served(run: str, host: AnyHost | None, checks: Iterable[Check] = ()) -> None:
    """Show how to use what a run serves, if anything, with lines to copy. checks: those at its end."""
    served = find_serving_run(replay(run, read_journal(Store().existing(run))), host, checks)
    for text in map(with_fleet, describe_endpoint(served) if served else ()):
        if text.startswith(("  ", "API key:", "Base URL:")):
            click.echo(visible(text))
        else:
            say(text)


def carried_through(
    host: AnyHost,
    go: Callable[[str | None, tuple[str, ...], RunContext], Outcome],
    verb: str,
    vm: str | None,
    given: tuple[str, ...],
    options: RunOptions,
    *,
    run: str | None = None,
    plan_file: Path | None = None,
    brief: bool = False,
) -> Outcome:
    """Carry a run through. On a terminal, each consent that turns out to be needed is asked for once, and the run is
    resumed with it. Raises ConsentNeeded if it is not given.

    run: the run to resume; plan_file: the plan of one that begins.
    """
    while True:
        try:
            with (
                under_way(as_jsonl=options.as_jsonl, brief=brief) as (stop, watch),
                watch.at(host.name, "reading") if plan_file else nullcontext(),
            ):
                return go(run, given, run_context(host, options, stop, watch, plan_file))
        except ConsentNeeded as needed:
            asking = Asking(
                needed.host,
                dict.fromkeys(needed.risks, (verb,)),
                vm=vm,
                run=needed.run,
                going_back=needed.going_back,
                changed=needed.changed,
                retry_options=needed.retry_options,
            )
            more = consents(asking, given, options.yes)
            if set(more) == set(given):
                raise
            run, given = run or needed.run, more


def show_ends(ends: "Iterable[tuple[str, Outcome | WinhostError]]", options: RunOptions, *, brief: bool = False) -> int:
    """Show how runs ended on hosts, as they end, in one document. Returns the exit code."""
    if options.as_jsonl:
        codes = [0]
        for host, end in ends:
            print_end(host, end)
            codes.append(int(end.exit_code))
        return max(codes)
    hosts: dict[str, AnyHost] = {}

    def show(end: Outcome) -> None:
        show_outcome(end, brief=brief)
        if end.outcome == "applied" and end.holds and not brief:
            if not hosts:
                with suppress(WinhostError):  # fleet.yaml may have faults by now; each host still gets its outcome
                    hosts.update(hosts_by_name(known_fleet(options.fleet_file)))
            show_served(end.run, hosts.get(end.host), end.checks)

    return show_results(
        "outcome",
        options.output.shape,
        ends,
        show,
        document=lambda end: EndedHost(end.host, end),
        code=lambda end: int(end.exit_code),
    )


def ended_run(
    go: Callable[[str, tuple[str, ...], RunContext], Outcome],
    verb: str,
    run_name: str,
    options: RunOptions,
    ask: Callable[[RunState, RunContext, tuple[str, ...]], tuple[str, ...]] = lambda record, context, given: given,
    *,
    brief: bool = False,
) -> Outcome:
    """Resume or roll back one run; on a terminal, a consent that turns out to be needed is asked for once.

    ask: what is shown and asked for first; it gives the consents.
    """
    record = replay(run_name, read_journal(Store().existing(run_name)))
    host = hosts_named([record.host], options.fleet_file)[0]
    with shown_on(options.document):
        accepted = ask(record, run_context(host, options, Stop(), lambda event: None), options.accepted)
    begin(f"{verb} {run_name} on {record.host}?", options.yes)
    vm = record.plan.request.vm
    return carried_through(
        host, lambda _, given, context: go(run_name, given, context), verb.lower(), vm, accepted, options, brief=brief
    )
