"""Describe a run that stopped before its end: its present state, how to resume it, and how to roll it back."""

from collections.abc import Iterator, Sequence

from winhost.connect.wire_errors import NotAvailable, RemoteError
from winhost.core.dataclass import dataclass
from winhost.core.order import NoInstance
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.path import path_of
from winhost.model.plan import RISKS
from winhost.model.reason import Verdict
from winhost.resources.registry import title_of

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


NOT_PLANNABLE = "not plannable"


@dataclass(frozen=True)
class RefusalGrounds:
    """The grounds on which a path is refused.

    named: how a command names the host; because: sentences; codes: of the reasons; helps: what would change it;
    choices: options of `winhost plan` with which it would work; instead: another option for this host; still: what
    refuses the plan with --allow-unverified.
    """

    path: str
    named: str
    verdict: str
    because: tuple[str, ...]
    codes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    choices: str | None = None
    instead: str | None = None
    still: str | None = None


class PlanRefused(EndOfRun):
    """A plan that is known to fail, or that nobody has verified, is refused before its first step, or a later stage is.

    retry_options: the options of `resume` that choose another value.
    """

    def __init__(
        self, host: str, grounds: RefusalGrounds, run: str | None = None, retry_options: str | None = None
    ) -> None:
        super().__init__(
            "Refused",
            what=f"{grounds.path} is {grounds.verdict} on {host}",
            meaning="\n".join(grounds.because),
            host=host,
            run=run,
            next_steps=next_steps_of(run, retry_options=retry_options) if run else (),
            exit_code=Exit.REFUSED,
        )
        commands = (f"{label}: {command}" for label, command in self.next_steps)
        self.hint = "\n".join((*_advice(host, grounds, fresh=not run), *commands))
        self.grounds = grounds

    def in_run(self, run: str, retry_options: str) -> "PlanRefused":
        """This refusal, as that of a later stage of a run."""
        return PlanRefused(self.host, self.grounds, run, retry_options)


def _advice(host: str, grounds: RefusalGrounds, *, fresh: bool) -> Iterator[str]:
    """fresh: no run has begun; later, it is too late to plan otherwise."""
    if grounds.helps:
        yield f"What would help: {' '.join(grounds.helps)}"
    if grounds.choices and fresh:
        path = path_of(grounds.path)
        yield visible(f"It would work with: winhost plan {grounds.named} --path {path} {grounds.choices}")
    if grounds.codes:
        yield f"Details: winhost explain {grounds.codes[0]}"
    if grounds.verdict == NOT_PLANNABLE:
        yield f"Read it from the host, as an administrator: winhost detect {visible(host)} -o facts"
    if grounds.verdict == Verdict.UNVERIFIED and fresh:
        if grounds.still:
            yield f"With --allow-unverified it is still refused: {grounds.still}"
        else:
            yield "Plan it all the same: --allow-unverified"
    if grounds.instead and fresh:
        yield f"This host can do: {grounds.instead}"


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


def gone(host: str, missing: NoInstance, named: str) -> WinhostError:
    """named: as a command names the host."""
    return WinhostError("Gone", what=f"{host} {missing}", hint=f"Read it again: winhost plan {named}", host=host)


def in_words(error: WinhostError) -> str:
    """Say what happened, with resources called by their titles instead of their type names."""
    if not isinstance(error, NotAvailable | RemoteError):
        return error.what
    doing = " ".join(map(title_of, error.doing.split(" ")))
    what = error.what.replace(f": {error.doing}: ", f": {doing}: ", 1)
    if isinstance(error, NotAvailable):
        what = what.replace(f"until {error.needs} is", f"until {title_of(error.needs)} is")
    return what


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
