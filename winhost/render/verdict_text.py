"""Sentences about verdicts that the terminal and the report share."""

from collections.abc import Iterable

from winhost.compat.evaluation import Evaluation, Supposed
from winhost.compat.needs import Fit, NearestFit, Needs
from winhost.compat.remedy import Repair
from winhost.knowledge import catalogue
from winhost.model.path import path_of
from winhost.model.reason import CapabilityVerdict, Finding, PathVerdict, Verdict


def decisive(variant: PathVerdict, fit: Fit) -> Finding | None:
    """The first reason that decides the verdict, of the variant or of its capabilities; None where supported."""
    if fit.verdict is Verdict.SUPPORTED:
        return None
    own = [reason for reason in variant.every_reason if reason.code in variant.because]
    lacking = [reason for offered in fit.lacking for reason in offered.reasons]
    return next(r for r in (*own, *lacking, *fit.denied) if r.severity.rank == fit.verdict.rank)


def recommendation(answer: Evaluation, fit: Fit, needs: Needs) -> tuple[str, ...]:
    """Word the recommendation, its cost, and how sure it is; one sentence where the best fit is unsupported, or the
    kind of Windows is unknown.
    """
    stated = ", ".join(answer.assessment.stated)
    marked = (f"Stated, not read: {stated}. Verdicts and reasons that depend on it say so.",) if stated else ()
    if fit.verdict is Verdict.UNSUPPORTED:
        desired = " and meets the requirements" if needs.must else ""
        return (f"No option works here as it is{desired}.", *marked)
    if answer.assessment.recommended is None:
        return ("No recommendation: it is unknown which Windows this is.", *marked)
    topic = catalogue.topics()[path_of(fit.variant)]
    costs = " ".join(filter(None, (topic.loses, topic.asks.get(fit.variant))))
    trade_offs = (f"Trade-offs: {costs}",) if costs else ()
    return f"Recommended: {fit.variant}. {topic.means}", *trade_offs, _standing(fit, needs), *marked


def _standing(fit: Fit, needs: Needs) -> str:
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


def settling(answer: Evaluation) -> tuple[str, ...]:
    """The command to run where nothing can be recommended, or imported facts lack what verdicts wait for."""
    if not answer.settle or (answer.assessment.recommended is not None and answer.assessment.origin != "imported"):
        return ()
    lines = ["To settle what is unknown, run on that machine:"]
    for number, each in enumerate(answer.settle, 1):
        resources = dict.fromkeys(fact.partition(".")[0] for fact in each.settles)
        wait = "reason waits" if each.reasons == 1 else "reasons wait"
        lines += [f"{number}. {each.run}", f"{each.reasons} {wait} for this ({', '.join(resources)}). {each.then}"]
    return tuple(lines)


def supposed(what: Supposed) -> str:
    """Mark a verdict as hypothetical and name what was assumed for it."""
    done = f"as if {', '.join(what.what_if)} were applied" if what.what_if else ""
    offered = f"for a target that must offer {', '.join(what.needs)}" if what.needs else ""
    known = f"with {', '.join(what.assumed)} as stated" if what.assumed else ""
    return f"Hypothetical: evaluated {' and '.join(filter(None, (done, offered, known)))}."


def changes(best: Fit, cheapest: Repair | None, path: str | None = None) -> str | None:
    """The heading of the cheapest changes, or that there are none; None where the best fit needs no change."""
    if best.verdict.rank <= Verdict.DEGRADED.rank:
        return None
    if cheapest is None:
        return f"No known change would make {path or 'any option'} verified here."
    bought = ", including purchases" if any(mend.who == "money" for mend in cheapest.remedies) else ""
    return f"Cheapest changes that would make {cheapest.fit.variant} {cheapest.fit.verdict} here{bought}:"


def nearest(found: NearestFit) -> tuple[str, ...]:
    """The smaller workload that a variant would fit, with its arithmetic: first what, then how much."""
    unknown = (f"Unknown even then: {', '.join(found.fix.unknown)}",) if found.fix.unknown else ()
    sentence = f"With a smaller workload, {found.variant} would work ({found.verdict}): {found.fix.text}."
    return (sentence, *found.fix.shows, *unknown)


def heaviest_first(reasons: Iterable[Finding]) -> list[Finding]:
    """Reasons by their weight, else in the order in which they were found."""
    return sorted(reasons, key=lambda reason: -reason.severity.rank)


def named(offered: CapabilityVerdict) -> str:
    """A capability with how much of it there is, or which."""
    return f"{offered.capability} ({offered.measure})" if offered.measure else offered.capability
