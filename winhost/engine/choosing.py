"""The path that a plan takes where nobody names one: the recommended one, so far as that may be taken unasked."""

from dataclasses import dataclass

from winhost.compat.assess import assess
from winhost.compat.needs import Fit, Needs, fits
from winhost.engine.planning import PLANNERS
from winhost.model.errors import Exit, WinhostError, visible
from winhost.model.path import path_of
from winhost.model.plan import RISKS, Plan
from winhost.model.reason import Verdict
from winhost.resources.host import HostFacts

# They take the machine itself, whatever they are worth on it.
NEVER_UNASKED = ("dual-boot", "bare-metal")


@dataclass(eq=False)
class NotChosen(WinhostError):
    """The best option is none that is taken unless somebody names it. why: None where there is no option at all."""

    exit_code = Exit.REFUSED

    host: str
    variant: str
    verdict: str
    why: str | None

    @property
    def what(self) -> str:
        if self.why is None:
            return f"no option works on {visible(self.host)} as it is"
        return f"the best option on {visible(self.host)} is {self.variant} ({self.verdict}), which has to be named"

    @property
    def meaning(self) -> str | None:
        return self.why

    @property
    def hint(self) -> str:
        unverified = " --allow-unverified" if self.verdict == Verdict.UNVERIFIED else ""
        path = path_of(self.variant)
        here = visible(self.host)
        if self.why is None:
            return f"What would make one work: winhost assess {here}"
        if path not in PLANNERS:
            return (
                f"winhost cannot plan it yet. What else there is here: winhost assess {here}\nTo plan another one: "
                + (" or ".join(f"winhost plan {here} --path {each}" for each in PLANNERS))
            )
        return f"Plan it all the same: winhost plan {here} --path {path}{unverified}"


def recommended(facts: HostFacts) -> Fit:
    """What assess recommends. Raises NotChosen where that is not planned without being named."""
    judged = assess(facts)
    best = fits(judged, Needs())[0]
    path = path_of(best.variant)
    if judged.recommended is None:
        raise NotChosen(facts.host, best.variant, best.verdict, None)
    why = None
    if path in NEVER_UNASKED:
        why = "It takes the machine itself, and is never chosen by default."
    elif best.verdict is Verdict.UNVERIFIED:
        why = "Nobody has verified it on a host like this one."
    elif path not in PLANNERS:
        why = "winhost recommends it and cannot plan it yet."
    if why is not None:
        raise NotChosen(facts.host, best.variant, best.verdict, why)
    return best


def check_unasked(plan: Plan, best: Fit) -> None:
    """Raises NotChosen for a plan of a path that nobody named, and that needs the consent `data`."""
    if "data" in plan.risks:
        raise NotChosen(plan.host, best.variant, best.verdict, f"It asks for the consent data: {RISKS['data']}.")
