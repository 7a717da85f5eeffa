"""A reason for people: what it says and means, its remedy, its evidence, and related reasons."""

import click

from winhost.cli.output import say
from winhost.knowledge import catalogue
from winhost.model.reason import Evidence, Explanation


def show_explanation(explanation: Explanation) -> None:
    """The whole story of a reason."""
    say(explanation.code, bold=True)
    say(f"  {explanation.sentence}")
    say(f"  {explanation.means}")
    for words in explanation.says:
        say(f"  In logs: {words}", hang=2)
    if explanation.risks:
        say(f"  Needs approval: {', '.join(explanation.risks)}")
    if explanation.remedy:
        doubt = " No report confirms that it helps (unverified)." if explanation.remedy.unverified else ""
        say(f"  Remedy ({explanation.remedy.who}): {explanation.remedy.do}{doubt}")
    for evidence in explanation.evidence:
        click.echo()
        _show_evidence(evidence)
    if explanation.related:
        click.echo()
        say("  Related:")
    for code in explanation.related:
        say(f"    {code}: {catalogue.entry(code).sentence}", hang=2)


def _show_evidence(evidence: Evidence) -> None:
    known = f"{evidence.kind}, confidence {evidence.confidence}, seen {evidence.seen}, valid for {evidence.holds}"
    say(f"  Evidence {evidence.id} ({known})", hang=2)
    say(f"    {evidence.claim}")
    say(f"    Source: {evidence.source}", hang=2)
    if evidence.settles:
        say(f"    What would settle it: {evidence.settles}", hang=2)
