"""Arguments and help of `winhost schema`."""

import click

from winhost.cli.formats import FILES, KINDS
from winhost.cli.groups import WinhostCommand, does


@click.command(cls=WinhostCommand)
@click.argument("name", type=click.Choice((*FILES, *KINDS, "event")), metavar="FORMAT")
@does("schema")
def schema() -> None:
    """Print the JSON Schema of a winhost file or output format.

    FORMAT is a file: facts (what detect writes), plan (what plan writes), fleet (fleet.yaml), playbook (what a path
    sets up), workload (workload.yaml), host (a simulated host), journal (a line of a run's journal). Or the output of a
    command with --json: detection (detect, facts import), probe, assessment and assessment-full (assess, assess
    --full), report, diff, explanation (explain CODE), diagnosis (explain TEXT), codes (explain --list), known, planning
    (plan), check (apply --check), outcome (apply, resume, rollback), runs, run (runs RUN), verification (verify), boot
    and boot-linux (boot), bundle, lint (lint wslconfig, wslconf, autoinstall), recipe (lint serve, docker-daemon, cdi),
    install-plan, install-media and install-bmc (install), profile (serve profile), serving (serve status),
    serving-change (serve up, down and the like), serving-keys, serving-log, serving-test, yield, hosts and host-test
    (host), chat, status, lab (lab list), draft (workload init), fetched (fetch), models, models-refreshed, weights,
    rendered (render), error (if a command fails before any result). Or event: a line of apply, resume and rollback with
    --jsonl.
    """
