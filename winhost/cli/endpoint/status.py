"""winhost status: what is served where, its state, unfinished runs, and the next command."""

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
from winhost.cli.serve.status import boot_test_text, since_text, test_again
from winhost.cli.serve.target import nothing_served, served_by
from winhost.cli.shells import command_line
from winhost.cli.tables import format_time
from winhost.cli.terminal import is_dumb
from winhost.cli.up.runs import delete_killed_plans, is_up_run
from winhost.cli.watch import ask_each
from winhost.connect.wire_errors import NotAvailable
from winhost.core.dataclass import dataclass
from winhost.engine.keys import kept_api_key
from winhost.engine.many import stream
from winhost.engine.run_state import RunState
from winhost.engine.store import Store
from winhost.engine.verified import SinceVerified, since_verified
from winhost.model.durations import render_age
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.served import BootTest
from winhost.serving.serving_status import YIELDS, ModelStatus, ServingStatus

_NOTHING = {
    "Nothing is served yet, and no run is unfinished. Begin on this machine, on another one, or in a simulation:": (
        "winhost up",
        "winhost host add USER@ADDRESS",
        "winhost demo",
    ),
    "To see first which options work on this machine, and why; it changes nothing:": ("winhost assess localhost",),
}
_SAID = 200
EVERY = 10  # seconds
Asked: TypeAlias = "tuple[ServingStatus | None, WinhostError | None]"


@dataclass(frozen=True)
class ModelNow:
    """A model. state: serving, asleep, or as in `winhost serve status`, for so many seconds; None if it was not
    asked.
    """

    model: str
    state: str | None
    seconds: int | None = None


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that has not ended. changed: how many resources are not as they were found."""

    run: str
    state: str
    changed: int
    why: str


@dataclass(frozen=True)
class HostNow:
    """A host. since: when the run that made the endpoint ended; url: its address for this computer, None through a
    tunnel or if nothing is served; reached: None if it was not asked; trouble: the last error; since_verified: versions
    that have changed since its endpoint was last found to answer; boot_test: the machine's own test of its endpoint
    after its start; next: the command to type.
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


def status(asked: StatusOptions, output: Output) -> int:
    delete_killed_plans(Store())
    if asked.every is not None and not asked.watch:
        raise click.UsageError("--every is for --watch: add that, or leave --every out")
    if asked.watch and output.shape != "table":
        raise click.UsageError("--watch is for people: leave -o and --json out, or ask again and again yourself")
    if asked.watch:
        return _Watch(asked, asked.every or EVERY).run()
    if asked.test or asked.api_key:
        raise click.UsageError("--test and --api-key are for --watch; winhost serve test HOST tests it now")
    targets = Targets.read(asked.fleet_file)
    held, names = _busy(targets), _names(targets, asked.hosts)
    _show_unreadable(targets)
    unreadable = int(Exit.FAILURE if targets.unreadable else 0)
    if not names and output.form is None and output.shape != "name":
        if not unreadable:
            _show_beginning()
        return unreadable
    found = ask_each(names, partial(_asked, targets=targets), str, asked.at_once)
    looked = ((name, (_now(name, targets, held, *_given(answer)), _code(*_given(answer)))) for name, answer in found)
    ended = show_results(
        "status",
        output.shape,
        looked,
        lambda found: _show(found[0]),
        document=lambda found: found[0],
        code=lambda found: found[1],
    )
    return max(ended, unreadable)


def _given(answer: "Asked | WinhostError") -> "Asked":
    return (None, answer) if isinstance(answer, WinhostError) else answer


