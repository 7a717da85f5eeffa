"""The command to type after `assess`: only one that works as printed."""

from collections.abc import Sequence

from winhost.compat.evaluation import Evaluation, Requirements
from winhost.compat.needs import Fit
from winhost.model.path import ON_REQUEST, path_of
from winhost.model.reason import PLAN, Finding, PathVerdict, Verdict
from winhost.paths.vocabulary import VOCABULARIES

NEEDS_SETTINGS = ("dual-boot.bitlocker",)
"""Reasons for which a plan asks for settings that only the user knows."""


def after_assess(answer: Evaluation, asked: Requirements, named: Sequence[str], live: bool) -> Sequence[str] | None:
    """The command that leads on from a host: the plan of its best option, or why there is none. named: the words that
    name the host or its facts. None after a hypothesis that the plan does not share: a live host is asked, and is told
    nothing.
    """
    if asked.remedies or (asked.assumed and live):
        return None
    best = next((fit for fit in answer.fits if asked.path in (None, fit.variant, path_of(fit.variant))), None)
    if best is None:
        return None
    variant = next(each for each in answer.assessment.every_variant if each.path == best.variant)
    unknown = answer.assessment.recommended is None
    if best.verdict is Verdict.UNSUPPORTED or unknown or path_of(best.variant) not in VOCABULARIES:
        return _remedy(answer, best, variant, named)
    if stopped := [each.code for each in variant.every_reason if _stops(each)]:
        return ("explain", stopped[0])
    return ("plan", *named, *_options(asked, best, variant))


def _stops(reason: Finding) -> bool:
    return reason.code in NEEDS_SETTINGS or (reason.subject == PLAN and not reason.code.endswith(".later"))


def _remedy(answer: Evaluation, best: Fit, variant: PathVerdict, named: Sequence[str]) -> Sequence[str] | None:
    if answer.changes and answer.changes.remedies:
        return ("assess", *named, *(word for each in answer.changes.remedies for word in ("--what-if", each.id)))
    lacking = [reason for offered in best.lacking for reason in offered.reasons]
    codes = (*variant.because, *(reason.code for reason in (*best.denied, *lacking)))
    return ("explain", codes[0]) if codes else None


def _options(asked: Requirements, best: Fit, variant: PathVerdict) -> Sequence[str]:
    vms = sorted(variant.vms, key=lambda vm: vm.verdict.rank)
    return (
        "--path",
        best.variant,
        *(("--vm", vms[0].name) if len(vms) > 1 else ()),
        *ON_REQUEST.get(best.variant, ()),
        *(word for each in asked.assumed for word in ("--assume", each.word)),
        *(("--allow-unverified",) if best.verdict is Verdict.UNVERIFIED else ()),
    )
