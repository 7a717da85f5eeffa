"""winhost assess: verdicts for every path."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import (
    assume_option,
    at_once_option,
    facts_option,
    fleet_option,
    need_option,
    what_if_option,
    words_argument,
)
from winhost.cli.outputs import Output, answers
from winhost.model.errors import Exit, WinhostError

if TYPE_CHECKING:
    from winhost.compat.answer import Judged
    from winhost.resources.stated import Statement


@click.command(cls=WinhostCommand)
@words_argument
@facts_option
@click.option("--path", help="Judge by this path alone.", **completion.PATHS)
@need_option
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), help="What shall be served.")
@what_if_option
@assume_option
@click.option("--explain", "everything", is_flag=True, help="Show notes, and every reason of every way.")
@click.option("-v", "--details", is_flag=True, help="Of several hosts show each, and not just a row.")
@click.option("--full", "in_full", is_flag=True, help="With --json or -o yaml: everything, also what decides nothing.")
@fleet_option
@at_once_option
@answers(wide=True)
def assess(
    words: tuple[str, ...],
    facts_files: tuple[Path, ...],
    path: str | None,
    needed: tuple[str, ...],
    workload_file: Path | None,
    remedies: tuple[str, ...],
    assumed: "tuple[Statement, ...]",
    everything: bool,
    details: bool,
    in_full: bool,
    fleet_file: Path | None,
    at_once: int,
    output: Output,
) -> int:
    """Say which ways work on a host, which do not, and why.

    Needs HOSTs of fleet.yaml or FACTS (files, or folders that detect wrote). Changes nothing. Several hosts get a row
    each; --details shows them whole.
    """
    from winhost.cli.envelope import show_results
    from winhost.cli.reach import judge_each, read_each, several, watched, worst
    from winhost.cli.show_verdicts import check_path, possible, show_assessment, show_rows
    from winhost.compat.answer import Judged, Requirements, brief, full
    from winhost.compat.needs import check, wanted
    from winhost.compat.remedy import named
    from winhost.model.workloadfile import load_workload

    check_path(path)
    check(needed)
    workload = load_workload(workload_file) if workload_file else None
    wish = Requirements(wanted(needed, workload), path, workload, tuple(map(named, remedies)), assumed, needed)
    codes = [0]

    def results() -> "Iterator[tuple[str, Judged | WinhostError]]":
        for read, found in watched(
            lambda watch: judge_each(read_each(words, facts_files, fleet_file, at_once, watch), wish, watch)
        ):
            refused = found is not None and not possible(found.fits, path)
            codes.append(worst([read.error], int(Exit.REFUSED) if refused else 0))
            yield read.host, found or read.failure

    if output.form:
        told = full if in_full else brief
        documents = ((host, told(found, wish) if isinstance(found, Judged) else found) for host, found in results())
        show_results("assessment-full" if in_full else "assessment", output.form, documents, lambda _: None)
    elif output.shape == "name" or details or everything or not several(words, facts_files, fleet_file):
        whole = everything or output.wide
        show_results("assessment", output.shape, results(), lambda found: show_assessment(found, wish, whole))
    else:
        show_rows(results(), wish, output.wide)
    return max(codes)
