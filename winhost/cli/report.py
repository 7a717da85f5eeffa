"""winhost report: what assess says, as a file to look at, print and pass on."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import (
    assume_option,
    at_once_option,
    fleet_option,
    force_option,
    need_option,
    what_if_option,
)
from winhost.cli.outputs import Output, answers

if TYPE_CHECKING:
    from winhost.cli.answers import Reported
    from winhost.compat.answer import Judged
    from winhost.model.errors import ErrorResult, WinhostError
    from winhost.model.facts import Facts
    from winhost.render.report import UnreadHost
    from winhost.resources.stated import Statement


@click.command(cls=WinhostCommand)
@click.argument("words", nargs=-1, required=True, metavar="FACTS|HOST...", **completion.HOSTS_AND_FILES)
@force_option
@need_option
@what_if_option
@click.option("--brief", is_flag=True, help="What decides alone: a page per host when it is printed.")
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), help="What shall be served.")
@assume_option
@fleet_option
@at_once_option
@answers("FILE", "The file to write, or a folder for a page per host.", required=True)
def report(
    words: tuple[str, ...],
    force: bool,
    needed: tuple[str, ...],
    remedies: tuple[str, ...],
    brief: bool,
    workload_file: Path | None,
    assumed: "tuple[Statement, ...]",
    fleet_file: Path | None,
    at_once: int,
    output: Output,
) -> int:
    """Write verdicts on hosts as one HTML file, to look at and pass on.

    FACTS are facts files or folders of them, HOSTS names of fleet.yaml, patterns or groups. Changes nothing. The file
    needs nothing beside it: no script and no network. A folder (its name ends with /, or it is there) gets a page per
    host, and index.html.
    """
    from winhost.cli.answers import Reported
    from winhost.cli.envelope import answer
    from winhost.cli.output import say, show_error_text, write_file
    from winhost.cli.overwrite import refuse_other_kind
    from winhost.cli.reach import judge_each, read_each, watched, worst
    from winhost.compat.answer import Requirements
    from winhost.compat.needs import check, wanted
    from winhost.compat.remedy import named
    from winhost.model.errors import ErrorResult, failed
    from winhost.model.workloadfile import load_workload
    from winhost.render.report import UnreadHost, reports
    from winhost.render.report import report as render

    file = output.the_place
    refuse_other_kind(file, "report", force)
    check(needed)
    workload = load_workload(workload_file) if workload_file else None
    wish = Requirements(wanted(needed, workload), None, workload, tuple(map(named, remedies)), assumed, needed)
    results: list[Reported | ErrorResult] = []
    errors: list[WinhostError] = []

    def told() -> "Iterator[tuple[Facts, Judged] | UnreadHost]":
        for read, judged in watched(
            lambda watch: judge_each(read_each(words, (), fleet_file, at_once, watch), wish, watch)
        ):
            if read.error is not None:
                errors.append(read.error)
                results.append(failed(read.error, read.host))
                if not output.form:
                    show_error_text(read.error, read.host)
                yield UnreadHost(read.host, read.error)
            elif read.facts and judged:
                results.append(Reported(read.host, str(file)))
                yield read.facts, judged

    if output.folder or file.is_dir():
        _write_all(file, reports(told(), wish.needs, wish.supposed, brief=brief), results, force)
    else:
        write_file(file, render(told(), wish.needs, wish.supposed, brief=brief), "report", force)
    if output.form:
        answer("report", results, output.form)
    else:
        found = len(results) - len(errors)
        say(f"Written to {file}: {found} host{'' if found == 1 else 's'}")
    return worst(errors)


def _write_all(
    folder: Path, pages: "Iterator[tuple[str, Iterator[str]]]", results: "list[Reported | ErrorResult]", force: bool
) -> None:
    """A page when its host is the last one of the results, which then say where it stands; in the end the index."""
    from winhost.cli.answers import Reported
    from winhost.cli.output import write_file
    from winhost.render.report import INDEX

    folder.mkdir(parents=True, exist_ok=True)
    for name, pieces in pages:
        if name != INDEX:
            results[-1] = Reported(str(results[-1].host), str(folder / name))
        write_file(folder / name, pieces, "report", force)
