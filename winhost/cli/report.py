"""winhost report: what assess says, as a file to look at, print and pass on."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli import completion
from winhost.cli.options import assume_option, at_once_option, fleet_option, force_option, json_option

if TYPE_CHECKING:
    from winhost.compat.answer import Judged
    from winhost.model.errors import WinhostError
    from winhost.model.facts import Facts
    from winhost.render.report import Unread
    from winhost.resources.stated import Statement


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="FACTS|HOST...", **completion.HOSTS_AND_FILES)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The file to write."
)
@force_option
@click.option(
    "--need",
    "needed",
    multiple=True,
    metavar="CAPABILITY",
    help="A way must offer it; may be repeated.",
    **completion.CAPABILITIES,
)
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), help="What shall be served.")
@assume_option
@fleet_option
@at_once_option
@json_option
def report(
    words: tuple[str, ...],
    output: Path,
    force: bool,
    needed: tuple[str, ...],
    workload_file: Path | None,
    assumed: "tuple[Statement, ...]",
    fleet_file: Path | None,
    at_once: int,
    as_json: bool,
) -> int:
    """Write verdicts on hosts as one HTML file, to look at and pass on.

    FACTS are facts files, HOSTS names of fleet.yaml, patterns or groups. Changes nothing. The file needs nothing
    beside it: no script and no network.
    """
    from winhost.cli.answers import Reported
    from winhost.cli.envelope import answer
    from winhost.cli.output import say, tell_error, write_file
    from winhost.cli.overwrite import refuse_other_kind
    from winhost.cli.reach import judge_each, read_each, watched, worst
    from winhost.compat.answer import Wish
    from winhost.compat.needs import check, wanted
    from winhost.model.errors import ErrorResult, failed
    from winhost.model.workloadfile import load_workload
    from winhost.render.report import Unread
    from winhost.render.report import report as render

    refuse_other_kind(output, "report", force)
    check(needed)
    workload = load_workload(workload_file) if workload_file else None
    wish = Wish(wanted(needed, workload), workload=workload, assumed=assumed)
    files = [word for word in words if word.endswith(".json") or Path(word).is_file()]
    hosts = [word for word in words if word not in files]
    facts_files = [Path(word) for word in files]
    results: list[Reported | ErrorResult] = []
    errors: list[WinhostError] = []

    def told() -> "Iterator[tuple[Facts, Judged] | Unread]":
        for read, judged in watched(
            lambda watch: judge_each(read_each(hosts, facts_files, fleet_file, at_once, watch), wish, watch)
        ):
            if read.error is not None:
                errors.append(read.error)
                results.append(failed(read.error, read.host))
                if not as_json:
                    tell_error(read.error, read.host)
                yield Unread(read.host, read.error)
            elif read.facts and judged:
                results.append(Reported(read.host, str(output)))
                yield read.facts, judged

    write_file(output, render(told(), wish.needs), "report", force)
    if as_json:
        answer("report", results)
    else:
        found = len(results) - len(errors)
        say(f"Written to {output}: {found} host{'' if found == 1 else 's'}")
    return worst(errors)
