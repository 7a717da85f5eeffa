"""winhost status: show which models the hosts serve, their state, unfinished runs, and the next command."""

import sys
import time
from collections.abc import Sequence
from dataclasses import field
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias

import click

from winhost.cli.change.runs import IsHeld, position_of, state_of
from winhost.cli.endpoint.commands import StatusOptions
from winhost.cli.envelope import show_results
from winhost.cli.named_hosts import is_local, is_this_machine
from winhost.cli.options import Output
from winhost.cli.output import describe_error, say, show_error_text, with_fleet
from winhost.cli.serve.hosts import Targets
from winhost.cli.serve.status import format_boot_test, format_version_changes, test_again
from winhost.cli.serve.target import nothing_served_error, open_serving
from winhost.cli.shells import command_line
from winhost.cli.tables import format_time
from winhost.cli.terminal import is_dumb
from winhost.cli.up.runs import delete_killed_plans, is_up_run
from winhost.cli.watch import ask_each
from winhost.connect.wire_errors import NotAvailable
from winhost.core.dataclass import dataclass
from winhost.engine.keys import stored_api_key
from winhost.engine.many import run_streaming
from winhost.engine.run_state import RunState
from winhost.engine.store import Store
from winhost.engine.verified import SinceVerified, changes_since_verified
from winhost.model.durations import render_age
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.served import BootTest
from winhost.serving.serving_status import YIELDS, ModelStatus, ServingStatus

_FIRST_COMMANDS = {
    "Nothing is served yet, and no run is unfinished. Start on this machine, on another one, or in a simulation:": (
        "winhost up",
        "winhost host add USER@ADDRESS",
        "winhost demo",
    ),
    "To see which options work on this machine, and why, without changing anything:": ("winhost assess localhost",),
}
_MAX_TROUBLE_LENGTH = 200
DEFAULT_INTERVAL_S = 10
Reply: TypeAlias = "tuple[ServingStatus | None, WinhostError | None]"


