"""Verdicts for people: a line per path, then the reasons that decide, then what to do."""

from collections.abc import Iterable
from dataclasses import dataclass

import click

from winhost.cli.output import table
from winhost.compat.catalogue import remedies
from winhost.model.errors import UsageFault, visible
from winhost.model.reason import HOST, Assessment, PathVerdict, Reason, Severity, Verdict

COLOURS = {"supported": "green", "degraded": "yellow", "unverified": "magenta", "unsupported": "red"}


@dataclass(eq=False)
class UnknownPath(UsageFault):
    """A path that is not judged."""

    asked: str
    known: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"there is no path '{visible(self.asked)}'; there are: {', '.join(self.known)}"


def check_path(judged: Assessment, path: str | None) -> None:
    """Raises UnknownPath."""
    known = tuple(verdict.path for verdict in judged.paths)
    if path is not None and path not in known:
        raise UnknownPath(path, known)


def possible(judged: Assessment, path: str | None) -> bool:
    """Whether the path, or any, is not ruled out."""
    asked = [verdict for verdict in judged.paths if path in (None, verdict.path)]
    return any(verdict.verdict is not Verdict.UNSUPPORTED for verdict in asked)


def show_assessment(judged: Assessment, path: str | None, everything: bool) -> None:
    """One host."""
    simulated = "  (simulated)" if judged.origin == "synthetic" else ""
    click.secho(f"{judged.host}{simulated}", bold=True)
    paths = [verdict for verdict in judged.paths if path in (None, verdict.path)]
    table(("path", "verdict", "because"), ((p.path, _coloured(p.verdict), ", ".join(p.because)) for p in paths))
    for verdict in paths:
        if everything or verdict.path in (path, judged.recommended, "dda"):
            _show_path(verdict, everything)
    if judged.recommended:
        click.echo(f"Recommended: {judged.recommended}.")
    else:
        click.echo("No path works here as it is.")
    click.echo("The whole story of a reason: winhost explain CODE")


def _coloured(verdict: Verdict) -> object:
    from rich.text import Text

    return Text(verdict, style=COLOURS[verdict])


def _show_path(verdict: PathVerdict, everything: bool) -> None:
    click.secho(f"{verdict.path}: {verdict.verdict}", fg=COLOURS[verdict.verdict])
    _show_reasons(verdict.reasons, everything)
    for subject in (*verdict.cards, *verdict.vms):
        click.echo(f"  {visible(subject.name)}: " + click.style(subject.verdict, fg=COLOURS[subject.verdict]))
        _show_reasons(subject.reasons, everything, indent="    ")
    click.echo()


def _show_reasons(reasons: Iterable[Reason], everything: bool, indent: str = "  ") -> None:
    for reason in sorted(reasons, key=lambda reason: -reason.severity.rank):
        later = reason.code.endswith(".later") and reason.subject == HOST
        if reason.severity is Severity.NOTE and not everything and not later:
            continue
        click.echo(f"{indent}{reason.severity} [{reason.code}] {visible(reason.observed)}")
        click.echo(f"{indent}  {reason.sentence}")
        if reason.remedy:
            mend = remedies()[reason.remedy]
            doubt = " (unverified)" if mend.unverified else ""
            click.echo(f"{indent}  → {mend.do}{doubt}")
