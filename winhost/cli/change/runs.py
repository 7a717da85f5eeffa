"""winhost runs: list the runs of this computer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

from winhost.cli.envelope import show_list, show_results
from winhost.cli.named_hosts import is_this_machine, load_fleet_if_any
from winhost.cli.options import Output
from winhost.cli.output import say, with_fleet
from winhost.cli.tables import format_full_value, format_time, format_value, table
from winhost.cli.up.runs import delete_killed_plans
from winhost.core.answers import Id, Json, identity
from winhost.core.dataclass import dataclass
from winhost.core.journal_lines import RawEvent
from winhost.engine.events import AnyEvent
from winhost.engine.journal import read_journal
from winhost.engine.run_state import RunNeverBegan, RunState, parse_events, replay
from winhost.engine.store import Store
from winhost.model.errors import UsageError, WinhostError


@dataclass(frozen=True)
class ListedRun:
    """A run. why: the reason why it stopped, empty if it did not; last: the time of the last line of its journal;
    changed: how many resources are not in their original state; path: the path of its plan; folder: where the plan's
    file was.
    """

    run: str
    host: str
    state: str
    began: str
    why: str = ""
    last: str = ""
    path: str = ""
    changed: int = 0
    folder: str = ""
    journal: str = ""


@dataclass(frozen=True)
class ShownRun(ListedRun):
    """A run with its journal."""

    entries: tuple[AnyEvent, ...] = ()


IsHeld: TypeAlias = Callable[[str], bool]
FormatValue: TypeAlias = Callable[[Json], str]  # as a change's old and new value are shown
Titles: TypeAlias = Mapping[Id, str]
_UNKNOWN = "?"
_WIDE_COLUMNS = ("path", "changed", "last", "folder", "journal")


def runs(run_name: str | None, output: Output) -> int:
    store = Store()
    delete_killed_plans(store)
    is_held = cache(store.is_locked)  # checking a host that is in use takes a second
    if run_name is None:
        rows = [_summary(store, is_held, name) for name in store.runs()]
        if output.shape in ("table", "wide"):
            rows = [replace(row, began=format_time(row.began)) if row.began != _UNKNOWN else row for row in rows]
        columns = ("run", "host", "state", "began", "why")
        show_list(
            "runs", output.shape, rows, columns, _WIDE_COLUMNS, empty_text="No runs yet. winhost apply starts one."
        )
        return 0
    entries = read_journal(store.existing_journal(run_name))
    typed: Any = tuple(parse_events(run_name, entries))
    document = ShownRun(**vars(_summary(store, is_held, run_name)), entries=typed)
    show_results(
        "run", output.shape, [(run_name, document)], lambda shown_run: _show(is_held, shown_run, entries, output.wide)
    )
    return 0


def _summary(store: Store, is_held: IsHeld, name: str) -> ListedRun:
    journal = str(store.path(name))
    try:
        record = replay(name, read_journal(store.existing_journal(name)))
    except RunNeverBegan:
        return ListedRun(name, "?", "begun, nothing done", _UNKNOWN, journal=journal)
    except WinhostError as error:
        return ListedRun(name, "?", error.what, _UNKNOWN, journal=journal)
    return ListedRun(
        name,
        record.host,
        state_of(is_held, record),
        record.began,
        _why(is_held, record),
        last=record.last,
        path=record.plan.request.path,
        changed=sum(not touched.is_restored for touched in record.touched.values()),
        folder=record.folder,
        journal=journal,
    )


def state_of(is_held: IsHeld, record: RunState) -> str:
    if record.outcome:
        return record.outcome
    if is_held(record.host):
        return "going back now" if record.going_back else "running now"
    if record.going_back:
        return "was going back"
    return "nothing changed" if record.unchanged else "interrupted"


def _why(is_held: IsHeld, record: RunState) -> str:
    """Return the reason why a run stopped; empty if it did not, or still runs."""
    if record.stopped:
        return record.stopped.why
    if record.outcome == "partly rolled back":
        return "; ".join(f"{each.title}: kept {each.why}" for each in record.waiting)
    if record.outcome or is_held(record.host):
        return ""
    return f"{record.host}: winhost was killed, or its computer went down, {position_of(record)}"


def position_of(record: RunState) -> str:
    """Say at which step a run was interrupted."""
    return f"in the middle of: {record.in_flight.title}" if record.in_flight else "between two steps"


def _show(is_held: IsHeld, run: ListedRun, entries: list[RawEvent], wide: bool) -> None:
    record = replay(run.run, entries)
    titles = {id_: touched.title for id_, touched in record.touched.items()}
    format_ = format_full_value if wide else format_value
    rows = []
    for entry in entries:
        sentence = _SENTENCES.get(entry["event"])
        rows.append((entry["at"], entry["event"], sentence(entry, format_, titles) if sentence else ""))
    table(("at", "event", "what"), rows)
    say(f"{run.run}: {run.state}")
    if run.why:
        say(run.why)
    for column in _WIDE_COLUMNS if wide else ():
        say(f"  {column}: {getattr(run, column)}", hang=2)
    for remark in () if record.outcome else record.midway:
        say(f"  {remark}", hang=2)
    _show_next(is_held, run, record)


def _show_next(is_held: IsHeld, run: ListedRun, record: RunState) -> None:
    """Show the commands that resume the run or roll it back, if it can be."""
    name, lines = run.run, list[str]()
    if run.state == "nothing changed":
        say("The host is unchanged. Plan and apply again, or continue this run:")
        lines = [f"Continue: winhost resume {name}"]
    elif record.stopped and not record.outcome:
        lines = [f"  {command}" for command in record.stopped.next]
    elif record.outcome != "rolled back" and not is_held(record.host):
        if record.outcome != "applied" and not record.going_back:
            lines = [f"Continue: winhost resume {name}"]
        lines.append(f"Roll back: winhost rollback {name}")
    is_known = not lines or _is_known(record.host)
    for line in lines:
        say(line if is_known else with_fleet(line, "FILE"))
    if not is_known:
        say(f"FILE is the fleet file that {record.host} is in: no run keeps its path.")


def _is_known(host: str) -> bool:
    """Tell whether a command reaches the host without naming a fleet file."""
    if is_this_machine(host):
        return True
    try:
        fleet = load_fleet_if_any(None)
    except UsageError:
        return False
    return fleet is not None and any(each.name == host for each in fleet.hosts)


def _titled(resources: Iterable[RawEvent], titles: Mapping[Id, str]) -> list[str]:
    """Return the titles of resources, each once: two resources may have the same title."""
    return list(dict.fromkeys(titles[identity(resource["resource"], resource["key"])] for resource in resources))


def _approval_text(entry: RawEvent, format_: FormatValue, _: Titles) -> str:
    return f"approvals: {format_(list(entry['accepted']))}"


def _step_text(entry: RawEvent, format_: FormatValue, _: Titles) -> str:
    step = entry["step"]
    changes = ", ".join(
        f"{name} {format_(step['before'][name])} → {format_(value)}" for name, value in step["desired"].items()
    )
    return f"{step['id']} {step['title']}: {changes}"


def _amendment_text(entry: RawEvent, format_: FormatValue, titles: Titles) -> str:
    changes = ", ".join(f"{each['name']} {format_(each['old'])} → {format_(each['new'])}" for each in entry["changes"])
    return f"{changes}; {_approval_text(entry, format_, titles)}"


_SENTENCES: Mapping[str, Callable[[RawEvent, FormatValue, Titles], str]] = {
    "run": _approval_text,
    "accept": _approval_text,
    "back": _approval_text,
    "begin": _step_text,
    "end": lambda entry, _, titles: "; ".join((*_titled([entry], titles), *entry["warnings"])),
    "failed": lambda entry, _, titles: str(entry["error"]),
    "stage": lambda entry, _, titles: f"{entry['number']} is complete",
    "planned": lambda entry, _, titles: f"stage {entry['stage']['number']}",
    "dependents": lambda entry, _, titles: (
        "noted for the rollback: what by now depends on " + ", ".join(_titled(entry["resources"], titles))
    ),
    "restored": lambda entry, _, titles: f"to stay: {', '.join(_titled(entry['resources'], titles)) or 'nothing yet'}",
    "stopped": lambda entry, _, titles: "; ".join((entry["why"], *entry["next"])),
    "amend": _amendment_text,
    "outcome": lambda entry, _, titles: str(entry["outcome"]),
}
