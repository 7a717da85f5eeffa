"""How a run can end before its end: each says what is so now, and the way on and the way back."""

from collections.abc import Mapping
from dataclasses import dataclass

from winhost.connect.errors import RemoteError
from winhost.model.errors import Exit, UsageFault, WinhostError
from winhost.model.facts import Json
from winhost.model.plan import RISKS, Step


def _ways(run: str) -> str:
    return f"Go on: winhost resume {run}\nGo back: winhost rollback {run}"


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
    """The user stopped it, after the step in flight."""

    run: str
    host: str
    changed: int

    @property
    def what(self) -> str:
        return f"{self.host}: stopped after {self.changed} changes, as you asked"

    @property
    def hint(self) -> str:
        return _ways(self.run)


@dataclass(eq=False)
class StepFailed(WinhostError):
    """The host refused a step. What was done before it stands."""

    run: str
    host: str
    step: Step
    error: RemoteError

    @property
    def what(self) -> str:
        return f"{self.step.title}: {self.error.what}"

    @property
    def meaning(self) -> str:
        force = "force-dismount"
        if force in self.step.may_need:
            return (
                "Steps before this one are done and journalled. If the host says that nothing contains this device, "
                f"--accept {force} takes it all the same: {RISKS[force]}."
            )
        return "Steps before this one are done and journalled."

    @property
    def hint(self) -> str:
        return _ways(self.run)


@dataclass(eq=False)
class NotTaken(WinhostError):
    """The host said yes and did otherwise."""

    run: str
    host: str
    step: Step
    lacking: Mapping[str, tuple[Json, Json]]

    @property
    def what(self) -> str:
        listed = "; ".join(f"{name} should be {want!r}, is {found!r}" for name, (want, found) in self.lacking.items())
        return f"{self.host}: {self.step.title}: accepted without error, but {listed}"

    @property
    def hint(self) -> str:
        return _ways(self.run)


@dataclass(eq=False)
class OutOfReach(WinhostError):
    """The host went out of reach in the middle of a run."""

    exit_code = Exit.UNREACHABLE

    run: str
    host: str
    error: WinhostError

    @property
    def what(self) -> str:
        return self.error.what

    @property
    def meaning(self) -> str:
        return "The journal knows what was begun and the host what is true: nothing is lost."

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
