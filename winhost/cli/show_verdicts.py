"""Verdicts for people: a line per path, what is recommended and what it costs, why not the others, what to do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from winhost.cli.output import say, table
from winhost.compat import catalogue
from winhost.compat.needs import Fit, Needs, fits
from winhost.model.errors import UsageFault, visible
from winhost.model.path import PATHS, path_of
from winhost.model.reason import HOST, Assessment, CapabilityVerdict, PathVerdict, Reason, Severity, Verdict

if TYPE_CHECKING:
    from winhost.compat.remedy import Mended

COLOURS = {"supported": "green", "degraded": "yellow", "unverified": "magenta", "unsupported": "red"}


@dataclass(eq=False)
class UnknownPath(UsageFault):
    """A path that is not judged."""

    asked: str

    @property
    def what(self) -> str:
        return f"there is no path '{visible(self.asked)}'; there are: {', '.join(PATHS)}"


def check_path(path: str | None) -> None:
    """Raises UnknownPath."""
    if path is not None and path not in PATHS:
        raise UnknownPath(path)


def possible(found: Sequence[Fit], path: str | None) -> bool:
    """Whether the path, or any, is not ruled out."""
    return any(fit.verdict is not Verdict.UNSUPPORTED for fit in found if path in (None, path_of(fit.way)))


def show_summary(assessments: Iterable[Assessment], needs: Needs) -> None:
    """Several hosts: a line for each."""
    best = [(judged.host, fits(judged, needs)[0]) for judged in assessments]
    table(("host", "best way", "verdict"), ((host, fit.way, _coloured(fit.verdict)) for host, fit in best))
    click.echo()


def show_assessment(result: Mapping[str, Any], path: str | None, needs: Needs, everything: bool) -> None:
    """One host: its assessment, and the cheapest changes that would mend what is wanted."""
    judged: Assessment = result["assessment"]
    simulated = "  (simulated)" if judged.origin == "synthetic" else ""
    say(f"{judged.host}{simulated}", bold=True)
    found = [fit for fit in fits(judged, needs) if path in (None, path_of(fit.way))]
    ways = {way.path: way for verdict in judged.paths for way in verdict.ways}
    rows = ((fit.way, _coloured(fit.verdict), _decisive(ways[fit.way], fit)) for fit in found)
    table(("way", "verdict", "what decides"), rows)
    _show_recommendation(ways[found[0].way], found[0], needs)
    for fit in found:
        if everything or path or fit is found[0]:
            _show_way(ways[fit.way], everything)
    _show_changes(result["changes"], found[0], path)
    click.echo(f"{'' if everything else 'Everything: --explain. '}The whole story of a reason: winhost explain CODE")


def _decisive(way: PathVerdict, fit: Fit) -> str:
    """The first reason that the verdict rests on: of the way itself, or of what it lacks."""
    if fit.verdict is Verdict.SUPPORTED:
        return ""
    own = [reason for reason in way.every_reason if reason.code in way.because]
    lacking = [reason for offered in fit.lacking for reason in offered.reasons]
    reason = next(r for r in (*own, *lacking) if r.severity.rank == fit.verdict.rank)
    return f"{reason.sentence} [{reason.code}]"


def _show_recommendation(way: PathVerdict, fit: Fit, needs: Needs) -> None:
    if fit.verdict is Verdict.UNSUPPORTED:
        wanted = " with what is needed" if needs.must else ""
        click.echo(f"No way works here{wanted} as it is.")
        return
    topic = catalogue.topics()[path_of(way.path)]
    click.secho(f"Recommended: {way.path}. {topic.means}", bold=True)
    click.echo(f"What it costs: {topic.loses}")
    click.echo(_standing(fit, needs))


def _standing(fit: Fit, needs: Needs) -> str:
    missed = f" Welcome and not there: {', '.join(offered.capability for offered in fit.missed)}." if fit.missed else ""
    wanted = " and offers all that is needed" if needs.must else ""
    match fit.verdict:
        case Verdict.SUPPORTED:
            return f"It is supported{wanted}.{missed}"
        case Verdict.DEGRADED:
            return f"It works, with something given up: see below.{missed}"
        case _:
            return f"Nobody has verified it here, and no verified way meets the need.{missed}"


def _show_changes(changes: "Mended | None", best: Fit, path: str | None) -> None:
    if best.verdict.rank <= Verdict.DEGRADED.rank:
        return
    if changes is None:
        click.echo(f"winhost knows no changes that would make {path or 'a way'} work here with a verified verdict.\n")
        return
    click.echo(f"What would make {changes.fit.way} {changes.fit.verdict} here, the cheapest way:")
    for number, mend in enumerate(changes.remedies, 1):
        click.echo(f"  {number}. ({mend.who}) {mend.do}  [{mend.id}]")
    click.echo()


def _coloured(verdict: Verdict) -> object:
    from rich.text import Text

    return Text(verdict, style=COLOURS[verdict])


def _show_way(way: PathVerdict, everything: bool) -> None:
    click.secho(f"\n{way.path}: {way.verdict}", fg=COLOURS[way.verdict])
    _show_reasons(way.reasons, everything)
    for subject in (*way.cards, *way.vms):
        click.echo(f"  {visible(subject.name)}: " + click.style(subject.verdict, fg=COLOURS[subject.verdict]))
        _show_reasons(subject.reasons, everything, indent="    ")
    _show_capabilities(way.capabilities, everything)
    click.echo()


def _show_capabilities(offered: Sequence[CapabilityVerdict], everything: bool) -> None:
    click.echo("  What it offers:")
    if everything:
        for each in offered:
            click.echo(f"    {_measured(each)}: " + click.style(each.verdict, fg=COLOURS[each.verdict]))
            _show_reasons(each.reasons, everything, indent="      ")
        return
    for verdict in Verdict:
        names = [_measured(each) for each in offered if each.verdict is verdict]
        if names:
            click.echo(f"    {click.style(verdict, fg=COLOURS[verdict])}: {', '.join(names)}")


def _measured(offered: CapabilityVerdict) -> str:
    return f"{offered.capability} ({visible(offered.measure)})" if offered.measure else offered.capability


def _show_reasons(reasons: Iterable[Reason], everything: bool, indent: str = "  ") -> None:
    for reason in sorted(reasons, key=lambda reason: -reason.severity.rank):
        later = reason.code.endswith(".later") and reason.subject == HOST
        if reason.severity is Severity.NOTE and not everything and not later:
            continue
        click.echo(f"{indent}{reason.severity} [{reason.code}] {visible(reason.observed)}")
        click.echo(f"{indent}  {reason.sentence}")
        if reason.remedy:
            mend = catalogue.remedies()[reason.remedy]
            doubt = " (unverified)" if mend.unverified else ""
            click.echo(f"{indent}  → {mend.do}{doubt}")