@dataclass
class _Watch:
    """Asks again and again. every: seconds; said: by host, the result of the test after a change."""

    asked: StatusOptions
    every: int
    shown: dict[str, str] = field(default_factory=dict)
    done: dict[str, SinceVerified] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def run(self) -> int:
        """Watch until Ctrl-C, which Python raises as KeyboardInterrupt and the caller answers with 130."""
        redraws = sys.stdout.isatty() and not is_dumb()
        say("Asking …", err=True)
        while True:
            targets = Targets.read(self.asked.fleet_file)
            held, names = _busy(targets), _names(targets, self.asked.hosts)
            results = stream(names, partial(_asked, targets=targets), at_once=self.asked.at_once, leave=True)
            found = [_now(each.item, targets, held, *_given(each.error or each.given)) for each in results]
            (self._draw if redraws else self._tell)(found)
            _show_unreadable(targets)
            if not names:
                _show_beginning()
            for now in found if self.asked.test else ():
                self._test(now)
            time.sleep(self.every)

    def _draw(self, found: Sequence[HostNow]) -> None:
        click.clear()
        say(f"{_time()} UTC, every {self.every} s. Ctrl-C ends.")
        for now in found:
            _show(now)
            if now.host in self.said:
                say(f"  {self.said[now.host]}", hang=4)

    def _tell(self, found: Sequence[HostNow]) -> None:
        for now in found:
            if (line := _line(now)) != self.shown.get(now.host):
                self.shown[now.host] = line
                click.echo(f"{_time()}Z {line}")

    def _test(self, now: HostNow) -> None:
        since = now.since_verified
        if not (now.serves and since and since.changed) or self.done.get(now.host) == since:
            return
        self.done[now.host] = since
        try:
            said = test_again(now.host, self.asked.api_key, self.asked.fleet_file)
        except WinhostError as error:
            said = f"could not be tested again: {describe_error(error)}"
        except click.UsageError as error:
            said = f"could not be tested again: {error.message}"
        self.said[now.host] = f"{_time()} UTC: {said}"
        click.echo(visible(f"{_time()}Z {now.host}: {said}"))


def _time() -> str:
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def _line(now: HostNow) -> str:
    """The line of a host: all that can change, without durations."""
    does = {True: "serves", False: "does not serve", None: "not reached" if now.reached is False else "serves nothing"}
    parts = [does[now.serves], *(f"{each.model}={each.state or 'unknown'}" for each in now.models)]
    parts += [f"{run.run} {run.state}" for run in now.unfinished]
    more = [now.trouble or "", since_text(now.since_verified)]
    return visible("; ".join(filter(None, (f"{now.host}: {' '.join(parts)}", *more))))


def _names(targets: Targets, hosts: tuple[str, ...]) -> tuple[str, ...]:
    known = (*targets.serving, *(each.host for each in targets.unfinished))
    return tuple(dict.fromkeys(map(targets.named, hosts) if hosts else known))


def _show_unreadable(targets: Targets) -> None:
    """Show runs that cannot be read, because their changes may stand."""
    for error in targets.unreadable:
        show_error_text(error)


def overview() -> int:
    """Show the overview of bare `winhost`, from the journals alone, so that it is quick."""
    delete_killed_plans(Store())
    try:
        targets = Targets.read(None)
    except UsageError as error:  # of a fleet.yaml with faults
        say(f"{error.what}. {error.hint or ''}".rstrip(), err=True)
        targets = Targets.read_with(None)
    held, names = _busy(targets), _names(targets, ())
    _show_unreadable(targets)
    if not names and not targets.unreadable:
        _show_beginning()
    for name in names:
        _show(_now(name, targets, held, None, None))
    if names:
        say("By the journals of this computer; winhost status asks the hosts.")
    say("All commands: winhost --help")
    return 0


def _show_beginning() -> None:
    for text, commands in _NOTHING.items():
        say(text)
        for command in commands:
            click.echo(f"  {command}")


def _asked(name: str, targets: Targets) -> Asked:
    """Ask a host. One that cannot be asked is shown with the reason."""
    host, run = targets.host(name), targets.serving.get(name)
    if host is None:
        return None, UsageError("NotInFleet", what=f"{name} is not in fleet.yaml, so it cannot be asked", host=name)
    try:
        with served_by(host) as served:
            return served.status(), None
    except NotAvailable:
        return None, None if run is None else nothing_served(name, "nothing is served any more: its Linux is not there")
    except WinhostError as error:
        return None, None if run is None and error.code == "NothingServed" else error


def _code(found: ServingStatus | None, error: WinhostError | None) -> int:
    if error is not None:
        return int(error.exit_code)
    return int(Exit.DRIFT) if found is not None and not found.serves else 0


def _busy(targets: Targets) -> IsHeld:
    """Find the hosts that a run works on, together with the journals: a run may end while its host is asked."""
    store = Store()
    return {each.host for each in targets.unfinished if store.held(each.host)}.__contains__


