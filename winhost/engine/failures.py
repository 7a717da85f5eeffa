"""Describe a run that stopped before its end: its present state, how to resume it, and how to roll it back."""

from collections.abc import Iterator, Mapping, Sequence

from winhost.connect.wire_errors import NotAvailable, RemoteError
from winhost.core.answers import Json
from winhost.core.steps import Step
from winhost.model.errors import Exit, UsageError, WinhostError
from winhost.model.plan import RISKS
from winhost.resources.host import HostFacts
from winhost.resources.registry import titled

NextStep = tuple[str, str]  # what it is, and its command


class EndOfRun(WinhostError):
    """A run stopped before its end.

    run: None where none was begun; next_steps: how to go on or back; by default those of every run.
    """

    host: str

    def __init__(
        self,
        code: str,
        what: str,
        meaning: str | None = None,
        *,
        host: str,
        run: str | None,
        going_back: bool = False,
        next_steps: Sequence[NextStep] | None = None,
        exit_code: Exit = Exit.FAILURE,
    ) -> None:
        steps = next_steps if next_steps is not None else next_steps_of(run, going_back) if run else ()
        commands = "\n".join(f"{label}: {command}" for label, command in steps)
        hint = commands or "Nothing was changed. To do it after all, apply the plan again."
        super().__init__(code, what, meaning, hint, host=host)
        self.run, self.going_back, self.next_steps = run, going_back, tuple(steps)
        self.exit_code = exit_code


def next_steps_of(
    run: str,
    going_back: bool = False,
    accept: tuple[str, ...] = (),
    retry_options: str | None = None,
    going_on: str | None = None,
) -> tuple[NextStep, ...]:
    """The commands that resume the run and roll it back, each with a label.

    accept: consents that the first of them needs; retry_options: the options of `resume` that choose another value;
    going_on: the same, where it was chosen and only the consents are missing.
    """
    given = (f" {going_on}" if going_on else "") + (f" --accept {','.join(accept)}" if accept else "")
    if going_back:
        return (("Continue the rollback", f"winhost rollback {run}{given}"),)
    otherwise = (("Choose otherwise", f"winhost resume {run} {retry_options}"),) if retry_options else ()
    return *otherwise, ("Continue", f"winhost resume {run}{given}"), ("Roll back", f"winhost rollback {run}")


class ConsentNeeded(EndOfRun):
    """Steps that need a consent which was not given. Nothing was changed since the last stage.

    changed: the same run has changed something before that in this direction, so that it is not an error of usage;
    retry_options: the options of `resume` that choose another value, for which the consents are needed.
    """

    def __init__(
        self,
        host: str,
        run: str | None,
        risks: tuple[str, ...],
        going_back: bool = False,
        changed: bool = False,
        retry_options: str | None = None,
    ) -> None:
        super().__init__(
            "ConsentNeeded",
            what=f"{host}: this needs your consent: {', '.join(risks)}",
            meaning="\n".join(f"{risk}: {RISKS[risk]}" for risk in risks),
            host=host,
            run=run,
            going_back=going_back,
            next_steps=next_steps_of(run, going_back, risks, going_on=retry_options) if run else (),
            exit_code=Exit.FAILURE if changed else Exit.USAGE,
        )
        if not run:
            self.hint = f"Add --accept {','.join(risks)}"
        self.risks, self.changed, self.retry_options = risks, changed, retry_options


def wrong_host(host: str, planned: str, found: str) -> UsageError:
    """A plan is for one machine, whatever it is called today. planned, found: machine ids."""
    return UsageError(
        "WrongHost",
        what=f"{host} is not the machine that this was planned for: its id is {found}, not {planned}",
        meaning="Nothing was changed on it. Perhaps the name in fleet.yaml now leads to another machine.",
        hint=f"Plan for this one: winhost plan {host}",
        host=host,
    )


def unfinished(host: str, run: str, going_back: bool) -> EndOfRun:
    """A run of this host has not ended: what it left half done would look like somebody else's changes."""
    return EndOfRun(
        "Unfinished",
        what=f"{host}: a run has not ended yet: {run}",
        meaning="Nothing was changed. Another run on top of it could not be rolled back to where the host began.",
        host=host,
        run=run,
        going_back=going_back,
    )


# When a consent that a step may need would have helped.
_HELPS = {
    "force-dismount": "If the host says that nothing contains this device",
    "vm-turn-off": "If the guest does not shut down by itself",
    "containers": "If containers run that would end with Docker",
}


