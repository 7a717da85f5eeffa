"""The path that a plan takes where nobody names one: the recommended one, so far as that may be taken unasked."""

from collections.abc import Callable, Sequence

from winhost.compat.assess import assess
from winhost.compat.common import no_cuda, no_gpu
from winhost.compat.needs import Fit, Needs, fits
from winhost.core.answers import MissingFact
from winhost.engine.planning import PLANNERS
from winhost.model.errors import RefusedError, visible
from winhost.model.path import path_of
from winhost.model.plan import RISKS, Plan
from winhost.model.reason import Assessment, Severity, Verdict
from winhost.resources.host import HostFacts

# They take the machine itself, whatever they are worth on it.
NEVER_UNASKED = ("dual-boot", "bare-metal")


Command = Callable[..., str]
"""The command that is typed again, with these words more."""


def _not_chosen(
    host: str, variant: str, verdict: Verdict, why: str, command: Command | None, others: Sequence[str] = ()
) -> RefusedError:
    """The best option is not one that is taken unless somebody names it. others: paths that can be planned instead."""
    here = visible(host)
    what = f"the best option on {here} is {variant} ({verdict}), which has to be named"
    return _refused(host, what, why, _how_to_name(here, path_of(variant), verdict, command, others))


def _none_works(facts: HostFacts, judged: Assessment, closest: Fit) -> RefusedError:
    here = visible(facts.host)
    what, hint = f"no option works on {here} as it is", f"What would make one work: winhost assess {here}"
    return _refused(facts.host, what, _lacking_gpu(facts) or _first_reason(judged, closest), hint)


def _refused(host: str, what: str, meaning: str | None, hint: str) -> RefusedError:
    return RefusedError("NotChosen", what=what, meaning=meaning, hint=hint, host=host)


def _lacking_gpu(facts: HostFacts) -> str | None:
    """Said first, whatever else stands in the way."""
    if facts.is_linux:
        return None
    try:
        if no_gpu(facts):
            return "It has no GPU."
        others = no_cuda(facts)
    except MissingFact:
        return None
    return f"winhost serves with CUDA, and none of its GPUs is NVIDIA's: {visible(others)}." if others else None


def _first_reason(judged: Assessment, closest: Fit) -> str | None:
    reasons = next(each.every_reason for each in judged.every_variant if each.path == closest.variant)
    why = next((each for each in reasons if each.severity is Severity.UNSUPPORTED), None)
    return f"{closest.variant}: {why.sentence} [{why.code}]" if why else None


def _how_to_name(host: str, path: str, verdict: Verdict, command: Command | None, others: Sequence[str]) -> str:
    if path in PLANNERS:
        if command:
            unverified = ("--allow-unverified",) if verdict is Verdict.UNVERIFIED else ()
            return f"Do it all the same: {command('--path', path, *unverified)}"
        more = " --allow-unverified" if verdict is Verdict.UNVERIFIED else ""
        return f"Plan it all the same: winhost plan {host} --path {path}{more}"
    head = f"winhost cannot plan it yet. What else there is here: winhost assess {host}"
    named = [command("--path", each) if command else f"winhost plan {host} --path {each}" for each in others]
    return f"{head}\nTo {'take' if command else 'plan'} another one: {' or '.join(named)}" if named else head


def recommended(facts: HostFacts, command: Command | None = None) -> Fit:
    """The path that assess recommends. Raises RefusedError (NotChosen) where that is not planned without being named.
    command: the one that asks, where it is not `winhost plan`.
    """
    judged = assess(facts)
    best = fits(judged, Needs())[0]
    path = path_of(best.variant)
    if judged.recommended is None:
        raise _none_works(facts, judged, best)
    why = None
    if path in NEVER_UNASKED:
        why = "It takes the machine itself, and is never chosen by default."
    elif best.verdict is Verdict.UNVERIFIED:
        why = "Nobody has verified it on a host like this one."
    elif path not in PLANNERS:
        why = "winhost recommends it and cannot plan it yet."
    if why is not None:
        others = [
            each.path for each in judged.paths if each.path in PLANNERS and each.verdict is not Verdict.UNSUPPORTED
        ]
        raise _not_chosen(facts.host, best.variant, best.verdict, why, command, others)
    return best


def check_unasked(plan: Plan, best: Fit, command: Command | None = None) -> None:
    """Raises RefusedError (NotChosen) for a plan of a path that nobody named, and that needs the consent `data`."""
    if "data" in plan.risks:
        why = f"It asks for the consent data: {RISKS['data']}."
        raise _not_chosen(plan.host, best.variant, best.verdict, why, command)
