"""Sentences about verdicts that the terminal and the report share."""

from collections.abc import Iterable

from winhost.compat.evaluation import Evaluation, Supposed
from winhost.compat.needs import Fit, NearestFit, Needs
from winhost.compat.remedy import Repair
from winhost.knowledge import catalogue
from winhost.model.path import path_of
from winhost.model.reason import CapabilityVerdict, Finding, PathVerdict, Verdict


def find_decisive_reason(variant: PathVerdict, fit: Fit) -> Finding | None:
    """Return the first reason that decides the verdict, of the variant or its capabilities; None if it is supported."""
    if fit.verdict is Verdict.SUPPORTED:
        return None
    own = [reason for reason in variant.every_reason if reason.code in variant.because]
    missing = [reason for offered in fit.lacking for reason in offered.reasons]
    return next(r for r in (*own, *missing, *fit.denied) if r.severity.rank == fit.verdict.rank)


def describe_recommendation(evaluation: Evaluation, fit: Fit, needs: Needs) -> tuple[str, ...]:
    """Describe the recommendation, its trade-offs and its verdict; only one sentence if the best fit is unsupported, or
    the kind of Windows is unknown.
    """
    stated = ", ".join(evaluation.assessment.stated)
    note = (f"Stated, not read: {stated}. Verdicts and reasons that depend on it say so.",) if stated else ()
    if fit.verdict is Verdict.UNSUPPORTED:
        desired = " and meets the requirements" if needs.must else ""
        return (f"No option works here as it is{desired}.", *note)
    if evaluation.assessment.recommended is None:
        return ("No recommendation: it is unknown which Windows this is.", *note)
    topic = catalogue.topics()[path_of(fit.variant)]
    costs = " ".join(filter(None, (topic.loses, topic.asks.get(fit.variant))))
    trade_offs = (f"Trade-offs: {costs}",) if costs else ()
    return f"Recommended: {fit.variant}. {topic.means}", *trade_offs, _describe_fit(fit, needs), *note


def _describe_fit(fit: Fit, needs: Needs) -> str:
    missed = (
        f" Nice to have, unavailable: {', '.join(offered.capability for offered in fit.missed)}." if fit.missed else ""
    )
    desired = " and meets all requirements" if needs.must else ""
    match fit.verdict:
        case Verdict.SUPPORTED:
            return f"It is supported{desired}.{missed}"
        case Verdict.DEGRADED:
            return f"Works, with limitations: see below.{missed}"
        case _:
            return f"Unverified on this host; no verified option meets your needs.{missed}"


def describe_settling_commands(evaluation: Evaluation) -> tuple[str, ...]:
    """Return lines with commands to run if nothing can be recommended, or if imported facts lack facts for verdicts."""
    if not evaluation.settle or (
        evaluation.assessment.recommended is not None and evaluation.assessment.origin != "imported"
    ):
        return ()
    lines = ["To read the unknown facts, run on that machine:"]
    for number, each in enumerate(evaluation.settle, 1):
        resources = dict.fromkeys(fact.partition(".")[0] for fact in each.settles)
        verb = "reason waits" if each.reasons == 1 else "reasons wait"
        lines += [f"{number}. {each.run}", f"{each.reasons} {verb} for this ({', '.join(resources)}). {each.then}"]
    return tuple(lines)


def describe_assumptions(assumptions: Supposed) -> str:
    """Return a sentence that marks a verdict as hypothetical, and names its assumptions."""
    remedies = f"as if {', '.join(assumptions.what_if)} were applied" if assumptions.what_if else ""
    needs = f"for a target that must offer {', '.join(assumptions.needs)}" if assumptions.needs else ""
    facts = f"with {', '.join(assumptions.assumed)} as stated" if assumptions.assumed else ""
    return f"Hypothetical: evaluated {' and '.join(filter(None, (remedies, needs, facts)))}."


def changes_heading(best: Fit, cheapest: Repair | None, path: str | None = None) -> str | None:
    """Return the heading of the cheapest changes, or a sentence that there are none; None if no change is needed."""
    if best.verdict.rank <= Verdict.DEGRADED.rank:
        return None
    if cheapest is None:
        return f"No known change would make {path or 'any option'} verified here."
    bought = ", including purchases" if any(mend.who == "money" for mend in cheapest.remedies) else ""
    return f"Cheapest changes that would make {cheapest.fit.variant} {cheapest.fit.verdict} here{bought}:"


def describe_smaller_workload(smaller: NearestFit) -> tuple[str, ...]:
    """Describe the smaller workload that a variant would fit: a sentence, then the arithmetic."""
    unknown = (f"Unknown even then: {', '.join(smaller.fix.unknown)}",) if smaller.fix.unknown else ()
    sentence = f"With a smaller workload, {smaller.variant} would work ({smaller.verdict}): {smaller.fix.text}."
    return (sentence, *smaller.fix.shows, *unknown)


def sort_by_severity(reasons: Iterable[Finding]) -> list[Finding]:
    """Sort reasons by severity, the most severe first; equal ones keep their order."""
    return sorted(reasons, key=lambda reason: -reason.severity.rank)


def name_capability(offered: CapabilityVerdict) -> str:
    """Return the name of a capability, with its measure if there is one."""
    return f"{offered.capability} ({offered.measure})" if offered.measure else offered.capability
