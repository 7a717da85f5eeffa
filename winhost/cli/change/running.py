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
from winhost.cli.named_hosts import is_local, load_fleet_if_any, resolve_hosts
from winhost.cli.options import RunOptions
from winhost.cli.output import say, with_fleet
from winhost.cli.serve.hosts import describe_endpoint, find_serving_run, hosts_by_name
from winhost.cli.serve.target import save_verified_versions
from winhost.cli.tables import format_pair
from winhost.cli.terminal import unfailing_streams
from winhost.cli.up.first_completion import completion_checks
from winhost.cli.watch import Watch, show_progress
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
from winhost.model.plan import RISKS, Plan, Stage, sort_risks


@dataclass(frozen=True)
class EndedHost:
    """The outcome of apply, resume or rollback on a host."""

    host: str
    outcome: Outcome


_MAX_TITLES = 4  # titles that one question lists


def confirm_start(question: str, yes: bool) -> None:
    """Ask whether to begin. Raises UsageError (NotAsked) without a terminal, Abort on no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise no_terminal_error("Add --yes")
    click.confirm(question, abort=True, err=True)


def no_terminal_error(hint: str, question: str = "whether to begin", host: str | None = None) -> UsageError:
    """Return the error for a question that no terminal can show. hint: the command that does not ask."""
    return UsageError(
        "NotAsked", what=f"there is no terminal to ask {question}", meaning="Nothing was changed.", hint=hint, host=host
    )


@dataclass(frozen=True)
class ConsentRequest:
    """The consents to ask for on a host, each with the titles of the steps that need it.

    possible: consents that may turn out to be needed; vm: the VM as the plan's request names it; run: None if no run
    has started; changed: the run, or its rollback if going_back, has already changed something; retry_options: the
    options with which the user repeats the command.
    """

    host: str
    needed: Mapping[str, tuple[str, ...]]
    possible: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vm: str | None = None
    run: str | None = None
    going_back: bool = False
    changed: bool = False
    retry_options: str | None = None


def consent_request(plan: Plan, stages: Sequence[Stage], **fields: Any) -> ConsentRequest:
    """Collect the consents that the steps and the deferred steps of these stages need.

    fields: other fields of the ConsentRequest.
    """
    steps = [step for stage in stages for step in stage.steps]
    request = consent_request_for_steps(plan.host, steps, vm=plan.request.vm, **fields)
    items = [(step.may_need, step.title) for step in steps]
    items += [(each.asks, f"{each.title}, later") for stage in stages for each in stage.deferred]
    possible = {risk: titles for risk, titles in _titles_by_risk(items).items() if risk not in request.needed}
    return replace(request, possible=possible)


def consent_request_for_steps(host: str, steps: Iterable[Step], **fields: Any) -> ConsentRequest:
    """Collect the consents that steps need. fields: other fields of the ConsentRequest."""
    return ConsentRequest(host, _titles_by_risk((step.risks, step.title) for step in steps), **fields)


def _titles_by_risk(items: Iterable[tuple[Iterable[str], str]]) -> dict[str, tuple[str, ...]]:
    titles: dict[str, list[str]] = {}
    for risks, title in items:
        for risk in risks:
            titles.setdefault(risk, []).append(title)
    return {risk: tuple(dict.fromkeys(titles[risk])) for risk in sort_risks(titles)}


def ask_for_consents(request: ConsentRequest, accepted: tuple[str, ...], yes: bool) -> tuple[str, ...]:
    """Ask for each missing consent on the terminal, and return all consents. Without a terminal, ask nothing: the run
    then refuses to start.

    accepted: the consents of --accept; yes: do not ask for consents that may turn out to be needed. Raises
    ConsentNeeded at the first no.
    """
    if not sys.stdin.isatty():
        return accepted
    granted = list(accepted)
    for risk, titles in {**request.needed, **({} if yes else request.possible)}.items():
        if risk in granted:
            continue
        target = f"{request.host}, VM {request.vm}" if request.vm else request.host
        question = "Allow it?" if risk in request.needed else "Allow it if it turns out to be needed?"
        purposes = "; ".join(titles[:_MAX_TITLES])
        if len(titles) > _MAX_TITLES:
            purposes += f"; and {len(titles) - _MAX_TITLES} more"
        if not click.confirm(visible(f"{target}: {risk}: {RISKS[risk]}. For: {purposes}. {question}"), err=True):
            raise ConsentNeeded(
                request.host, request.run, (risk,), request.going_back, request.changed, request.retry_options
            )
        granted.append(risk)
    return tuple(granted)


class StopRequest:
    """A request to stop a run after its present step, made by a signal or by a closed output. Calling it returns
    whether it was made; only its first reason is kept.

    notify: shows a message to the user; a signal handler calls it.
    """

    def __init__(self) -> None:
        self.notify: Callable[[str], None] = lambda text: click.echo(f"\n{text}", err=True)
        self._reason = ""
        self._interrupt_requested = False
        self._is_interruptible = False

    def __call__(self) -> bool:
        return bool(self._reason)

    def reason(self) -> str:
        return self._reason

    def request(self, reason: str) -> None:
        self._reason = self._reason or reason

    def interrupt(self) -> None:
        """Interrupt the run as soon as it waits for its host. Raises KeyboardInterrupt if it already waits."""
        self._interrupt_requested = True
        if self._is_interruptible:
            self._is_interruptible = False  # set here, because the `finally` below could be interrupted itself
            raise KeyboardInterrupt

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let `interrupt` end the block, which waits for the host. Raises KeyboardInterrupt, also if `interrupt` was
        called before.
        """
        if self._is_interruptible:
            yield
            return
        self._is_interruptible = True  # set before the check, so that no call of `interrupt` falls between the two
        try:
            if self._interrupt_requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_interruptible = False


