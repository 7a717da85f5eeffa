"""winhost schema: our file formats, for editors and validators."""

from typing import Any

import click

from winhost.cli.envelope import KINDS
from winhost.cli.groups import WinhostCommand

FILES = ("facts", "plan", "fleet", "playbook", "workload", "host", "journal")


@click.command(cls=WinhostCommand)
@click.argument("name", type=click.Choice((*FILES, *KINDS, "event")), metavar="FORMAT")
def schema(name: str) -> None:
    """Print the JSON Schema of one of winhost's file formats.

    FORMAT is a file: facts (what detect writes), plan (what plan writes), fleet (fleet.yaml), playbook (what a path
    wants), workload (workload.yaml), host (a lab host), journal (a line of a run's journal). Or what a command answers
    with --json: detection (detect, facts import), assessment and assessment-full (assess, assess --full), report, diff,
    explanation (explain CODE), codes (explain --list), planning (plan), outcome (apply, resume, rollback), runs, run
    (runs RUN), verification (verify), bundle, lint, profile (serve profile), lab (lab list), error (where a command
    answers nothing else). Or event: a line of apply, resume and rollback with --jsonl.
    """
    from winhost.cli.output import print_json

    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema(name)})


def _schema(name: str) -> dict[str, object]:
    from winhost.cli.answers import schema as answer_schema
    from winhost.cli.jsonl import EndLine, EventLine
    from winhost.engine.events import AnyEvent
    from winhost.lab.hostfile import HostFile
    from winhost.model.documents import answer_schema as line_schema
    from winhost.model.documents import json_schema
    from winhost.model.facts import Facts
    from winhost.model.fleetfile import FleetFile
    from winhost.model.plan import Plan
    from winhost.model.workloadfile import WorkloadFile
    from winhost.paths.playbook import Playbook

    kinds: dict[str, Any] = {
        "facts": Facts,
        "plan": Plan,
        "fleet": FleetFile,
        "playbook": Playbook,
        "workload": WorkloadFile,
        "host": HostFile,
        "journal": AnyEvent,
    }
    if name == "event":
        lines: Any = EventLine | EndLine
        return line_schema(lines)
    return json_schema(kinds[name]) if name in kinds else answer_schema(name)
