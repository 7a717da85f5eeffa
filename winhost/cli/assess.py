"""winhost assess: verdicts for every path."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli import completion
from winhost.cli.options import at_once_option, facts_option, fleet_option, hosts_argument, json_option
from winhost.model.errors import Exit

if TYPE_CHECKING:
    from winhost.cli.reach import Read
    from winhost.compat.answer import AssessmentDocument, Judged, Wish


@click.command()
@hosts_argument
@facts_option
@click.option("--path", help="Judge by this path alone: exit 3 when it is not possible.", **completion.PATHS)
@click.option(
    "--need",
    "needed",
    multiple=True,
    metavar="CAPABILITY",
    help="A way must offer it; may be repeated.",
    **completion.CAPABILITIES,
)
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), help="What shall be served.")
@click.option(
    "--what-if",
    "remedies",
    multiple=True,
    metavar="REMEDY",
    help="Judge as if it were done; may be repeated.",
    **completion.REMEDIES,
)
@click.option("--explain", "everything", is_flag=True, help="Show notes, and every reason of every way.")
@fleet_option
@at_once_option
@json_option
def assess(
    hosts: tuple[str, ...],
    facts_files: tuple[Path, ...],
    path: str | None,
    needed: tuple[str, ...],
    workload_file: Path | None,
    remedies: tuple[str, ...],
    everything: bool,
    fleet_file: Path | None,
    at_once: int,
    as_json: bool,
) -> int:
    """Say which ways work on a host, which do not, and why.

    Needs a HOST or a --facts file. Changes nothing. Exit 3 when no way works, or none offers what is needed.
    """
    from winhost.cli.output import print_json
    from winhost.cli.reach import read_all, worst
    from winhost.cli.show_verdicts import check_path, possible
    from winhost.compat.answer import Wish, judge
    from winhost.compat.needs import check, wanted
    from winhost.compat.remedy import named
    from winhost.model.workloadfile import load_workload

    check_path(path)
    check(needed)
    workload = load_workload(workload_file) if workload_file else None
    wish = Wish(wanted(needed, workload), path, workload, tuple(named(word) for word in remedies))
    reads = read_all(hosts, facts_files, fleet_file, at_once)
    judged = [judge(read.facts, wish) if read.facts else None for read in reads]
    if as_json:
        print_json(_document(reads, judged))
    else:
        _show(reads, judged, wish, everything)
    refused = any(each and not possible(each.fits, path) for each in judged)
    return worst([read.error for read in reads], int(Exit.REFUSED) if refused else 0)


def _document(reads: "Sequence[Read]", judged: "Sequence[Judged | None]") -> "AssessmentDocument":
    from winhost.cli.output import error_document
    from winhost.compat.answer import AssessmentDocument, NotJudged

    unread = [NotJudged(read.host, error_document(read.error)) if read.error else None for read in reads]
    return AssessmentDocument(tuple(found for both in zip(judged, unread, strict=True) for found in both if found))


def _show(reads: "Sequence[Read]", judged: "Sequence[Judged | None]", wish: "Wish", everything: bool) -> None:
    from winhost.cli.output import tell_error
    from winhost.cli.show_verdicts import show_assessment, show_summary

    if len(reads) > 1:
        show_summary([(each.host, each.fits[0]) for each in judged if each])
    for read, found in zip(reads, judged, strict=True):
        if found:
            show_assessment(found, wish, everything)
        elif read.error:
            tell_error(read.error)