# Signals that stop a run, each with the reason that is shown. Windows has no SIGHUP; Ctrl-Break sends SIGBREAK.
_SIGNALS = {
    "SIGINT": "as you asked",
    "SIGTERM": "because it was asked to terminate (SIGTERM)",
    "SIGHUP": "because its terminal was closed (SIGHUP)",
    "SIGBREAK": "as you asked",
}


@contextmanager
def reserve_stdout(for_document: bool) -> Iterator[None]:
    """Print on stderr inside the block if stdout is reserved for a document that programs read."""
    with redirect_stdout(sys.stderr if for_document else sys.stdout):
        yield


@contextmanager
def stop_requests(hosts: int = 1) -> Iterator[StopRequest]:
    """Turn signals and closed pipes inside the block into a request to stop after the present step, instead of ending
    this process.

    A second Ctrl-C interrupts the run of a single host while winhost waits for it. Several hosts run in threads, which
    cannot be interrupted: each finishes its step and writes its line of the journal.
    """
    stop = StopRequest()
    signalled = False
    if hosts == 1:
        message = (
            "Stopping after the current step; press Ctrl-C again to stop now. "
            "Either way, the run can be resumed or rolled back."
        )
    else:
        message = "Stopping each host after its current step; each then shows how to resume it or roll it back."

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        if signalled and number == signal.SIGINT and hosts == 1:
            stop.interrupt()
            return
        signalled = True
        stop.request(_SIGNALS[signal.Signals(number).name])
        stop.notify(message)

    def on_closed_output(reason: str) -> None:
        stop.request(f"because nobody reads its output any more ({reason})")

    with unfailing_streams(on_closed_output), _signal_handlers(handle):
        yield stop


@contextmanager
def run_control(hosts: int = 1, as_jsonl: bool = False, *, brief: bool = False) -> Iterator[tuple[StopRequest, Watch]]:
    """Do as `stop_requests`, and show progress, together with the messages about signals."""
    with stop_requests(hosts) as stop, show_progress(as_jsonl, brief=brief) as watch:
        default_notify, stop.notify = stop.notify, watch.say
        try:
            yield stop, watch
        finally:
            stop.notify = default_notify


