"""winhost assess: verdicts for every path."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli import completion
from winhost.cli.options import assume_option, at_once_option, facts_option, fleet_option, hosts_argument, json_option
from winhost.model.errors import Exit, failed

if TYPE_CHECKING:
    from winhost.cli.reach import Read
    from winhost.compat.answer import Judged, Wish
    from winhost.resources.stated import Statement


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
@assume_option
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
    assumed: "tuple[Statement, ...]",
    everything: bool,
    fleet_file: Path | None,
    at_once: int,
    as_json: bool,
) -> int:
    """Say which ways work on a host, which do not, and why.

    Needs a HOST or a --facts file. Changes nothing. Exit 3 when no way works, or none offers what is needed.
    """
    from winhost.cli.envelope import answer
    from winhost.cli.reach import judge_each, read_each, watched, worst
    from winhost.cli.show_verdicts import check_path, possible
    from winhost.compat.answer import Wish
    from winhost.compat.needs import check, wanted
    from winhost.compat.remedy import named
    from winhost.model.workloadfile import load_workload

    check_path(path)
    check(needed)
    workload = load_workload(workload_file) if workload_file else None
    wish = Wish(wanted(needed, workload), path, workload, tuple(named(word) for word in remedies), assumed)
    codes = [0]

    def counted() -> "Iterator[tuple[Read, Judged | None]]":
        for read, found in watched(
            lambda watch: judge_each(read_each(hosts, facts_files, fleet_file, at_once, watch), wish, watch)
        ):
            refused = found is not None and not possible(found.fits, path)
            codes.append(worst([read.error], int(Exit.REFUSED) if refused else 0))
            yield read, found

    if as_json:
        answer("assessment", (found or failed(read.failure, read.host) for read, found in counted()))
    else:
        _show([*counted()], wish, everything)
    return max(codes)


def _show(answers: "Sequence[tuple[Read, Judged | None]]", wish: "Wish", everything: bool) -> None:
    from winhost.cli.output import tell_error
    from winhost.cli.show_verdicts import show_assessment, show_summary

    if len(answers) > 1:
        show_summary(found for _, found in answers if found)
    for read, found in answers:
        if found:
            show_assessment(found, wish, everything)
        elif read.error:
            tell_error(read.error, read.host)
