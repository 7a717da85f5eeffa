"""How a run can end before its end: each says what is so now, and the way on and the way back."""

from collections.abc import Mapping
from dataclasses import dataclass

from winhost.connect.wire_errors import NotAvailable, RemoteError
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.facts import Json
from winhost.model.plan import RISKS, Step
from winhost.resources.registry import titled


class EndOfRun(WinhostError):
    """Ends a run before its end, and knows the ways on and back. run: None where none was begun."""

    run: str | None
    host: str
    going_back: bool

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        """What each way is, and its command."""
        return ways(self.run, self.going_back) if self.run else ()

    @property
    def hint(self) -> str:
        if not self.ways:
            return "Nothing was changed. To do it after all, apply the plan again."
        return "\n".join(f"{what}: {command}" for what, command in self.ways)


def ways(
    run: str,
    going_back: bool = False,
    accept: tuple[str, ...] = (),
    anew: str | None = None,
    going_on: str | None = None,
) -> tuple[tuple[str, str], ...]:
    """On and back, as a label and a command each.

    accept: consents that the first of them needs; anew: the words of `resume` that choose another value; going_on: the
    same, where it was chosen and only the consents lack.
    """
    given = (f" {going_on}" if going_on else "") + (f" --accept {','.join(accept)}" if accept else "")
    if going_back:
        return (("Continue the rollback", f"winhost rollback {run}{given}"),)
    otherwise = (("Choose otherwise", f"winhost resume {run} {anew}"),) if anew else ()
    return *otherwise, ("Continue", f"winhost resume {run}{given}"), ("Roll back", f"winhost rollback {run}")


@dataclass(eq=False)
class Unfinished(EndOfRun):
    """A run of this host has not ended: what it left half done would look like somebody else's changes."""

    host: str
    run: str
    going_back: bool

    @property
    def what(self) -> str:
        return f"{self.host}: a run has not ended yet: {self.run}"

    @property
    def meaning(self) -> str:
        return "Nothing was changed. Another run on top of it could not be taken back to where the host began."


@dataclass(eq=False)
class CannotWrite(EndOfRun):
    """The journal cannot be written here, so that nothing more is done there."""

    run: str | None
    host: str
    going_back: bool
    why: str

    @property
    def what(self) -> str:
        return f"{self.host}: the journal cannot be written: {visible(self.why)}"

    @property
    def meaning(self) -> str:
        return "No step is begun before the journal says so on disk; make room for it in the state folder."


@dataclass(eq=False)
class WrongHost(UsageError):
    """A plan is for one machine, whatever it is called today."""

    host: str
    desired: str
    found: str

    @property
    def what(self) -> str:
        return f"{self.host} is not the machine that this was planned for: its id is {self.found}, not {self.desired}"

    @property
    def meaning(self) -> str:
        return "Nothing was changed on it. Perhaps the name in fleet.yaml now leads to another machine."

    @property
    def hint(self) -> str:
        return f"Plan for this one: winhost plan {self.host}"


@dataclass(eq=False)
class ConsentNeeded(EndOfRun):
    """Steps that need a consent which was not given. Nothing was changed since the last stage.

    changed: something was before that, by the same run in this direction, so that it is no fault of usage alone;
    anew: the words of `resume` that choose another value, for which it was asked.
    """

    host: str
    run: str | None
    risks: tuple[str, ...]
    going_back: bool = False
    changed: bool = False
    anew: str | None = None

    def __post_init__(self) -> None:
        self.exit_code = Exit.FAILURE if self.changed else Exit.USAGE

    @property
    def what(self) -> str:
        return f"{self.host}: this needs your consent: {', '.join(self.risks)}"

    @property
    def meaning(self) -> str:
        return "\n".join(f"{risk}: {RISKS[risk]}" for risk in self.risks)

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        return ways(self.run, self.going_back, self.risks, going_on=self.anew) if self.run else ()

    @property
    def hint(self) -> str:
        return super().hint if self.run else f"Add --accept {','.join(self.risks)}"


@dataclass(eq=False)
class Stopped(EndOfRun):
    """Stopped from outside, after the step in flight or between two pieces of a file that it sends.

    run: None where it was before the first. why: as you asked, or because of what; midway: what was moved and waits to
    be set as it shall be or put back.
    """

    run: str | None
    host: str
    changed: int
    going_back: bool = False
    why: str = "as you asked"
    midway: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        return f"{self.host}: stopped after {self.changed} {'change' if self.changed == 1 else 'changes'}, {self.why}"

    @property
    def meaning(self) -> str | None:
        return f"Until it goes on or back: {'; '.join(self.midway)}." if self.midway else None