def step_failed(
    host: str,
    run: str,
    step: Step,
    error: RemoteError | NotAvailable,
    *,
    going_back: bool,
    lacking: Sequence[str],
    alone: bool,
    retry_options: str | None,
    facts: HostFacts,
) -> EndOfRun:
    """The host refused a step, or what the step needs is gone.

    lacking: consents that could have helped; alone: it was the first step of its run; retry_options: the options of
    `resume` that choose another value, where only this step could tell that the old one does not work; facts: of the
    host before this step, which rule out causes.
    """
    before = "It was the first step." if alone else "Steps before this one are done and journalled."
    when = ((risk, _HELPS.get(risk, "If the host asks for it")) for risk in lacking)
    helps = (f"{condition}, --accept {risk} allows: {RISKS[risk]}." for risk, condition in when)
    steps = next_steps_of(run, going_back, retry_options=retry_options)
    return EndOfRun(
        "StepFailed",
        what=f"{step.title}: {in_words(error)}",
        meaning="\n".join((" ".join((before, *helps)), *_likely(error, facts))),
        host=host,
        run=run,
        going_back=going_back,
        next_steps=(*steps, *_with_the_width(host, error)),
    )


def in_words(error: WinhostError) -> str:
    """Say what happened, with resources called by their titles instead of their type names."""
    if not isinstance(error, NotAvailable | RemoteError):
        return error.what
    doing = " ".join(map(titled, error.doing.split(" ")))
    what = error.what.replace(f": {error.doing}: ", f": {doing}: ", 1)
    if isinstance(error, NotAvailable):
        what = what.replace(f"until {error.needs} is", f"until {titled(error.needs)} is")
    return what


def _with_the_width(host: str, error: RemoteError | NotAvailable) -> Iterator[NextStep]:
    """A window that ends too high fails again however often the run goes on; another plan makes it smaller."""
    from winhost.symptoms.codes import address_bits  # what only a failure needs

    bits = address_bits(error.fault.message) if isinstance(error, RemoteError) else None
    if bits is not None:
        command = f"winhost plan {host} --path dda --set address_width={bits} (with the same VM and GPUs)"
        yield f"After rolling back, plan with the {bits} address bits that the host names", command


def _likely(error: RemoteError | NotAvailable, facts: HostFacts) -> Iterator[str]:
    """The likeliest cause of the host's error that the facts do not contradict."""
    from winhost.symptoms.diagnosis import of_fault  # what only a failure needs

    known = of_fault(error.fault, facts) if isinstance(error, RemoteError) else None
    cause = next((cause for cause in known.causes if cause.standing != "ruled-out"), None) if known else None
    if known and cause:
        yield f"Likely cause: {cause.sentence} To tell: {cause.tell}"
        yield f"Remedy: {cause.remedy} Other causes and sources: winhost explain {known.code}"


def not_taken(host: str, run: str, step: Step, lacking: Mapping[str, tuple[Json, Json]], going_back: bool) -> EndOfRun:
    """The host accepted a step and did something else. lacking: property → (desired, found)."""
    listed = "; ".join(f"{name} should be {desired!r}, is {found!r}" for name, (desired, found) in lacking.items())
    return EndOfRun(
        "NotTaken",
        what=f"{host}: {step.title}: accepted without error, but {listed}",
        host=host,
        run=run,
        going_back=going_back,
    )


def halted(
    host: str, run: str, error: WinhostError, going_back: bool = False, retry_options: str | None = None
) -> EndOfRun:
    """Something unusable or unplanned came to light when the run had changed something already.

    retry_options: the options of `resume` that choose another value, where that may help.
    """
    # How to correct what was given; what else an error advises is for somebody who has changed nothing yet.
    correction = error.hint if isinstance(error, UsageError) else None
    return EndOfRun(
        "Halted",
        what=error.what,
        meaning="\n".join(filter(None, (error.meaning, correction, "What this run has changed stands."))),
        host=host,
        run=run,
        going_back=going_back,
        next_steps=next_steps_of(run, going_back, retry_options=retry_options),
        exit_code=Exit.FAILURE if error.exit_code == Exit.USAGE else error.exit_code,  # 2 says that nothing was done
    )


def stage_never_ready(host: str, run: str | None, waiting: Mapping[str, str]) -> EndOfRun:
    """The remaining steps of a plan wait for something that did not come with the steps that should bring it. waiting:
    resource to what.
    """
    listed = ", ".join(f"{titled(resource)} (before {titled(until)} is there)" for resource, until in waiting.items())
    return EndOfRun(
        "NeverCame",
        what=f"{host}: all that could be planned is done, but this still cannot be: {listed}",
        meaning="The host was read again after the last step and is no further. Look at why, then go on.",
        host=host,
        run=run,
    )


def run_is_rolling_back(run: str) -> UsageError:
    """Such a run is not resumed in the other direction."""
    return UsageError("OneWay", what=f"{run} is going back; go on with that", hint=f"winhost rollback {run}")
