"""Errors of runs that stopped before their end, with the commands that resume them or roll them back."""

from collections.abc import Iterator, Sequence

from winhost.connect.wire_errors import NotAvailable, RemoteError
from winhost.core.dataclass import dataclass
from winhost.core.order import NoInstance
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.path import path_of
from winhost.model.plan import RISKS
from winhost.model.reason import Verdict
from winhost.resources.registry import title_of

NextStep = tuple[str, str]  # a label, and a command


class RunInterrupted(WinhostError):
    """A run stopped before its end.

    run: None if it has no journal yet; next_steps: commands for the user, by default those that resume the run and
    roll it back.
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
    amend_options: str | None = None,
) -> tuple[NextStep, ...]:
    """Return the commands that resume the run and roll it back, each with a label.

    accept: missing consents; retry_options: options of `resume` that choose another value; amend_options: the same, if
    the user has chosen it and only consents are missing.
    """
    arguments = (f" {amend_options}" if amend_options else "") + (f" --accept {','.join(accept)}" if accept else "")
    if going_back:
        return (("Continue the rollback", f"winhost rollback {run}{arguments}"),)
    choose = (("Choose otherwise", f"winhost resume {run} {retry_options}"),) if retry_options else ()
    return *choose, ("Continue", f"winhost resume {run}{arguments}"), ("Roll back", f"winhost rollback {run}")


class ConsentNeeded(RunInterrupted):
    """Steps need a consent that was not given. Nothing was changed since the last stage.

    changed: the run has changed something before in this direction, so that this is no usage error; retry_options: the
    options of `resume` with which the user chose another value that needs the consents.
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
            next_steps=next_steps_of(run, going_back, risks, amend_options=retry_options) if run else (),
            exit_code=Exit.FAILURE if changed else Exit.USAGE,
        )
        if not run:
            self.hint = f"Add --accept {','.join(risks)}"
        self.risks, self.changed, self.retry_options = risks, changed, retry_options


NOT_PLANNABLE = "not plannable"


@dataclass(frozen=True)
class RefusalGrounds:
    """The grounds on which a path is refused.

    named: the host's name in commands; reasons: sentences; codes: of the reasons; remedies: sentences; working_options:
    options of `winhost plan` with which the path would work; alternative: another path for this host;
    remaining_refusal: why the plan would be refused even with --allow-unverified.
    """

    path: str
    named: str
    verdict: str
    reasons: tuple[str, ...]
    codes: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    working_options: str | None = None
    alternative: str | None = None
    remaining_refusal: str | None = None


class PlanRefused(RunInterrupted):
    """A plan, or a later stage of a run, is refused before its first step, because it would fail or is unverified.

    retry_options: the options of `resume` that choose another value.
    """

    def __init__(
        self, host: str, grounds: RefusalGrounds, run: str | None = None, retry_options: str | None = None
    ) -> None:
        super().__init__(
            "Refused",
            what=f"{grounds.path} is {grounds.verdict} on {host}",
            meaning="\n".join(grounds.reasons),
            host=host,
            run=run,
            next_steps=next_steps_of(run, retry_options=retry_options) if run else (),
            exit_code=Exit.REFUSED,
        )
        commands = (f"{label}: {command}" for label, command in self.next_steps)
        self.hint = "\n".join((*_advice(host, grounds, fresh=not run), *commands))
        self.grounds = grounds

    def for_run(self, run: str, retry_options: str) -> "PlanRefused":
        """Return this refusal as that of a later stage of a run."""
        return PlanRefused(self.host, self.grounds, run, retry_options)


def _advice(host: str, grounds: RefusalGrounds, *, fresh: bool) -> Iterator[str]:
    """Yield the advice for a refusal. fresh: no run has started, so the user can still plan something else."""
    if grounds.remedies:
        yield f"What would help: {' '.join(grounds.remedies)}"
    if grounds.working_options and fresh:
        path = path_of(grounds.path)
        yield visible(f"It would work with: winhost plan {grounds.named} --path {path} {grounds.working_options}")
    if grounds.codes:
        yield f"Details: winhost explain {grounds.codes[0]}"
    if grounds.verdict == NOT_PLANNABLE:
        yield f"Read it from the host, as an administrator: winhost detect {visible(host)} -o facts"
    if grounds.verdict == Verdict.UNVERIFIED and fresh:
        if grounds.remaining_refusal:
            yield f"With --allow-unverified it is still refused: {grounds.remaining_refusal}"
        else:
            yield "Plan it all the same: --allow-unverified"
    if grounds.alternative and fresh:
        yield f"This host can do: {grounds.alternative}"


def wrong_host_error(host: str, planned: str, actual: str) -> UsageError:
    """Make the error for a host that is not the machine of the plan. planned, actual: machine ids."""
    return UsageError(
        "WrongHost",
        what=f"{host} is not the machine that this was planned for: its id is {actual}, not {planned}",
        meaning="Nothing was changed on it. Perhaps the name in fleet.yaml now leads to another machine.",
        hint=f"Plan for this one: winhost plan {host}",
        host=host,
    )


def unfinished_run_error(host: str, run: str, going_back: bool) -> RunInterrupted:
    """Make the error for a host with an unfinished run. The changes of that run would look like somebody else's."""
    return RunInterrupted(
        "Unfinished",
        what=f"{host}: a run has not ended yet: {run}",
        meaning="Nothing was changed. Another run on top of it could not be rolled back to where the host began.",
        host=host,
        run=run,
        going_back=going_back,
    )


def missing_instance_error(host: str, missing: NoInstance, named: str) -> WinhostError:
    """Make the error for an instance that the host does not have. named: the host's name in commands."""
    return WinhostError("Gone", what=f"{host} {missing}", hint=f"Read it again: winhost plan {named}", host=host)


def describe_error(error: WinhostError) -> str:
    """Say what happened, with titles of resources instead of their type names."""
    if not isinstance(error, NotAvailable | RemoteError):
        return error.what
    doing = " ".join(map(title_of, error.doing.split(" ")))
    what = error.what.replace(f": {error.doing}: ", f": {doing}: ", 1)
    if isinstance(error, NotAvailable):
        what = what.replace(f"until {error.needs} is", f"until {title_of(error.needs)} is")
    return what


def halted_error(
    host: str, run: str, error: WinhostError, going_back: bool = False, retry_options: str | None = None
) -> RunInterrupted:
    """Make the error for a run that stopped because of another error after it had changed something.

    retry_options: the options of `resume` that choose another value, if that may help.
    """
    # Only the hint of a usage error applies: other hints assume that nothing was changed yet.
    correction = error.hint if isinstance(error, UsageError) else None
    return RunInterrupted(
        "Halted",
        what=error.what,
        meaning="\n".join(filter(None, (error.meaning, correction, "What this run has changed stands."))),
        host=host,
        run=run,
        going_back=going_back,
        next_steps=next_steps_of(run, going_back, retry_options=retry_options),
        exit_code=Exit.FAILURE if error.exit_code == Exit.USAGE else error.exit_code,  # 2 means that nothing was done
    )