@dataclass(eq=False)
class CutShort(EndOfRun):
    """The user stopped it in the middle of a step."""

    run: str
    host: str
    going_back: bool

    @property
    def what(self) -> str:
        return f"{self.host}: stopped in the middle of a step, as you asked"

    @property
    def meaning(self) -> str:
        return "That step may still be going on there. Whoever goes on or back waits for it and reads what is so."


@dataclass(eq=False)
class StepFailed(EndOfRun):
    """The host refused a step, or what it rests on is gone. What was done before it stands.

    lacking: consents that could have helped; alone: it was the first step of its run; anew: the words of `resume` that
    choose another value, where only this step could tell that it cannot be.
    """

    run: str
    host: str
    step: Step
    error: RemoteError | NotAvailable
    going_back: bool = False
    lacking: tuple[str, ...] = ()
    alone: bool = False
    anew: str | None = None

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        return ways(self.run, self.going_back, anew=self.anew)

    @property
    def what(self) -> str:
        return f"{self.step.title}: {self.error.what}"

    @property
    def meaning(self) -> str:
        before = "It was the first step." if self.alone else "Steps before this one are done and journalled."
        helps = (
            f"{_HELPS.get(risk, 'If the host asks for it')}, --accept {risk} allows: {RISKS[risk]}."
            for risk in self.lacking
        )
        return " ".join((before, *helps))


# When a consent that a step may need would have helped.
_HELPS = {
    "force-dismount": "If the host says that nothing contains this device",
    "vm-turn-off": "If the guest does not shut down by itself",
}


@dataclass(eq=False)
class NotTaken(EndOfRun):
    """The host said yes and did otherwise."""

    run: str
    host: str
    step: Step
    lacking: Mapping[str, tuple[Json, Json]]
    going_back: bool = False

    @property
    def what(self) -> str:
        listed = "; ".join(
            f"{name} should be {desired!r}, is {found!r}" for name, (desired, found) in self.lacking.items()
        )
        return f"{self.host}: {self.step.title}: accepted without error, but {listed}"


@dataclass(eq=False)
class OutOfReach(EndOfRun):
    """The host went out of reach in the middle of a run."""

    exit_code = Exit.UNREACHABLE

    run: str
    host: str
    error: WinhostError
    going_back: bool = False

    @property
    def what(self) -> str:
        return self.error.what

    @property
    def meaning(self) -> str:
        return "The journal knows what was begun and the host what is true: nothing is lost."


@dataclass(eq=False)
class Halted(EndOfRun):
    """Something that cannot be used or is not as planned came to light when the run had changed something already.

    anew: the words of `resume` that choose what was asked for otherwise, where that may help.
    """

    run: str
    host: str
    error: WinhostError
    going_back: bool = False
    anew: str | None = None

    def __post_init__(self) -> None:
        # 2 says that nothing was done.
        fault_of_usage = self.error.exit_code == Exit.USAGE
        self.exit_code = Exit.FAILURE if fault_of_usage else self.error.exit_code

    @property
    def what(self) -> str:
        return self.error.what

    @property
    def meaning(self) -> str:
        # How to mend what was given; what else an error advises is for somebody who has changed nothing yet.
        mend = self.error.hint if isinstance(self.error, UsageError) else None
        return "\n".join(filter(None, (self.error.meaning, mend, "What this run has changed stands.")))

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        return ways(self.run, self.going_back, anew=self.anew)


@dataclass(eq=False)
class CannotTell(EndOfRun):
    """What a run has to know of the host cannot be read now."""

    run: str | None
    host: str
    missing: str
    going_back: bool

    @property
    def what(self) -> str:
        return f"{self.host}: {visible(self.missing)}"

    @property
    def meaning(self) -> str:
        return "Without it nothing is changed: neither what to do nor how to take it back could be told."


@dataclass(eq=False)
class NeverCame(EndOfRun):
    """What the rest of a plan waits for did not come with the steps that were to bring it. waiting: resource to
    what.
    """

    run: str | None
    host: str
    waiting: Mapping[str, str]
    going_back: bool = False

    @property
    def what(self) -> str:
        told = ", ".join(
            f"{titled(resource)} (before {titled(until)} is there)" for resource, until in self.waiting.items()
        )
        return f"{self.host}: all that could be planned is done, but this still cannot be: {told}"

    @property
    def meaning(self) -> str:
        return "The host was read again after the last step and is no further. Look at why, then go on."


@dataclass(eq=False)
class OneWay(UsageError):
    """Going on with a run that was going back."""

    run: str
    state: str

    @property
    def what(self) -> str:
        return f"{self.run} {self.state}"

    @property
    def hint(self) -> str:
        return f"winhost rollback {self.run}"
