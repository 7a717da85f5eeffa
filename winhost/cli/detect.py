"""winhost detect: read hosts."""

from pathlib import Path
from typing import Any

import click

from winhost.cli.options import at_once_option, fleet_option, hosts_argument, json_option


@click.command()
@hosts_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write FOLDER/<host>.json.",
)
@fleet_option
@at_once_option
@json_option
def detect(hosts: tuple[str, ...], output: Path | None, fleet_file: Path | None, at_once: int, as_json: bool) -> int:
    """Read what HOSTS are.

    Changes nothing. HOSTS are names of fleet.yaml, patterns ('gpu-*') or groups ('@lab').
    """
    from winhost.cli.output import show_results
    from winhost.cli.reach import read_hosts, worst
    from winhost.cli.show_facts import show_facts

    reads = read_hosts(hosts, fleet_file, at_once)
    results: list[dict[str, Any]] = []
    for read in reads:
        if read.facts is not None and output is not None:
            _write(output, read.host, read.facts)
        results.append({"host": read.host, "facts": read.facts, "error": read.error})
    show_results(as_json, results, lambda result: show_facts(result["facts"], output))
    return worst([read.error for read in reads])


def _write(folder: Path, host: str, facts: object) -> None:
    from winhost.cli.output import write_file
    from winhost.model.documents import write_document

    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / f"{host}.json", write_document(facts))
