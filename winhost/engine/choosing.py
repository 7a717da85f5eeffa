"""Choose the path of a plan for which the user names none: the recommended one, if it may be chosen by default."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress

from winhost.compat.assess import assess
from winhost.compat.common import no_cuda, no_gpu
from winhost.compat.needs import Fit, Needs, fit_paths
from winhost.core.answers import MissingFact
from winhost.engine.planning import PLANNERS
from winhost.model.errors import RefusedError, visible
from winhost.model.path import path_of
from winhost.model.plan import RISKS, Plan
from winhost.model.reason import Assessment, Severity, Verdict
from winhost.resources.host import HostFacts

# These paths install another system on the machine, so they must be named.
EXPLICIT_ONLY_PATHS = ("dual-boot", "bare-metal")


Command = Callable[..., str]
"""Formats the command of the user with more arguments."""
Options = tuple[str, ...]
"""The arguments of `winhost plan` after `--path`: a path, and options."""


def _not_chosen_error(
    facts: HostFacts, best: Fit, options: Options, why: str, command: Command | None, others: Sequence[Options] = ()
) -> RefusedError:
    """Make the error for a recommended path that is not chosen by default. options: the arguments that choose it;
    others: the arguments that choose other paths.
    """
    what = f"the best option on {visible(facts.host)} is {best.variant} ({best.verdict}), which has to be named"
    if options[0] in PLANNERS:
        unverified = ("--allow-unverified",) if best.verdict is Verdict.UNVERIFIED else ()
        if command:
            hint = f"Do it all the same: {command('--path', options[0], *unverified)}"
        else:
            hint = f"Plan it all the same: winhost plan {facts.named} --path {_quote_options((*options, *unverified))}"
        return _refused_error(facts.host, what, why, hint)
    hint = f"winhost cannot plan it yet. What else there is here: winhost assess {facts.named}"
    if command:
        commands = [command("--path", other[0]) for other in others]
    else:
        commands = [f"winhost plan {facts.named} --path {_quote_options(other)}" for other in others]
    if commands:
        hint += f"\nTo {'take' if command else 'plan'} another one: {' or '.join(commands)}"
    return _refused_error(facts.host, what, why, hint)


def _refused_error(host: str, what: str, meaning: str | None, hint: str) -> RefusedError:
    return RefusedError("NotChosen", what=what, meaning=meaning, hint=hint, host=host)


def _why_unsupported(facts: HostFacts, judged: Assessment, closest: Fit) -> str | None:
    """Say why no path works. A missing GPU comes before all other reasons."""
    with suppress(MissingFact):
        if not facts.is_linux and no_gpu(facts):
            return "It has no GPU."
        if not facts.is_linux and (others := no_cuda(facts)):
            return f"winhost serves with CUDA, and none of its GPUs is NVIDIA's: {visible(others)}."
    reasons = next(each.every_reason for each in judged.every_variant if each.path == closest.variant)
    why = next((each for each in reasons if each.severity is Severity.UNSUPPORTED), None)
    return f"{closest.variant}: {why.sentence} [{why.code}]" if why else None


def _quote_options(options: Options) -> str:
    return visible(shlex.join(options))


def recommend_path(facts: HostFacts, command: Command | None = None) -> Fit:
    """Return the path that assess recommends. command: the present command, if it is not `winhost plan`. Raises
    RefusedError (NotChosen) if the path is not chosen by default.
    """
    judged = assess(facts)
    best = fit_paths(judged, Needs())[0]
    path = path_of(best.variant)
    if judged.recommended is None:
        what = f"no option works on {visible(facts.host)} as it is"
        hint = f"What would make one work: winhost assess {facts.named}"
        raise _refused_error(facts.host, what, _why_unsupported(facts, judged, best), hint)
    why = None
    if path in EXPLICIT_ONLY_PATHS:
        why = "It takes the machine itself, and is never chosen by default."
    elif best.verdict is Verdict.UNVERIFIED:
        why = "Nobody has verified it on a host like this one."
    elif path not in PLANNERS:
        why = "winhost recommends it and cannot plan it yet."
    if why is not None:
        options = {each.path: each.path_and_options for each in judged.paths}
        possible = [each.path for each in judged.paths if each.verdict is not Verdict.UNSUPPORTED]
        others = [options[each] for each in possible if each in PLANNERS]
        raise _not_chosen_error(facts, best, options[path], why, command, others)
    return best


def check_default_plan(facts: HostFacts, plan: Plan, best: Fit, command: Command | None = None) -> None:
    """Refuse a plan of a default path that needs the consent `data`. Raises RefusedError (NotChosen)."""
    if "data" in plan.risks:
        why = f"It asks for the consent data: {RISKS['data']}."
        raise _not_chosen_error(facts, best, (path_of(best.variant),), why, command)
