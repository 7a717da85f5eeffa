"""winhost explain: the story of a reason."""

from typing import TYPE_CHECKING

import click

from winhost.cli.options import json_option

if TYPE_CHECKING:
    from winhost.model.reason import Explanation


@click.command()
@click.argument("code", required=False)
@click.option("--list", "listed", is_flag=True, help="List all codes.")
@json_option
def explain(code: str | None, listed: bool, as_json: bool) -> int:
    """Tell the whole story of a reason's CODE.

    What it is, what it means, the evidence with its sources, and the remedy.
    """
    from winhost.cli.output import print_json, table
    from winhost.compat import catalogue

    if listed or code is None:
        rows = [(code, entry.sentence) for code, entry in sorted(catalogue.entries().items())]
        if as_json:
            print_json([{"code": code, "sentence": sentence} for code, sentence in rows])
        else:
            table(("code", "sentence"), rows)
        return 0
    told = catalogue.explain(code)
    if as_json:
        print_json(told)
    else:
        _show(told)
    return 0


def _show(told: "Explanation") -> None:
    click.secho(told.code, bold=True)
    click.echo(f"  {told.sentence}\n  {told.means}")
    if told.risks:
        click.echo(f"  Asks for consent: {', '.join(told.risks)}")
    if told.remedy:
        doubt = " Nobody has reported that it helps (unverified)." if told.remedy.unverified else ""
        click.echo(f"  Remedy ({told.remedy.who}): {told.remedy.do}{doubt}")
    for evidence in told.evidence:
        click.echo(f"\n  Evidence {evidence.id} ({evidence.kind}, seen {evidence.seen}, holds {evidence.holds})")
        click.echo(f"    {evidence.claim}\n    Source: {evidence.source}")
        if evidence.settles:
            click.echo(f"    What would settle it: {evidence.settles}")
