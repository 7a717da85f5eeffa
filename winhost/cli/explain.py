"""winhost explain: the story of a reason."""

from dataclasses import dataclass

import click

from winhost.cli.envelope import show_list, show_results
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.knowledge import catalogue
from winhost.knowledge.explanation import explain as story_of
from winhost.model.capabilities import CAPABILITIES
from winhost.model.path import EVERY_PATH
from winhost.model.reason import Evidence, Explanation


@dataclass(frozen=True)
class Code:
    """A reason that `explain` knows."""

    code: str
    sentence: str


def explain(code: str | None, listed: bool, output: Output) -> int:
    """Explain a reason by its CODE."""
    if listed or code is None:
        rows = _listed(code or "")
        show_list("codes", output.shape, [Code(code, sentence) for code, sentence in rows], ("code", "sentence"))
        return 0
    explanation = story_of(code)
    show_results("explanation", output.shape, [(explanation.code, explanation)], _show)
    return 0


def _listed(prefix: str) -> list[tuple[str, str]]:
    """Paths first, then capabilities, in the order in which winhost always names them.

    Raises UsageError: UnknownCode.
    """
    order = (*EVERY_PATH, "mmio", "vm", "wsl", *CAPABILITIES, catalogue.ANY)
    every = {**catalogue.own_entries(), **catalogue.gaps()}
    codes = [code for code in every if code.startswith(prefix)]
    if not codes:
        raise catalogue.unknown_code(prefix)
    return [(code, every[code].sentence) for code in sorted(codes, key=lambda code: order.index(code.split(".")[0]))]


def _show(explanation: Explanation) -> None:
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
