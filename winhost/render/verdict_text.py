"""Sentences about verdicts that terminal and report share, so that both say the same of a host."""

from collections.abc import Iterable

from winhost.compat.answer import Judged, Supposed
from winhost.compat.needs import Fit, Nearest, Needs
from winhost.compat.remedy import Mended
from winhost.compat.settle import Settling
from winhost.knowledge import catalogue
from winhost.model.path import path_of
from winhost.model.reason import CapabilityVerdict, PathVerdict, Reason, Verdict


def decisive(variant: PathVerdict, fit: Fit) -> Reason | None:
    """The first reason that the verdict rests on, of the way or of what it lacks or denies; None where supported."""
    if fit.verdict is Verdict.SUPPORTED:
        return None
    own = [reason for reason in variant.every_reason if reason.code in variant.because]
    lacking = [reason for offered in fit.lacking for reason in offered.reasons]
    return next(r for r in (*own, *lacking, *fit.denied) if r.severity.rank == fit.verdict.rank)


def recommendation(answer: Judged, fit: Fit, needs: Needs) -> tuple[str, ...]:
    """What is recommended, what it costs and how sure it is: three sentences; one where the best fit is no way, or
    where nobody knows which Windows this is.
    """
    stated = ", ".join(answer.assessment.stated)
    marked = (f"Stated, and not read: {stated}. Verdicts and reasons that rest on it say so.",) if stated else ()
    return (*_recommended(answer, fit, needs), *marked)


def _recommended(answer: Judged, fit: Fit, needs: Needs) -> tuple[str, ...]:
    if fit.verdict is Verdict.UNSUPPORTED:
        desired = " with what is needed" if needs.must else ""
        return (f"No way works here{desired} as it is.",)
    if answer.assessment.recommended is None:
        return ("Nothing is recommended: it is not known which Windows this is.",)
    topic = catalogue.topics()[path_of(fit.variant)]
    costs = " ".join(filter(None, (topic.loses, topic.asks.get(fit.variant))))
    return f"Recommended: {fit.variant}. {topic.means}", f"What it costs: {costs}", _standing(fit, needs)


def _standing(fit: Fit, needs: Needs) -> str:
    missed = f" Welcome and not there: {', '.join(offered.capability for offered in fit.missed)}." if fit.missed else ""
    desired = " and offers all that is needed" if needs.must else ""
    match fit.verdict:
        case Verdict.SUPPORTED:
            return f"It is supported{desired}.{missed}"
        case Verdict.DEGRADED:
            return f"It works, with something given up: see below.{missed}"
        case _:
            return f"Nobody has verified it here, and no verified way meets the need.{missed}"


def settling(answer: Judged) -> tuple[str, ...]:
    """What to run there, where nothing can be recommended, or facts of an import lack what verdicts wait for."""
    if not answer.settle or (answer.assessment.recommended is not None and answer.assessment.origin != "imported"):
        return ()
    lines = (line for number, each in enumerate(answer.settle, 1) for line in (f"{number}. {each.run}", _settled(each)))
    return ("To settle what is not known, run there:", *lines)


def _settled(each: Settling) -> str:
    resources = dict.fromkeys(fact.partition(".")[0] for fact in each.settles)
    wait = "reason waits" if each.reasons == 1 else "reasons wait"
    return f"{each.reasons} {wait} for it ({', '.join(resources)}). {each.then}"


def supposed(what: Supposed) -> str:
    """That a verdict is no fact: what was supposed for it."""
    done = f"as if {', '.join(what.what_if)} were done" if what.what_if else ""
    offered = f"for a target that has to offer {', '.join(what.needs)}" if what.needs else ""
    known = f"with {', '.join(what.assumed)} as stated" if what.assumed else ""
    return f"Hypothetical: judged {' and '.join(filter(None, (done, offered, known)))}."


def changes(best: Fit, cheapest: Mended | None, path: str | None = None) -> str | None:
    """What heads the cheapest changes, or says that there are none; None where the best fit needs no change."""
    if best.verdict.rank <= Verdict.DEGRADED.rank:
        return None
    if cheapest is None:
        return f"winhost knows no changes that would make {path or 'a way'} work here with a verified verdict."
    bought = ", which has to be bought" if any(mend.who == "money" for mend in cheapest.remedies) else ""
    return f"What would make {cheapest.fit.variant} {cheapest.fit.verdict} here, the cheapest way{bought}:"


def nearest(found: Nearest) -> tuple[str, ...]:
    """The smaller workload that a way would carry, with its arithmetic: the first says what, the others how much."""
    unknown = (f"Not known even then: {', '.join(found.fix.unknown)}",) if found.fix.unknown else ()
    said = f"With a smaller workload {found.variant} would do ({found.verdict}): {found.fix.text}."
    return (said, *found.fix.shows, *unknown)


def heaviest_first(reasons: Iterable[Reason]) -> list[Reason]:
    """Reasons by their weight, else in the order in which they were found."""
    return sorted(reasons, key=lambda reason: -reason.severity.rank)


def remedy(reason: Reason) -> str | None:
    """What to do about it, and whether anybody has seen it help."""
    if reason.remedy is None:
        return None
    mend = catalogue.remedies()[reason.remedy]
    return f"{mend.do}{' (unverified)' if mend.unverified else ''}"


def named(offered: CapabilityVerdict) -> str:
    """A capability with how much of it there is, or which."""
    return f"{offered.capability} ({offered.measure})" if offered.measure else offered.capability
