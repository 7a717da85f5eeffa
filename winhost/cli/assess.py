"""winhost assess: verdicts for every path."""

from pathlib import Path
from typing import Any

import click

from winhost.cli.options import at_once_option, facts_option, fleet_option, hosts_argument, json_option
from winhost.model.errors import Exit


@click.command()
@hosts_argument
@facts_option
@click.option("--path", help="Judge by this path alone: exit 3 when it is not possible.")
@click.option("--need", "needed", multiple=True, metavar="CAPABILITY", help="A way must offer it; may be repeated.")
@click.option(
    "--what-if", "remedies", multiple=True, metavar="REMEDY", help="Judge as if it were done; may be repeated."
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
    remedies: tuple[str, ...],
    everything: bool,
    fleet_file: Path | None,
    at_once: int,
    as_json: bool,
) -> int:
    """Say which ways work on a host, which do not, and why.

    Needs a HOST or a --facts file. Changes nothing. Exit 3 when no way works, or none offers what is needed.
    """
    from winhost.cli.output import show_results
    from winhost.cli.reach import read_all, worst
    from winhost.cli.show_verdicts import check_path, possible, show_assessment, show_summary
    from winhost.compat.needs import Needs, check, fits
    from winhost.compat.remedy import assess_as_if, cheapest, named

    check_path(path)
    check(needed)
    needs, mends = Needs(needed), [named(word) for word in remedies]
    results: list[dict[str, Any]] = []
    refused = 0
    reads = read_all(hosts, facts_files, fleet_file, at_once)
    for read in reads:
        result: dict[str, Any] = {"host": read.host, "error": read.error}
        if read.facts is not None:
            judged = assess_as_if(read.facts, mends)
            fit = fits(judged, needs)
            refused = refused if possible(fit, path) else int(Exit.REFUSED)
            result |= {"assessment": judged, "fits": fit, "changes": cheapest(read.facts, needs, path)}
        results.append(result)
    if len(results) > 1 and not as_json:
        show_summary([result["assessment"] for result in results if "assessment" in result], needs)
    show_results(as_json, results, lambda result: show_assessment(result, path, needs, everything))
    return worst([read.error for read in reads], refused)
