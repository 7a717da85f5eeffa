"""winhost report: what assess says, as a file to look at, print and pass on."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.options import at_once_option, fleet_option, json_option


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="FACTS|HOST...", **completion.HOSTS_AND_FILES)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The file to write."
)
@click.option(
    "--need",
    "needed",
    multiple=True,
    metavar="CAPABILITY",
    help="A way must offer it; may be repeated.",
    **completion.CAPABILITIES,
)
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), help="What shall be served.")
@fleet_option
@at_once_option
@json_option
def report(
    words: tuple[str, ...],
    output: Path,
    needed: tuple[str, ...],
    workload_file: Path | None,
    fleet_file: Path | None,
    at_once: int,
    as_json: bool,
) -> int:
    """Write verdicts on hosts as one HTML file, to look at and pass on.

    FACTS are facts files, HOSTS names of fleet.yaml, patterns or groups. Changes nothing. The file needs nothing
    beside it: no script and no network.
    """
    from winhost.cli.output import print_json, say, tell_error, write_file
    from winhost.cli.reach import read_all, worst
    from winhost.compat.answer import Wish
    from winhost.compat.needs import check, wanted
    from winhost.model.workloadfile import load_workload
    from winhost.render.report import Unread
    from winhost.render.report import report as render

    check(needed)
    workload = load_workload(workload_file) if workload_file else None
    wish = Wish(wanted(needed, workload), workload=workload)
    files = [word for word in words if word.endswith(".json") or Path(word).is_file()]
    hosts = [word for word in words if word not in files]
    reads = read_all(hosts, [Path(word) for word in files], fleet_file, at_once)
    found = [read.facts for read in reads if read.facts is not None]
    unread = [Unread(read.host, read.error) for read in reads if read.error is not None]
    for each in unread:
        tell_error(each.error)
    write_file(output, render(found, unread, wish))
    if as_json:
        print_json({"file": str(output), "hosts": [facts.host for facts in found]})
    else:
        say(f"Written to {output}: {len(found)} host{'' if len(found) == 1 else 's'}")
    return worst([read.error for read in reads])
