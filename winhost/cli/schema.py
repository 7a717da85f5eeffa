"""winhost schema: our file formats, for editors and validators."""

from typing import Any

import click

NAMES = (
    *("facts", "plan", "fleet", "playbook", "workload", "host", "journal"),
    *("assessment", "diff", "explanation"),
)


@click.command()
@click.argument("name", type=click.Choice(NAMES), metavar="FORMAT")
def schema(name: str) -> None:
    """Print the JSON Schema of one of winhost's file formats.

    FORMAT is one of: facts (what detect writes), plan (what plan writes), fleet (fleet.yaml), playbook (what a path
    wants), workload (workload.yaml), host (a lab host), journal (a line of a run's journal), assessment, diff and
    explanation (what assess, diff and explain CODE answer with --json).
    """
    from winhost.cli.output import print_json

    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema(name)})


def _schema(name: str) -> dict[str, object]:
    from winhost.compat.answer import AssessmentDocument, DiffDocument
    from winhost.engine.entries import AnyLine
    from winhost.lab.hostfile import HostFile
    from winhost.model.documents import answer_schema, json_schema
    from winhost.model.facts import Facts
    from winhost.model.fleetfile import FleetFile
    from winhost.model.plan import Plan
    from winhost.model.reason import Explanation
    from winhost.model.workloadfile import WorkloadFile
    from winhost.paths.playbook import Playbook

    kinds: dict[str, Any] = {
        "facts": Facts,
        "plan": Plan,
        "fleet": FleetFile,
        "playbook": Playbook,
        "workload": WorkloadFile,
        "host": HostFile,
        "journal": AnyLine,
    }
    answers = {"assessment": AssessmentDocument, "diff": DiffDocument, "explanation": Explanation}
    return answer_schema(answers[name]) if name in answers else json_schema(kinds[name])