def _now(name: str, targets: Targets, held: IsHeld, found: ServingStatus | None, error: WinhostError | None) -> HostNow:
    told = targets.serving.get(name)
    records = [each for each in targets.unfinished if each.host == name]
    unfinished = tuple(_unfinished(held, each) for each in records)
    planned = told.models if told else ()
    models = tuple(map(_model, found.models)) if found else tuple(ModelNow(each, None) for each in planned)
    troubled = [each for each in found.models if not each.serves] if found else []
    trouble = describe_error(error) if error else None
    if found and found.gateway.yields:
        trouble = YIELDS[found.gateway.yields]
    elif found and found.gateway.state != "serving":
        trouble = f"the gateway: {found.gateway.state}"
    elif found and not found.serves and not troubled:
        trouble = "not every model completes a request"
    elif unfinished and not error:
        trouble = unfinished[0].why or None
    since = since_verified(name, found.versions) if found and found.gateway.state != "stopped" else None
    words = _next(name, _way_on(held, records[0], targets) if records else None, found, troubled, error, bool(models))
    if since and since.changed and found and found.serves and not records:
        words = ("serve", "test", name, *(() if kept_api_key(name) else ("--api-key", "env:API_KEY")))
    return HostNow(
        name,
        told.run if told else None,
        told.since if told else None,
        told.url if told else None,
        False if error else True if found else None,
        found.serves if found else None,
        models,
        unfinished,
        trouble[:_SAID] if trouble else None,
        since,
        found.boot_test if found else None,
        with_fleet(command_line(("winhost", *words))),
    )


def _next(
    name: str,
    way_on: tuple[str, ...] | None,
    found: ServingStatus | None,
    troubled: Sequence[ModelStatus],
    error: WinhostError | None,
    served: bool,
) -> tuple[str, ...]:
    if error is not None:
        return ("host", "test", name) if error.code != "NotInFleet" else ("host", "add", "USER@ADDRESS", "--name", name)
    if way_on:
        return way_on
    if failed := [each for each in troubled if each.state != "stopped"]:
        return ("serve", "logs", name, "--model", failed[0].model)
    if troubled or (found is not None and found.gateway.state == "stopped"):
        return ("serve", "up", name)
    if found is not None and found.gateway.yields:
        return ("yield", name)
    if found is not None and not found.serves:
        return ("serve", "logs", name, "--gateway")
    return ("chat", name, "Say hello") if served else ("assess", name)


def _way_on(held: IsHeld, record: RunState, targets: Targets) -> tuple[str, ...]:
    """The command that continues a run: the one that began it. A run that is under way needs none."""
    if held(record.host):
        return ("runs", record.run)
    if not is_up_run(record, Store()):
        return ("rollback" if record.going_back else "resume", record.run)
    if record.going_back:
        return ("down", record.host)
    host = targets.host(record.host)
    here = is_local(host) if host else is_this_machine(record.host)
    return ("up",) if here else ("up", "--on", record.host)


def _unfinished(held: IsHeld, record: RunState) -> UnfinishedRun:
    changed = sum(not touched.is_restored for touched in record.touched.values())
    why = "" if held(record.host) else f"it ended {position_of(record)}"
    why = record.stopped.why if record.stopped else why
    return UnfinishedRun(record.run, state_of(held, record), changed, why)


def _model(each: ModelStatus) -> ModelNow:
    """The state of a model. One that the gateway wakes for a request counts as asleep."""
    asleep = each.state == "stopped" and each.takes_turns
    turn = each.turn.state if each.turn else None
    state = turn if turn and each.state == "serving" else "asleep" if asleep else each.state
    return ModelNow(each.model, state, each.seconds)


_COLOURS: dict[bool | None, str | None] = {True: "green", False: "red", None: None}


def _show(now: HostNow) -> None:
    """Show some lines for each host."""
    head = f"{now.host}: serves nothing"
    if now.models:
        where = f"at {now.url}/v1" if now.url else f"through a tunnel: winhost open {now.host}"
        since = f" since {format_time(now.since)}" if now.since and now.serves is not False else ""
        does = "not reached; it served" if now.reached is False else "serves"
        does = "does not serve" if now.serves is False else does
        head = with_fleet(f"{now.host}: {does}{since}, {where}")
    say(head, fg=_COLOURS[now.serves], bold=True)
    for each in now.models:
        age = f" for {render_age(each.seconds)}" if each.seconds is not None and each.state else ""
        say(f"  {each.model}: {each.state or 'not asked'}{age}")
    for run in now.unfinished:
        say(f"  {run.run}: {run.state}, {run.changed} change{'s' if run.changed != 1 else ''}", hang=4)
    if now.trouble:
        say(f"  {now.trouble}", hang=4)
    if now.boot_test:
        say(f"  {boot_test_text(now.boot_test)}", hang=4)
    if since := since_text(now.since_verified):
        say(f"  {since}", hang=4)
    click.echo(f"  Next: {now.next}")