@dataclass(frozen=True)
class ModelNow:
    """A model. state: serving, asleep, or as in `winhost serve status`; None if the host was not asked; seconds: how
    long the model has been in this state.
    """

    model: str
    state: str | None
    seconds: int | None = None


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that has not ended. changed: the number of resources that are not in their original state."""

    run: str
    state: str
    changed: int
    why: str


@dataclass(frozen=True)
class HostNow:
    """A host. since: the end of the run that made the endpoint; url: the URL for this computer, None through a tunnel
    or if nothing is served; reached: None if it was not asked; trouble: the last error; since_verified: versions that
    have changed since its endpoint last answered; boot_test: the machine's own test of its endpoint after its start;
    next: the next command.
    """

    host: str
    run: str | None
    since: str | None
    url: str | None
    reached: bool | None
    serves: bool | None
    models: tuple[ModelNow, ...]
    unfinished: tuple[UnfinishedRun, ...]
    trouble: str | None
    since_verified: SinceVerified | None
    boot_test: BootTest | None
    next: str


def status(options: StatusOptions, output: Output) -> int:
    delete_killed_plans(Store())
    if options.every is not None and not options.watch:
        raise click.UsageError("--every is for --watch: add that, or leave --every out")
    if options.watch and output.shape != "table":
        raise click.UsageError(
            "--watch prints text for people only: leave -o and --json out, or repeat the command yourself"
        )
    if options.watch:
        return _Watch(options, options.every or DEFAULT_INTERVAL_S).run()
    if options.test or options.api_key:
        raise click.UsageError("--test and --api-key are for --watch; winhost serve test HOST tests it now")
    targets = Targets.read(options.fleet_file)
    is_busy, names = _find_busy_hosts(targets), _select_hosts(targets, options.hosts)
    _show_unreadable(targets)
    unreadable = int(Exit.FAILURE if targets.unreadable else 0)
    if not names and output.form is None and output.shape != "name":
        if not unreadable:
            _show_first_commands()
        return unreadable
    replies = ask_each(names, partial(_ask, targets=targets), str, options.at_once)
    results = (
        (name, (_make_host_now(name, targets, is_busy, *_as_reply(reply)), _exit_code(*_as_reply(reply))))
        for name, reply in replies
    )
    exit_code = show_results(
        "status",
        output.shape,
        results,
        lambda result: _show(result[0]),
        document=lambda result: result[0],
        code=lambda result: result[1],
    )
    return max(exit_code, unreadable)


def _as_reply(reply: "Reply | WinhostError") -> "Reply":
    return (None, reply) if isinstance(reply, WinhostError) else reply


@dataclass
class _Watch:
    """Asks the hosts repeatedly. every: seconds between two rounds; shown: the last line, by host; tested: the version
    changes after which it was tested, by host; test_results: the result of the last test, by host.
    """

    options: StatusOptions
    every: int
    shown: dict[str, str] = field(default_factory=dict)
    tested: dict[str, SinceVerified] = field(default_factory=dict)
    test_results: dict[str, str] = field(default_factory=dict)

    def run(self) -> int:
        """Watch until Ctrl-C. Raises KeyboardInterrupt, for which the caller exits with 130."""
        redraws = sys.stdout.isatty() and not is_dumb()
        say("Asking …", err=True)
        while True:
            targets = Targets.read(self.options.fleet_file)
            is_busy, names = _find_busy_hosts(targets), _select_hosts(targets, self.options.hosts)
            results = run_streaming(
                names, partial(_ask, targets=targets), at_once=self.options.at_once, abandon_running=True
            )
            hosts = [
                _make_host_now(each.item, targets, is_busy, *_as_reply(each.error or each.required_value))
                for each in results
            ]
            (self._draw if redraws else self._print_changes)(hosts)
            _show_unreadable(targets)
            if not names:
                _show_first_commands()
            for host_now in hosts if self.options.test else ():
                self._test(host_now)
            time.sleep(self.every)

    def _draw(self, hosts: Sequence[HostNow]) -> None:
        click.clear()
        say(f"{_format_time()} UTC, every {self.every} s. Ctrl-C ends.")
        for host_now in hosts:
            _show(host_now)
            if host_now.host in self.test_results:
                say(f"  {self.test_results[host_now.host]}", hang=4)

    def _print_changes(self, hosts: Sequence[HostNow]) -> None:
        for host_now in hosts:
            if (line := _format_line(host_now)) != self.shown.get(host_now.host):
                self.shown[host_now.host] = line
                click.echo(f"{_format_time()}Z {line}")

    def _test(self, host_now: HostNow) -> None:
        changes = host_now.since_verified
        if not (host_now.serves and changes and changes.changed) or self.tested.get(host_now.host) == changes:
            return
        self.tested[host_now.host] = changes
        try:
            result = test_again(host_now.host, self.options.api_key, self.options.fleet_file)
        except WinhostError as error:
            result = f"could not be tested again: {describe_error(error)}"
        except click.UsageError as error:
            result = f"could not be tested again: {error.message}"
        self.test_results[host_now.host] = f"{_format_time()} UTC: {result}"
        click.echo(visible(f"{_format_time()}Z {host_now.host}: {result}"))


def _format_time() -> str:
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def _format_line(now: HostNow) -> str:
    """Format the state of a host as one line, without durations, so that it differs only after a change."""
    served_text = {
        True: "serves",
        False: "does not serve",
        None: "not reached" if now.reached is False else "serves nothing",
    }
    parts = [served_text[now.serves], *(f"{each.model}={each.state or 'unknown'}" for each in now.models)]
    parts += [f"{run.run} {run.state}" for run in now.unfinished]
    notes = [now.trouble or "", format_version_changes(now.since_verified)]
    return visible("; ".join(filter(None, (f"{now.host}: {' '.join(parts)}", *notes))))


def _select_hosts(targets: Targets, hosts: tuple[str, ...]) -> tuple[str, ...]:
    known = (*targets.serving, *(each.host for each in targets.unfinished))
    return tuple(dict.fromkeys(map(targets.resolve, hosts) if hosts else known))


def _show_unreadable(targets: Targets) -> None:
    """Show the errors of runs that cannot be read, because their changes may still be in force."""
    for error in targets.unreadable:
        show_error_text(error)


def overview() -> int:
    """Show the overview of `winhost` without arguments. It reads only journals, to be quick."""
    delete_killed_plans(Store())
    try:
        targets = Targets.read(None)
    except UsageError as error:  # fleet.yaml has faults
        say(f"{error.what}. {error.hint or ''}".rstrip(), err=True)
        targets = Targets.read_with(None)
    is_busy, names = _find_busy_hosts(targets), _select_hosts(targets, ())
    _show_unreadable(targets)
    if not names and not targets.unreadable:
        _show_first_commands()
    for name in names:
        _show(_make_host_now(name, targets, is_busy, None, None))
    if names:
        say("Read from the journals of this computer; winhost status asks the hosts.")
    say("All commands: winhost --help")
    return 0


def _show_first_commands() -> None:
    for text, commands in _FIRST_COMMANDS.items():
        say(text)
        for command in commands:
            click.echo(f"  {command}")


def _ask(name: str, targets: Targets) -> Reply:
    """Ask a host for its state. Return the state, or the error if it cannot be asked."""
    host, run = targets.host(name), targets.serving.get(name)
    if host is None:
        return None, UsageError("NotInFleet", what=f"{name} is not in fleet.yaml, so it cannot be asked", host=name)
    try:
        with open_serving(host) as target:
            return target.status(), None
    except NotAvailable:
        return None, None if run is None else nothing_served_error(
            name, "nothing is served any more: its Linux is missing"
        )
    except WinhostError as error:
        return None, None if run is None and error.code == "NothingServed" else error


def _exit_code(serving_status: ServingStatus | None, error: WinhostError | None) -> int:
    if error is not None:
        return int(error.exit_code)
    return int(Exit.DRIFT) if serving_status is not None and not serving_status.serves else 0


def _find_busy_hosts(targets: Targets) -> IsHeld:
    """Return a predicate: whether a run is working on a host now. Call this right after reading the journals, because a
    run may end while its host is asked.
    """
    store = Store()
    return {each.host for each in targets.unfinished if store.is_locked(each.host)}.__contains__


def _make_host_now(
    name: str, targets: Targets, is_busy: IsHeld, current: ServingStatus | None, error: WinhostError | None
) -> HostNow:
    serving_run = targets.serving.get(name)
    records = [each for each in targets.unfinished if each.host == name]
    unfinished = tuple(_make_unfinished_run(is_busy, each) for each in records)
    planned_models = serving_run.models if serving_run else ()
    models = (
        tuple(map(_make_model_now, current.models))
        if current
        else tuple(ModelNow(each, None) for each in planned_models)
    )
    failing_models = [each for each in current.models if not each.serves] if current else []
    trouble = describe_error(error) if error else None
    if current and current.gateway.yields:
        trouble = YIELDS[current.gateway.yields]
    elif current and current.gateway.state != "serving":
        trouble = f"the gateway: {current.gateway.state}"
    elif current and not current.serves and not failing_models:
        trouble = "not every model completes a request"
    elif unfinished and not error:
        trouble = unfinished[0].why or None
    changes = changes_since_verified(name, current.versions) if current and current.gateway.state != "stopped" else None
    arguments = _next_arguments(
        name,
        _continuing_arguments(is_busy, records[0], targets) if records else None,
        current,
        failing_models,
        error,
        bool(models),
    )
    if changes and changes.changed and current and current.serves and not records:
        arguments = ("serve", "test", name, *(() if stored_api_key(name) else ("--api-key", "env:API_KEY")))
    return HostNow(
        name,
        serving_run.run if serving_run else None,
        serving_run.since if serving_run else None,
        serving_run.url if serving_run else None,
        False if error else True if current else None,
        current.serves if current else None,
        models,
        unfinished,
        trouble[:_MAX_TROUBLE_LENGTH] if trouble else None,
        changes,
        current.boot_test if current else None,
        with_fleet(command_line(("winhost", *arguments))),
    )


def _next_arguments(
    name: str,
    continuing: tuple[str, ...] | None,
    current: ServingStatus | None,
    failing_models: Sequence[ModelStatus],
    error: WinhostError | None,
    served: bool,
) -> tuple[str, ...]:
    if error is not None:
        return ("host", "test", name) if error.code != "NotInFleet" else ("host", "add", "USER@ADDRESS", "--name", name)
    if continuing:
        return continuing
    if broken_models := [each for each in failing_models if each.state != "stopped"]:
        return ("serve", "logs", name, "--model", broken_models[0].model)
    if failing_models or (current is not None and current.gateway.state == "stopped"):
        return ("serve", "up", name)
    if current is not None and current.gateway.yields:
        return ("yield", name)
    if current is not None and not current.serves:
        return ("serve", "logs", name, "--gateway")
    return ("chat", name, "Say hello") if served else ("assess", name)


def _continuing_arguments(is_busy: IsHeld, record: RunState, targets: Targets) -> tuple[str, ...]:
    """Return the arguments of the command that continues a run; for a run that is working now, of one that shows it."""
    if is_busy(record.host):
        return ("runs", record.run)
    if not is_up_run(record, Store()):
        return ("rollback" if record.going_back else "resume", record.run)
    if record.going_back:
        return ("down", record.host)
    host = targets.host(record.host)
    is_here = is_local(host) if host else is_this_machine(record.host)
    return ("up",) if is_here else ("up", "--on", record.host)


def _make_unfinished_run(is_busy: IsHeld, record: RunState) -> UnfinishedRun:
    changed = sum(not touched.is_restored for touched in record.touched.values())
    why = "" if is_busy(record.host) else f"it ended {position_of(record)}"
    why = record.stopped.why if record.stopped else why
    return UnfinishedRun(record.run, state_of(is_busy, record), changed, why)


def _make_model_now(each: ModelStatus) -> ModelNow:
    """Make the state of a model. A model that the gateway wakes for a request counts as asleep."""
    asleep = each.state == "stopped" and each.takes_turns
    turn = each.turn.state if each.turn else None
    state = turn if turn and each.state == "serving" else "asleep" if asleep else each.state
    return ModelNow(each.model, state, each.seconds)


_COLOURS: dict[bool | None, str | None] = {True: "green", False: "red", None: None}


def _show(now: HostNow) -> None:
    """Show the state of a host in several lines."""
    head = f"{now.host}: serves nothing"
    if now.models:
        where = f"at {now.url}/v1" if now.url else f"through a tunnel: winhost open {now.host}"
        since = f" since {format_time(now.since)}" if now.since and now.serves is not False else ""
        served_text = "not reached; it served" if now.reached is False else "serves"
        served_text = "does not serve" if now.serves is False else served_text
        head = with_fleet(f"{now.host}: {served_text}{since}, {where}")
    say(head, fg=_COLOURS[now.serves], bold=True)
    for each in now.models:
        age = f" for {render_age(each.seconds)}" if each.seconds is not None and each.state else ""
        say(f"  {each.model}: {each.state or 'not asked'}{age}")
    for run in now.unfinished:
        say(f"  {run.run}: {run.state}, {run.changed} change{'s' if run.changed != 1 else ''}", hang=4)
    if now.trouble:
        say(f"  {now.trouble}", hang=4)
    if now.boot_test:
        say(f"  {format_boot_test(now.boot_test)}", hang=4)
    if since := format_version_changes(now.since_verified):
        say(f"  {since}", hang=4)
    click.echo(f"  Next: {now.next}")
