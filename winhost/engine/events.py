"""The lines of a journal, one class for each event. `winhost schema journal` publishes them."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from winhost.core.answers import Json, Key
from winhost.core.changes import Dependent
from winhost.core.dataclass import dataclass
from winhost.core.journal_lines import RawEvent
from winhost.core.marks import MarkedRun
from winhost.core.steps import Step
from winhost.model.once import once
from winhost.model.plan import Plan, PlanRequest, Stage


@dataclass(frozen=True)
class JournalEvent:
    """The fields that every line has. n: counted from 1; at: ISO 8601 in UTC; previous: the hash of the line before;
    hash: of this line without its hash.
    """

    n: int
    at: str
    previous: str
    hash: str


@dataclass(frozen=True)
class RunStarted(JournalEvent):
    """The first line. accepted: consents given for applying the plan; folder: of the plan and its files."""

    event: Literal["run"]
    schema: Literal["winhost.journal/3"]
    run: str
    winhost: str
    plan: Plan
    accepted: tuple[str, ...]
    folder: str


@dataclass(frozen=True)
class StagePlanned(JournalEvent):
    """A later stage, planned from facts that were read after the previous one."""

    event: Literal["planned"]
    stage: Stage


@dataclass(frozen=True)
class StepStarted(JournalEvent):
    """A step is about to start. found: the whole state before it; users: the dependents at that time."""

    event: Literal["begin"]
    step: Step
    found: Mapping[str, Json]
    users: tuple[Dependent, ...]


@dataclass(frozen=True)
class StepEnded(JournalEvent):
    """The host has done a step. before, after: as the host read them; after is null if the instance was removed."""

    event: Literal["end"]
    resource: str
    key: Key
    before: Mapping[str, Json]
    after: Mapping[str, Json] | None
    restart: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ResourceRef:
    """A resource that the run changed."""

    resource: str
    key: Key


@dataclass(frozen=True)
class ResourcesRestored(JournalEvent):
    """The run has restored these resources for good: all but those that are kept or could not be decided."""

    event: Literal["restored"]
    resources: tuple[ResourceRef, ...]


@dataclass(frozen=True)
class WithDependents:
    """A resource that the run changed. users: its dependents, in no order."""

    resource: str
    key: Key
    users: tuple[Dependent, ...]


@dataclass(frozen=True)
class DependentsNoted(JournalEvent):
    """The dependents of the resources that the run has changed so far. Rollback compares later ones with them."""

    event: Literal["dependents"]
    resources: tuple[WithDependents, ...]


@dataclass(frozen=True)
class StepRefused(JournalEvent):
    """The host has refused a step. after: the present state, if it could be read."""

    event: Literal["failed"]
    resource: str
    key: Key
    after: Mapping[str, Json] | None
    error: str


@dataclass(frozen=True)
class RestartStarted(JournalEvent):
    """A restart is about to be requested. boot_id: of the boot that it ends."""

    event: Literal["restarting"]
    boot_id: str


@dataclass(frozen=True)
class StateAfterRestart:
    """The state after a restart of a resource whose change took effect with it."""

    resource: str
    key: Key
    after: Mapping[str, Json] | None


@dataclass(frozen=True)
class RestartEnded(JournalEvent):
    """The host is back, in another boot."""

    event: Literal["restarted"]
    boot_id: str
    left: tuple[StateAfterRestart, ...]


@dataclass(frozen=True)
class StageEnded(JournalEvent):
    """All steps of a stage are done."""

    event: Literal["stage"]
    number: int


@dataclass(frozen=True)
class ConsentsGiven(JournalEvent):
    """Consents that were given later."""

    event: Literal["accept"]
    accepted: tuple[str, ...]


@dataclass(frozen=True)
class RollbackStarted(JournalEvent):
    """A rollback starts. accepted: consents given for it; those for applying the plan do not count."""

    event: Literal["back"]
    accepted: tuple[str, ...]


@dataclass(frozen=True)
class RunStopped(JournalEvent):
    """The run stopped. next: the commands that resume it or roll it back."""

    event: Literal["stopped"]
    why: str
    next: tuple[str, ...]


@dataclass(frozen=True)
class AmendedValue:
    """A value of the request that was replaced. old: the previous value, null if the request had none."""

    name: str
    old: Json
    new: Json


@dataclass(frozen=True)
class RequestAmended(JournalEvent):
    """Request values that no stage had used yet were replaced.

    request: the new one; stage: planned from it, in place of the unfinished stages. accepted: consents given for it;
    those for the previous request do not count.
    """

    event: Literal["amend"]
    changes: tuple[AmendedValue, ...]
    request: PlanRequest
    stage: Stage
    accepted: tuple[str, ...]


@dataclass(frozen=True)
class Waiting:
    """A resource that rollback keeps because a newer resource depends on it, or because somebody changed it later. why:
    the reason as a sentence; runs: later runs of this controller that block it; others: those of other controllers, by
    their marks on the host.
    """

    title: str
    why: str
    runs: tuple[str, ...] = ()
    others: tuple[MarkedRun, ...] = ()


@dataclass(frozen=True)
class RunEnded(JournalEvent):
    """The run ended. nothing changed: it stopped with the host as it was before. waiting: the resources that a partly
    rolled back run keeps.
    """

    event: Literal["outcome"]
    outcome: Literal[
        "applied", "differs", "rolled back", "partly rolled back", "not all rolled back", "nothing changed"
    ]
    waiting: tuple[Waiting, ...] = ()


AnyEvent = Annotated[
    RunStarted
    | StagePlanned
    | StepStarted
    | StepEnded
    | StepRefused
    | RestartStarted
    | RestartEnded
    | DependentsNoted
    | ResourcesRestored
    | StageEnded
    | ConsentsGiven
    | RollbackStarted
    | RunStopped
    | RequestAmended
    | RunEnded,
    Field(discriminator="event"),
]


@once
def _adapter() -> "TypeAdapter[JournalEvent]":
    return TypeAdapter(AnyEvent)


def parse_event(entry: RawEvent) -> JournalEvent:
    """Parse a line of a journal. Raises pydantic's ValidationError."""
    return _adapter().validate_python(entry)
