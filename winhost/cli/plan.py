"""winhost plan: what would change."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.foreign_errors import from_os_error
from winhost.cli.output import write_file
from winhost.cli.outputs import Output
from winhost.cli.plan_options import PlanOptions, Power, pinned
from winhost.cli.planned_host import PlannedHost
from winhost.cli.show_plan import show_planned, show_plans
from winhost.cli.snapshots import Snapshot, any_host, check_each_once, read_each, several, statements, watched, worst
from winhost.compat.stated import Statement, stated
from winhost.engine import uploads
from winhost.engine.choosing import check_unasked, recommended
from winhost.engine.planning import make_plan
from winhost.model.documents import write_document
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.fleetfile import host_name
from winhost.model.path import path_of
from winhost.model.plan import Plan
from winhost.resources.host import HostFacts


def plan(
    words: tuple[str, ...],
    facts_files: tuple[Path, ...],
    path: str | None,
    vm: str | None,
    cards: tuple[str, ...],
    high: int | None,
    low: int | None,
    power: Power | None,
    playbook: Path | None,
    settings: tuple[str, ...],
    assumed: tuple[str, ...],
    allow_unverified: bool,
    force: bool,
    details: bool,
    fleet_file: Path | None,
    at_once: int,
    output: Output,
) -> int:
    """Plan what would change on a host, and how each change is undone."""
    stated_facts = statements(assumed)
    if assumed and any_host(words, facts_files):
        raise click.BadParameter(
            "goes with --facts or facts files: a host is asked, and is not told", param_hint="--assume"
        )
    asked = PlanOptions(path, vm, cards, high, low, power, playbook, pinned(settings), allow_unverified)
    named = asked.path
    if named:
        asked.request(named)  # what is wrong with the words themselves is told once, before any host is asked
    many = several(words, facts_files, fleet_file)
    into = _into(output.path, many, force)
    if into and into.many:
        check_each_once(words, facts_files, fleet_file)
    codes = [0]

    def results() -> Iterator[tuple[str, PlannedHost | WinhostError]]:
        for read in watched(lambda watch: read_each(words, facts_files, fleet_file, at_once, watch)):
            made = _planned(read, asked, into, stated_facts)
            codes.append(worst([made if isinstance(made, WinhostError) else None]))
            yield read.host, made

    if many and output.shape in ("table", "wide") and not details:
        show_plans([*results()], output.wide)
    else:
        show_results("planning", output.shape, results(), lambda made: show_planned(made, output.wide))
    return max(codes)


def _planned(
    read: Snapshot, asked: PlanOptions, into: "Into | None", assumed: tuple[Statement, ...]
) -> PlannedHost | WinhostError:
    try:
        facts = HostFacts(stated(read.known, assumed))
        best = None if asked.path else recommended(facts)
        made = make_plan(facts, asked.request(path_of(best.variant) if best else str(asked.path)))
        made = replace(made, made_at=datetime.now(UTC).isoformat(timespec="seconds"))
        if best:
            check_unasked(made, best)
        uploads.check(made.steps, Path())
        file = into.write(made) if into else None
    except WinhostError as error:
        return error
    return PlannedHost(
        made.host, made.request.path, made.variant, best.verdict if best else None, str(file) if file else None, made
    )


@dataclass(frozen=True)
class Into:
    """Where plans go: a file, or a folder of several hosts or where one is named, such as `plans/`."""

    place: Path
    many: bool
    force: bool

    def write(self, made: Plan) -> Path:
        """Raises WinhostError: OtherKind, UnusablePlace, SystemFault, NoFileName."""

        file = self._file_of(made.host) if self.many or self.place.is_dir() else self.place
        try:
            if self.many:
                self.place.mkdir(parents=True, exist_ok=True)
            write_file(file, write_document(made), "plan", self.force)
        except OSError as error:
            raise from_os_error(error) from error
        return file

    def _file_of(self, host: str) -> Path:
        """Facts may call their host anything, `../../x` too; only what fleet.yaml takes for a name becomes a file's."""

        try:
            return self.place / f"{host_name(host)}.json"
        except ValueError:
            raise UsageError(
                "NoFileName",
                what=f"no file can be named after the host '{visible(host)}'",
                hint="Plan it alone and name the file: winhost plan FACTS -o plan.json",
                host=host,
            ) from None


def _into(place: Path | None, many: bool, force: bool) -> Into | None:
    """Raises UsageError (OneFile) for several plans and what is, or looks like, one file."""
    if place and many and not place.is_dir() and (place.suffix or place.exists()):
        raise UsageError(
            "OneFile",
            what=f"several hosts are named, and {visible(str(place))} is one file",
            hint="Name a folder, which gets a plan for each host: -o plans/",
        )
    return Into(place, many, force) if place else None
