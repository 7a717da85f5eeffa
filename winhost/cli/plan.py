"""winhost plan: what would change."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import (
    Size,
    assume_option,
    at_once_option,
    facts_option,
    fleet_option,
    force_option,
    words_argument,
)
from winhost.cli.outputs import Output, answers
from winhost.cli.plan_options import PlanOptions, Power
from winhost.model.errors import UsageError, WinhostError, visible

if TYPE_CHECKING:
    from winhost.cli.answers import PlannedHost
    from winhost.cli.reach import Read
    from winhost.model.plan import Plan
    from winhost.resources.stated import Statement


@click.command(cls=WinhostCommand)
@words_argument
@facts_option
@click.option("--path", help="The way to serve, as assess names it. Default: the recommended one.", **completion.PATHS)
@click.option("--vm", help="dda: the VM that gets the cards, by name or GUID. Needed where there are several.")
@click.option("--card", "cards", multiple=True, help="dda: a card, by name or location path. Default: all that can go.")
@click.option("--high", type=Size(), help="dda: high MMIO window, as 64GiB. Default: computed from the cards' BARs.")
@click.option("--low", type=Size(), help="dda: low MMIO window. Default: computed.")
@click.option(
    "--power", type=click.Choice(["as-found", "running", "off"]), help="dda: how the VM ends. Default: as-found."
)
@click.option("--playbook", type=click.Path(path_type=Path), help="Your copy of the path's playbook.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="wsl2: a setting, as network=nat.")
@assume_option
@click.option("--allow-unverified", is_flag=True, help="Plan although something could not be read or is unproven.")
@force_option
@click.option("-v", "--details", is_flag=True, help="Show each plan of several whole.")
@fleet_option
@at_once_option
@answers("FILE", "Write the plan to FILE; of several hosts to FILE/<host>.json.", wide=True)
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
    assumed: "tuple[Statement, ...]",
    allow_unverified: bool,
    force: bool,
    details: bool,
    fleet_file: Path | None,
    at_once: int,
    output: Output,
) -> int:
    """Write down what would change on a host, and how it is taken back.

    Needs HOSTs of fleet.yaml or FACTS (files, or folders that detect wrote). Changes nothing. Without --path it takes
    the recommended option, but never dual-boot, bare-metal, one that needs the consent data, or one that nobody has
    verified.
    """
    from winhost.cli.envelope import show_results
    from winhost.cli.reach import any_host, check_each_once, read_each, several, watched, worst
    from winhost.cli.show_plan import show_planned, show_plans

    if assumed and any_host(words, facts_files):
        raise click.BadParameter(
            "goes with --facts or facts files: a host is asked, and is not told", param_hint="--assume"
        )
    asked = PlanOptions(path, vm, cards, high, low, power, playbook, settings, allow_unverified)
    named = asked.path
    if named:
        asked.wish(named)  # what is wrong with the words themselves is told once, before any host is asked
    many = several(words, facts_files, fleet_file)
    into = _into(output.place, many, force)
    if into and into.many:
        check_each_once(words, facts_files, fleet_file)
    codes = [0]

    def results() -> "Iterator[tuple[str, PlannedHost | WinhostError]]":
        for read in watched(lambda watch: read_each(words, facts_files, fleet_file, at_once, watch)):
            made = _planned(read, asked, into, assumed)
            codes.append(worst([made if isinstance(made, WinhostError) else None]))
            yield read.host, made

    if many and output.shape in ("table", "wide") and not details:
        show_plans([*results()], output.wide)
    else:
        show_results("planning", output.shape, results(), lambda made: show_planned(made, output.wide))
    return max(codes)


def _planned(
    read: "Read", asked: PlanOptions, into: "Into | None", assumed: "tuple[Statement, ...]"
) -> "PlannedHost | WinhostError":
    from winhost.cli.answers import PlannedHost
    from winhost.engine import uploads
    from winhost.engine.choosing import check_unasked, recommended
    from winhost.engine.planning import make_plan
    from winhost.model.path import path_of
    from winhost.resources.host import HostFacts
    from winhost.resources.stated import stated

    try:
        facts = HostFacts(stated(read.known, assumed))
        best = None if asked.path else recommended(facts)
        made = make_plan(facts, asked.wish(path_of(best.variant) if best else str(asked.path)))
        made = replace(made, made_at=datetime.now(UTC).isoformat(timespec="seconds"))
        if best:
            check_unasked(made, best)
        uploads.check(made.steps, Path())
        file = into.write(made) if into else None
    except WinhostError as error:
        return error
    return PlannedHost(
        made.host, made.wish.path, made.variant, best.verdict if best else None, str(file) if file else None, made
    )


@dataclass(frozen=True)
class Into:
    """Where plans go: a file, or a folder of several hosts or where one is named, such as `plans/`."""

    place: Path
    many: bool
    force: bool

    def write(self, made: "Plan") -> Path:
        """Raises WinhostError: OtherKind, UnusablePlace, SystemFault, NoFileName."""
        from winhost.cli.foreign_errors import from_os_error
        from winhost.cli.output import write_file
        from winhost.model.documents import write_document

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
        from winhost.model.fleetfile import host_name

        try:
            return self.place / f"{host_name(host)}.json"
        except ValueError:
            raise UsageError(
                "NoFileName",
                what=f"no file can be named after the host '{visible(host)}'",
                hint="Plan it alone and name the file: winhost plan FACTS -o plan.json",
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
