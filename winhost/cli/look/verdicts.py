"""Show verdicts: a line for each path, the recommended one with its trade-offs, the reasons against the others,
remedies, and the memory of a workload.
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
from winhost.compat.evaluation import Evaluation, Requirements, format_stated
from winhost.compat.needs import Fit, Needs
from winhost.compat.remedy import Repair
from winhost.findings.show import FindingView, finding_view, format_remedy
from winhost.model.errors import WinhostError, visible
from winhost.model.path import is_requested
from winhost.model.reason import HOST, PLAN, CapabilityVerdict, Finding, PathVerdict, Severity, Verdict
from winhost.model.units import gib, gib_range
from winhost.render import verdict_text
from winhost.sizing.budget import Budget
from winhost.sizing.fit import FitAdvice
from winhost.sizing.memories import MemoryUse

COLOURS = {"supported": "green", "degraded": "yellow", "unverified": "magenta", "unsupported": "red"}


def has_possible_option(fits: Sequence[Fit], path: str | None) -> bool:
    """Return whether this path, or any path if it is None, is not unsupported."""
    return any(fit.verdict is not Verdict.UNSUPPORTED for fit in fits if is_requested(path, fit.variant))


def show_rows(
    results: Iterable[tuple[str, Evaluation | WinhostError]],
    requirements: Requirements,
    wide: bool,
    code: Callable[[Evaluation], int],
) -> int:
    """Show a row for each host with its best option, then the hosts that could not be read. Return the exit code.

    wide: add the other options and the cheapest changes; code: returns the exit code of one host.
    """
    rows, errors, codes = [], list[WinhostError](), [0]
    for host, evaluation in results:
        if isinstance(evaluation, WinhostError):
            errors.append(evaluation)
        else:
            rows.append(_row(host, evaluation, requirements.path, wide))  # the evaluation itself is not kept
            codes.append(code(evaluation))
    _show_supposed(requirements)
    more = ("also possible", "cheapest changes") if wide else ()
    if rows:
        table(("host", "best option", "verdict", "what decides", *more), rows)
    for error in errors:
        show_error_text(error)
    return highest_exit_code(errors, max(codes))


def _row(host: str, evaluation: Evaluation, path: str | None, wide: bool) -> tuple[object, ...]:
    best, *others = (fit for fit in evaluation.fits if is_requested(path, fit.variant))
    variants = {variant.path: variant for variant in evaluation.assessment.every_variant}
    reason = verdict_text.find_decisive_reason(variants[best.variant], best)
    is_unsupported = best.verdict is Verdict.UNSUPPORTED
    row = (
        host,
        evaluation.fits[0].variant if evaluation.assessment.recommended and not is_unsupported else "none",
        _format_verdict(best.verdict),
        reason.code if reason else "",
    )
    if not wide:
        return row
    also = [f"{fit.variant} ({fit.verdict})" for fit in others if fit.verdict is not Verdict.UNSUPPORTED]
    changes = [mend.id for mend in evaluation.changes.remedies] if evaluation.changes else []
    return (*row, ", ".join(also), ", ".join(changes))


def _show_supposed(requirements: Requirements) -> None:
    if requirements.supposed:
        say(verdict_text.describe_assumptions(requirements.supposed), bold=True)


def show_assessment(evaluation: Evaluation, requirements: Requirements, everything: bool) -> None:
    """Show the assessment of one host, and the cheapest changes that would meet the requirements."""
    assessment, path = evaluation.assessment, requirements.path
    simulated = "  (simulated)" if assessment.origin == "synthetic" else ""
    say(f"{assessment.host}{simulated}", bold=True)
    _show_supposed(requirements)
    fits = [fit for fit in evaluation.fits if is_requested(path, fit.variant)]
    variants = {variant.path: variant for variant in assessment.every_variant}
    rows = (
        (fit.variant, _format_verdict(fit.verdict), _format_decisive_reason(variants[fit.variant], fit)) for fit in fits
    )
    table(("option", "verdict", "what decides"), rows)
    _show_recommendation(evaluation, fits[0], requirements.needs)
    for line in verdict_text.describe_smaller_workload(evaluation.nearest) if evaluation.nearest else ():
        say(line if line.startswith("With ") else f"  {line}", hang=2)
    if fits[0].budget:
        show_budget(fits[0].budget, fits[0].short)
    for fit in fits:
        if everything or path or fit is fits[0]:
            _show_variant(variants[fit.variant], fit, everything)
    _show_changes(evaluation.changes, fits[0], path)
    say(f"{'' if everything else 'All reasons: --explain. '}About one reason: winhost explain CODE")


def _format_decisive_reason(variant: PathVerdict, fit: Fit) -> str:
    reason = verdict_text.find_decisive_reason(variant, fit)
    text = FindingView(reason.sentence, code=reason.code).head if reason else ""
    return " ".join(filter(None, (text, format_stated(variant.stated) if variant.stated else "")))


def _show_recommendation(evaluation: Evaluation, fit: Fit, needs: Needs) -> None:
    first, *others = verdict_text.describe_recommendation(evaluation, fit, needs)
    say(first, bold=bool(others))
    for sentence in others:
        say(sentence)
    for position, line in enumerate(verdict_text.describe_settling_commands(evaluation)):
        say(f"{'  ' if position % 2 else '     ' if position else ''}{line}")


def _show_changes(changes: Repair | None, best: Fit, path: str | None) -> None:
    head = verdict_text.changes_heading(best, changes, path)
    if head is None:
        return
    say(head)
    for number, mend in enumerate(changes.remedies if changes else (), 1):
        show_finding(FindingView(format_remedy(mend), code=mend.id), lead=f"  {number}. ")
    click.echo()


def _format_verdict(verdict: Verdict) -> object:
    return Text(verdict, style=COLOURS[verdict])


def _show_variant(variant: PathVerdict, fit: Fit, everything: bool) -> None:
    worse = Counter(gpu.verdict for gpu in variant.gpus if gpu.verdict.rank > variant.verdict.rank)
    agreeing = len(variant.gpus) - worse.total()
    suffix = f" for {agreeing} of {len(variant.gpus)} GPUs" if worse else ""
    suffix += "".join(f", {verdict} for {count}" for verdict, count in worse.items())
    click.secho(f"\n{variant.path}: {variant.verdict}{suffix}", fg=COLOURS[variant.verdict])
    if fit.denied:
        say("  Conflicts with the workload:")
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
            _show_verdict("    ", each.verdict, f": {visible(verdict_text.name_capability(each))}")
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
    distinct = {(reason.code, reason.observed): reason for reason in reversed(tuple(reasons))}
    for reason in verdict_text.sort_by_severity(reversed(distinct.values())):
        later = reason.code.endswith(".later") and reason.subject == HOST
        if reason.severity is Severity.NOTE and not (everything or later or reason.subject == PLAN):
            continue
        show_finding(finding_view(reason), lead=indent)


def show_budget(budget: Budget, short: FitAdvice | None) -> None:
    """Show the budget of the path that fits best."""
    click.secho(f"\nMemory of the workload with {budget.variant}:", bold=True)
    rows = []
    for memory in budget.memories:
        available = "unknown" if memory.capacity is None else gib_range(memory.capacity, memory.most or 0)
        rows.append((memory.where, gib_range(memory.least, memory.used), available, _format_free_memory(memory)))
    table(("memory", "used", "available", "free"), rows)
    lines = []
    for line in budget.lines:
        how = f"{line.how} (estimate)" if line.estimate else line.how
        lines.append((line.where, line.model or "", line.what, gib_range(line.least, line.bytes), how))
    table(("memory", "model", "what", "size", "how"), lines)
    for missing in short.missing if short else ():
        say(f"  Please state: {missing.model}: {missing.what}: {missing.why}")
    if short and short.fixes:
        click.echo("  Changes that would make it fit, each on its own, smallest first:")
        for fix in short.fixes:
            say(f"    - {fix.text}")


def _format_free_memory(memory: MemoryUse) -> str:
    match memory.fits:
        case True:
            return gib(memory.margin or 0)
        case False if memory.may_fit is not False:
            return f"may fit: {gib(memory.used - (memory.capacity or 0))} short at most"
        case False:
            return f"does not fit: {gib(memory.used - (memory.capacity or 0))} short"
        case _:
            return "unknown"