@contextmanager
def _signal_handlers(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    # nohup makes a process ignore SIGHUP, which must stay ignored.
    numbers = [n for n in numbers if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
    earlier_handlers = [(number, signal.signal(number, handle)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in earlier_handlers:
            signal.signal(number, handler)


def run_context(
    host: AnyHost, options: RunOptions, stop: StopRequest, watch: Callable[[Any], None], plan_file: Path | None = None
) -> RunContext:
    """Return the context of a run. plan_file: the plan of a new run, which may have files next to it; a started run
    reads this path from its journal.
    """
    return RunContext(
        connector_for(host),
        Store(),
        Patience(deadline=options.restart_deadline),
        options.guest_deadline,
        partial(_explain_own_restart, watch) if is_local(host) else watch,
        stop,
        folder=plan_file.parent if plan_file else Path(),
        stop_reason=stop.reason,
        interruptible=stop.interruptible,
        machine=host if isinstance(host, Host) else None,
        final_checks=completion_checks(watch, stop, host.address, partial(save_verified_versions, host)),
    )


def _explain_own_restart(watch: Callable[[Any], None], event: Any) -> None:
    """Report an event; at a restart of the machine that winhost runs on, say that it ends winhost."""
    if event.kind == "restart":
        event = replace(
            event, text="restarting, which ends winhost. Log on again and type winhost: it says how to go on"
        )
    watch(event)


def show_outcome(outcome: Outcome, *, brief: bool = False) -> None:
    """Show how a run ended on a host. brief: the caller shows the next command."""
    changes = "1 change" if outcome.changed == 1 else f"{outcome.changed} changes"
    say(f"{outcome.host}: {outcome.outcome}, {changes}", fg="green" if outcome.holds else "red", bold=True)
    for check in outcome.checks:
        if not check.holds:
            desired, found = format_pair(check.desired, check.found)
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
    """Show how to use the endpoint of a run, if it serves one, with lines to copy. checks: those at the end of the
    run.
    """
    served = find_serving_run(replay(run, read_journal(Store().existing_journal(run))), host, checks)
    for text in map(with_fleet, describe_endpoint(served) if served else ()):
        if text.startswith(("  ", "API key:", "Base URL:")):
            click.echo(visible(text))
        else:
            say(text)


def run_with_consents(
    host: AnyHost,
    action: Callable[[str | None, tuple[str, ...], RunContext], Outcome],
    verb: str,
    vm: str | None,
    accepted: tuple[str, ...],
    options: RunOptions,
    *,
    run: str | None = None,
    plan_file: Path | None = None,
    brief: bool = False,
) -> Outcome:
    """Start, resume or roll back a run. If it turns out to need another consent, ask for that on the terminal and
    continue the run. Raises ConsentNeeded if the consent is not given.

    action: takes the run to continue (None to start one), the consents and the context; verb: what a question calls the
    action; run: the run to continue; plan_file: the plan of a new run.
    """
    while True:
        try:
            with (
                run_control(as_jsonl=options.as_jsonl, brief=brief) as (stop, watch),
                watch.activity(host.name, "reading") if plan_file else nullcontext(),
            ):
                return action(run, accepted, run_context(host, options, stop, watch, plan_file))
        except ConsentNeeded as needed:
            request = ConsentRequest(
                needed.host,
                dict.fromkeys(needed.risks, (verb,)),
                vm=vm,
                run=needed.run,
                going_back=needed.going_back,
                changed=needed.changed,
                retry_options=needed.retry_options,
            )
            consents = ask_for_consents(request, accepted, options.yes)
            if set(consents) == set(accepted):
                raise
            run, accepted = run or needed.run, consents


def show_outcomes(
    outcomes: "Iterable[tuple[str, Outcome | WinhostError]]", options: RunOptions, *, brief: bool = False
) -> int:
    """Show how runs ended on hosts, each as soon as it ends. Return the highest exit code."""
    if options.as_jsonl:
        codes = [0]
        for host, outcome in outcomes:
            print_end(host, outcome)
            codes.append(int(outcome.exit_code))
        return max(codes)
    hosts: dict[str, AnyHost] = {}

    def show(outcome: Outcome) -> None:
        show_outcome(outcome, brief=brief)
        if outcome.outcome == "applied" and outcome.holds and not brief:
            if not hosts:
                with suppress(WinhostError):  # fleet.yaml may have faults by now; each host still gets its outcome
                    hosts.update(hosts_by_name(load_fleet_if_any(options.fleet_file)))
            show_served(outcome.run, hosts.get(outcome.host), outcome.checks)

    return show_results(
        "outcome",
        options.output.shape,
        outcomes,
        show,
        document=lambda outcome: EndedHost(outcome.host, outcome),
        code=lambda outcome: int(outcome.exit_code),
    )


def resume_or_roll_back(
    action: Callable[[str, tuple[str, ...], RunContext], Outcome],
    verb: str,
    run_name: str,
    options: RunOptions,
    preview: Callable[[RunState, RunContext, tuple[str, ...]], tuple[str, ...]] = lambda _run, _context, accepted: (
        accepted
    ),
    *,
    brief: bool = False,
) -> Outcome:
    """Resume or roll back one run as `run_with_consents` does, after one question.

    action: `resume` or `rollback` of the engine; verb: how the question begins; preview: shows what the action will do,
    asks for consents and returns them.
    """
    record = replay(run_name, read_journal(Store().existing_journal(run_name)))
    host = resolve_hosts([record.host], options.fleet_file)[0]
    with reserve_stdout(options.document):
        accepted = preview(record, run_context(host, options, StopRequest(), lambda event: None), options.accepted)
    confirm_start(f"{verb} {run_name} on {record.host}?", options.yes)
    return run_with_consents(
        host,
        lambda _, consents, context: action(run_name, consents, context),
        verb.lower(),
        record.plan.request.vm,
        accepted,
        options,
        brief=brief,
    )
