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
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), help="What shall be served.")
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
    from winhost.cli.output import show_results
    from winhost.cli.reach import read_all, worst
    from winhost.cli.show_verdicts import check_path, possible, show_assessment, show_summary
    from winhost.compat.needs import check, fits, wanted
    from winhost.compat.remedy import assess_as_if, cheapest, named
    from winhost.model.workloadfile import load_workload

    check_path(path)
    check(needed)
    workload = load_workload(workload_file) if workload_file else None
    needs, mends = wanted(needed, workload), [named(word) for word in remedies]
    stated = workload.versions if workload else {}
    results: list[dict[str, Any]] = []
    refused = 0
    reads = read_all(hosts, facts_files, fleet_file, at_once)
    for read in reads:
        result: dict[str, Any] = {"host": read.host, "error": read.error}
        if read.facts is not None:
            judged = assess_as_if(read.facts, mends, stated)
            fit = fits(judged, needs, workload)
            refused = refused if possible(fit, path) else int(Exit.REFUSED)
            result |= {"assessment": judged, "fits": fit, "changes": cheapest(read.facts, needs, path, workload)}
        results.append(result)
    if len(results) > 1 and not as_json:
        show_summary([(result["host"], result["fits"][0]) for result in results if "fits" in result])
    show_results(as_json, results, lambda result: show_assessment(result, path, needs, everything))
    return worst([read.error for read in reads], refused)
