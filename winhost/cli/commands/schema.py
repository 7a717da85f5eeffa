"""Arguments and help of `winhost schema`."""

from typing import Any

import click

from winhost.cli.formats import FILES, KINDS
from winhost.cli.groups import WinhostCommand


@click.command(cls=WinhostCommand)
@click.argument("name", type=click.Choice((*FILES, *KINDS, "event")), metavar="FORMAT")
def schema(**options: Any) -> None:
    """Print the JSON Schema of a winhost file or output format.

    FORMAT is a file: facts (what detect writes), plan (what plan writes), fleet (fleet.yaml), playbook (what a path
    sets up), workload (workload.yaml), host (a simulated host), journal (a line of a run's journal). Or the output of a
    command with --json: detection (detect, facts import), assessment and assessment-full (assess, assess --full),
    report, diff, explanation (explain CODE), diagnosis (explain TEXT), codes (explain --list), known, planning (plan),
    check (apply --check), outcome (apply, resume, rollback), runs, run (runs RUN), verification (verify), bundle, lint,
    profile (serve profile), lab (lab list), draft (workload init), fetched (fetch), error (if a command fails before
    any result). Or event: a line of apply, resume and rollback with --jsonl.
    """
    from winhost.cli.schema import schema as run

    run(**options)
