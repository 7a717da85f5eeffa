"""Show verdicts: a line for each path, the recommended one and its price, the reasons against the others, remedies, and
the memory of a workload.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import click
from rich.text import Text

from winhost.cli.output import say, show_error_text, show_finding
from winhost.cli.snapshots import highest_exit_code
from winhost.cli.tables import table
from winhost.cli.terminal import wrap
from winhost.compat.evaluation import Evaluation, Requirements, mark
from winhost.compat.needs import Fit, Needs
from winhost.compat.remedy import Mended
from winhost.findings.show import Shown, remedy_words, shown
from winhost.model.errors import WinhostError, visible
from winhost.model.path import is_meant
from winhost.model.reason import HOST, PLAN, CapabilityVerdict, Finding, PathVerdict, Severity, Verdict
from winhost.model.units import gib, gib_range
from winhost.render import verdict_text
from winhost.sizing.budget import Budget
from winhost.sizing.fit import WhatWouldFit
from winhost.sizing.memories import MemoryUse

COLOURS = {"supported": "green", "degraded": "yellow", "unverified": "magenta", "unsupported": "red"}


def possible(found: Sequence[Fit], path: str | None) -> bool:
    """Tell whether the path, or any path, is possible."""
    return any(fit.verdict is not Verdict.UNSUPPORTED for fit in found if is_meant(path, fit.variant))


def show_rows(
    results: Iterable[tuple[str, Evaluation | WinhostError]],
    asked: Requirements,
    wide: bool,
    code: Callable[[Evaluation], int],
) -> int:
    """Show a row for each host with its best option, then what could not be read. Returns the exit code.

    wide: with all that is seen; code: the exit code of one host.
    """
    rows, errors, codes = [], list[WinhostError](), [0]
    for host, found in results:
        if isinstance(found, WinhostError):
            errors.append(found)
        else:
            rows.append(_row(host, found, asked.path, wide))  # and nothing else is kept of a host
            codes.append(code(found))
    _show_supposed(asked)
    more = ("also possible", "cheapest changes") if wide else ()
    if rows:
        table(("host", "best option", "verdict", "what decides", *more), rows)
    for error in errors:
        show_error_text(error)
    return highest_exit_code(errors, max(codes))


def _row(host: str, found: Evaluation, path: str | None, wide: bool) -> tuple[object, ...]:
    best, *others = (fit for fit in found.fits if is_meant(path, fit.variant))
    variants = {variant.path: variant for variant in found.assessment.every_variant}
    reason = verdict_text.decisive(variants[best.variant], best)
    none = best.verdict is Verdict.UNSUPPORTED
    row = (
        host,
        found.fits[0].variant if found.assessment.recommended and not none else "none",
        _coloured(best.verdict),
        reason.code if reason else "",
    )
    if not wide:
        return row
    also = [f"{fit.variant} ({fit.verdict})" for fit in others if fit.verdict is not Verdict.UNSUPPORTED]
    mends = [mend.id for mend in found.changes.remedies] if found.changes else []
    return (*row, ", ".join(also), ", ".join(mends))


def _show_supposed(asked: Requirements) -> None:
    if asked.supposed:
        say(verdict_text.supposed(asked.supposed), bold=True)


def show_assessment(answer: Evaluation, asked: Requirements, everything: bool) -> None:
    """Show the assessment of one host, and the cheapest changes that would mend what is wanted."""
    assessment, path = answer.assessment, asked.path
    simulated = "  (simulated)" if assessment.origin == "synthetic" else ""
    say(f"{assessment.host}{simulated}", bold=True)
    _show_supposed(asked)
    found = [fit for fit in answer.fits if is_meant(path, fit.variant)]
    variants = {variant.path: variant for variant in assessment.every_variant}
    rows = ((fit.variant, _coloured(fit.verdict), _deciding(variants[fit.variant], fit)) for fit in found)
    table(("option", "verdict", "what decides"), rows)
    _show_recommendation(answer, found[0], asked.needs)
    for line in verdict_text.nearest(answer.nearest) if answer.nearest else ():
        say(line if line.startswith("With ") else f"  {line}", hang=2)
    if found[0].budget:
        show_budget(found[0].budget, found[0].short)
    for fit in found:
        if everything or path or fit is found[0]:
            _show_variant(variants[fit.variant], fit, everything)
    _show_changes(answer.changes, found[0], path)
    say(f"{'' if everything else 'All reasons: --explain. '}About one reason: winhost explain CODE")


def _deciding(variant: PathVerdict, fit: Fit) -> str:
    reason = verdict_text.decisive(variant, fit)
    text = Shown(reason.sentence, code=reason.code).head if reason else ""
    return " ".join(filter(None, (text, mark(variant.stated) if variant.stated else "")))


def _show_recommendation(answer: Evaluation, fit: Fit, needs: Needs) -> None:
    first, *others = verdict_text.recommendation(answer, fit, needs)
    say(first, bold=bool(others))
    for sentence in others:
        say(sentence)
    for position, line in enumerate(verdict_text.settling(answer)):
        say(f"{'  ' if position % 2 else '     ' if position else ''}{line}")


def _show_changes(changes: Mended | None, best: Fit, path: str | None) -> None:
    head = verdict_text.changes(best, changes, path)
    if head is None:
        return
    say(head)
    for number, mend in enumerate(changes.remedies if changes else (), 1):
        show_finding(Shown(remedy_words(mend), code=mend.id), lead=f"  {number}. ")
    click.echo()


def _coloured(verdict: Verdict) -> object:
    return Text(verdict, style=COLOURS[verdict])


def _show_variant(variant: PathVerdict, fit: Fit, everything: bool) -> None:
    worse = Counter(gpu.verdict for gpu in variant.gpus if gpu.verdict.rank > variant.verdict.rank)
    holds = len(variant.gpus) - worse.total()
    some = f" for {holds} of {len(variant.gpus)} GPUs" if worse else ""
    some += "".join(f", {verdict} for {count}" for verdict, count in worse.items())
    click.secho(f"\n{variant.path}: {variant.verdict}{some}", fg=COLOURS[variant.verdict])
    if fit.denied:
        say("  What prevents what the workload asks for:")
        _show_reasons(fit.denied, everything, indent="    ")
    _show_reasons(variant.reasons, everything)
    for subject in (*variant.gpus, *variant.vms):
        _show_verdict(f"  {visible(subject.name)}: ", subject.verdict)
        _show_reasons(subject.reasons, everything, indent="    ")
    if variant.capabilities:
        _show_capabilities(variant.capabilities, everything)
    click.echo()


def _show_capabilities(offered: Sequence[CapabilityVerdict], everything: bool) -> None:
    say("  What it offers:")
    if everything:
        for each in offered:
            _show_verdict("    ", each.verdict, f": {visible(verdict_text.named(each))}")
            _show_reasons(each.reasons, everything, indent="      ")
        return
    for verdict in Verdict:
        names = [each.capability for each in offered if each.verdict is verdict]
        if names:
            _show_verdict("    ", verdict, f": {', '.join(names)}")


def _show_verdict(before: str, verdict: Verdict, after: str = "") -> None:
    """Show a line with the verdict in its colour."""
    lines = wrap(f"{before}{verdict}{after}", 2, sys.stdout)
    start = len(lines) - len(verdict) if not after else len(before)
    click.echo(lines[:start] + click.style(verdict, fg=COLOURS[verdict]) + lines[start + len(verdict) :])


def _show_reasons(reasons: Iterable[Finding], everything: bool, indent: str = "  ") -> None:
    once = {(reason.code, reason.observed): reason for reason in reversed(tuple(reasons))}
    for reason in verdict_text.heaviest_first(reversed(once.values())):
        later = reason.code.endswith(".later") and reason.subject == HOST
        if reason.severity is Severity.NOTE and not (everything or later or reason.subject == PLAN):
            continue
        show_finding(shown(reason), lead=indent)


def show_budget(budget: Budget, short: WhatWouldFit | None) -> None:
    """Show the budget of the path that fits best."""
    click.secho(f"\nMemory of the workload with {budget.variant}:", bold=True)
    rows = []
    for memory in budget.memories:
        given = "unknown" if memory.capacity is None else gib_range(memory.capacity, memory.most or 0)
        rows.append((memory.where, gib_range(memory.least, memory.used), given, _left(memory)))
    table(("memory", "used", "available", "free"), rows)
    lines = []
    for line in budget.lines:
        how = f"{line.how} (estimate)" if line.estimate else line.how
        lines.append((line.where, line.model or "", line.what, gib_range(line.least, line.bytes), how))
    table(("memory", "model", "what", "size", "how"), lines)
    for lack in short.missing if short else ():
        say(f"  Please state: {lack.model}: {lack.what}: {lack.why}")
    if short and short.fixes:
        click.echo("  Changes that would make it fit, each on its own, smallest first:")
        for fix in short.fixes:
            say(f"    - {fix.text}")


def _left(memory: MemoryUse) -> str:
    match memory.fits:
        case True:
            return gib(memory.margin or 0)
        case False if memory.may_fit is not False:
            return f"may fit: {gib(memory.used - (memory.capacity or 0))} short at most"
        case False:
            return f"does not fit: {gib(memory.used - (memory.capacity or 0))} short"
        case _:
            return "unknown"
