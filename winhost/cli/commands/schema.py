"""Arguments and help of `winhost schema`."""

import click

from winhost.cli.formats import FILES, KINDS
from winhost.cli.groups import WinhostCommand, implemented_in


@click.command(cls=WinhostCommand)
@click.argument("name", type=click.Choice((*FILES, *KINDS, "event")), metavar="FORMAT")
@implemented_in("winhost.cli.schema")
def schema() -> None:
    """Print the JSON Schema of one of winhost's file formats.

    FORMAT is a file: facts (what detect writes), plan (what plan writes), fleet (fleet.yaml), playbook (what a path
    wants), workload (workload.yaml), host (a lab host), journal (a line of a run's journal). Or what a command answers
    with --json: detection (detect, facts import), assessment and assessment-full (assess, assess --full), report, diff,
    explanation (explain CODE), codes (explain --list), planning (plan), outcome (apply, resume, rollback), runs, run
    (runs RUN), verification (verify), bundle, lint, profile (serve profile), lab (lab list), error (where a command
    answers nothing else). Or event: a line of apply, resume and rollback with --jsonl.
    """
