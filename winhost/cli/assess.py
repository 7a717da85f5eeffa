"""winhost assess: verdicts for every path."""

from pathlib import Path

import click

from winhost.cli.options import at_once_option, facts_option, fleet_option, hosts_argument, json_option
from winhost.model.errors import Exit


@click.command()
@hosts_argument
@facts_option
@click.option("--path", help="Judge by this path alone: exit 3 when it is not possible.")
@click.option("--all", "everything", is_flag=True, help="Show notes, and the reasons of every path.")
@fleet_option
@at_once_option
@json_option
def assess(
    hosts: tuple[str, ...],
    facts_files: tuple[Path, ...],
    path: str | None,
    everything: bool,
    fleet_file: Path | None,
    at_once: int,
    as_json: bool,
) -> int:
    """Say which ways work on a host, which do not, and why.

    Needs a HOST or a --facts file. Changes nothing. Exit 3 when no way works.
    """
    from winhost.cli.output import show_results
    from winhost.cli.reach import read_all, worst
    from winhost.cli.show_verdicts import check_path, possible, show_assessment
    from winhost.compat.assess import assess as judge
    from winhost.resources.host import HostFacts

    results, refused = [], 0
    reads = read_all(hosts, facts_files, fleet_file, at_once)
    for read in reads:
        judged = judge(HostFacts(read.facts)) if read.facts else None
        if judged is not None:
            check_path(judged, path)
            refused = refused if possible(judged, path) else int(Exit.REFUSED)
        results.append({"host": read.host, "assessment": judged, "error": read.error})
    show_results(as_json, results, lambda result: show_assessment(result["assessment"], path, everything))
    return worst([read.error for read in reads], refused)
