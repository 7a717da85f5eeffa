"""How a run can end before its end: each says what is so now, and the way on and the way back."""

from collections.abc import Mapping
from dataclasses import dataclass

from winhost.connect.errors import NotAvailable, RemoteError
from winhost.model.errors import Exit, UsageFault, WinhostError, visible
from winhost.model.facts import Json
from winhost.model.plan import RISKS, Step


def _ways(run: str | None, going_back: bool = False) -> str:
    """On and back. run: None where none was begun."""
    if run is None:
        return "Nothing was changed. To do it after all, apply the plan again."
    if going_back:
        return f"Go on with going back: winhost rollback {run}"
    return f"Go on: winhost resume {run}\nGo back: winhost rollback {run}"


@dataclass(eq=False)
class Unfinished(WinhostError):
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

    @property
    def hint(self) -> str:
        return _ways(self.run, self.going_back)


@dataclass(eq=False)
class CannotWrite(WinhostError):
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

    @property
    def hint(self) -> str:
        return _ways(self.run, self.going_back)


@dataclass(eq=False)
class WrongHost(UsageFault):
    """A plan is for one machine, whatever it is called today."""

    host: str
    wanted: str
    found: str

    @property
    def what(self) -> str:
        return f"{self.host} is not the machine that this was planned for: its id is {self.found}, not {self.wanted}"

    @property
    def meaning(self) -> str:
        return "Nothing was changed. Perhaps the name in fleet.yaml now leads to another machine."

    @property
    def hint(self) -> str:
        return f"Plan for this one: winhost plan {self.host}"


@dataclass(eq=False)
class ConsentNeeded(UsageFault):
    """Steps that need a consent which was not given. Nothing was changed since the last stage."""

    host: str
    run: str | None
    risks: tuple[str, ...]
    going_back: bool = False

    @property
    def what(self) -> str:
        return f"{self.host}: this needs your consent: {', '.join(self.risks)}"

    @property
    def meaning(self) -> str:
        return "\n".join(f"{risk}: {RISKS[risk]}" for risk in self.risks)

    @property
    def hint(self) -> str:
        given = f"--accept {','.join(self.risks)}"
        if self.run is None:
            return f"Add {given}"
        if self.going_back:
            return f"winhost rollback {self.run} {given}"
        return f"Go on: winhost resume {self.run} {given}\nGo back: winhost rollback {self.run}"


@dataclass(eq=False)
class Stopped(WinhostError):
    """The user stopped it, after the step in flight or between two pieces of a file that it sends.

    run: None where it was before the first.
    """

    run: str | None
    host: str
    changed: int
    going_back: bool = False

    @property
    def what(self) -> str:
        return f"{self.host}: stopped after {self.changed} changes, as you asked"

    @property
    def hint(self) -> str:
        return _ways(self.run, self.going_back)


@dataclass(eq=False)
class CutShort(WinhostError):
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

    @property
    def hint(self) -> str:
        return _ways(self.run, self.going_back)


@dataclass(eq=False)
class StepFailed(WinhostError):
    """The host refused a step, or what it rests on is gone. What was done before it stands.

    lacking: consents that could have helped; alone: it was the first step of its run.
    """

    run: str
    host: str
    step: Step
    error: RemoteError | NotAvailable
    going_back: bool = False
    lacking: tuple[str, ...] = ()
    alone: bool = False

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

    @property
    def hint(self) -> str:
        return _ways(self.run, self.going_back)


# When a consent that a step may need would have helped.
_HELPS = {
    "force-dismount": "If the host says that nothing contains this device",
    "vm-turn-off": "If the guest does not shut down by itself",
}


@dataclass(eq=False)
class NotTaken(WinhostError):
    """The host said yes and did otherwise."""

    run: str
    host: str
    step: Step
    lacking: Mapping[str, tuple[Json, Json]]
    going_back: bool = False

    @property
    def what(self) -> str:
        listed = "; ".join(f"{name} should be {want!r}, is {found!r}" for name, (want, found) in self.lacking.items())
        return f"{self.host}: {self.step.title}: accepted without error, but {listed}"

    @property
    def hint(self) -> str:
        return _ways(self.run, self.going_back)


@dataclass(eq=False)
class OutOfReach(WinhostError):
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

    @property
    def hint(self) -> str:
        return _ways(self.run, self.going_back)


@dataclass(eq=False)
class CannotTell(WinhostError):
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

    @property
    def hint(self) -> str:
        return _ways(self.run, self.going_back)


@dataclass(eq=False)
class NeverCame(WinhostError):
    """What the rest of a plan waits for did not come with the steps that were to bring it. waiting: noun to what."""

    run: str | None
    host: str
    waiting: Mapping[str, str]

    @property
    def what(self) -> str:
        told = ", ".join(f"{noun} (before {until} is there)" for noun, until in self.waiting.items())
        return f"{self.host}: all that could be planned is done, but this still cannot be: {told}"

    @property
    def meaning(self) -> str:
        return "The host was read again after the last step and is no further. Look at why, then go on."

    @property
    def hint(self) -> str:
        return _ways(self.run)


@dataclass(eq=False)
class OneWay(UsageFault):
    """Going on with a run that was going back."""

    run: str
    state: str

    @property
    def what(self) -> str:
        return f"{self.run} {self.state}"

    @property
    def hint(self) -> str:
        return f"winhost rollback {self.run}"
