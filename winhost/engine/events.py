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
    """The first line. accepted: consents given for going there; folder: of the plan, for the files beside it."""

    event: Literal["run"]
    schema: Literal["winhost.journal/3"]
    run: str
    winhost: str
    plan: Plan
    accepted: tuple[str, ...]
    folder: str


@dataclass(frozen=True)
class StagePlanned(JournalEvent):
    """A later stage, planned from what was read after the one before it."""

    event: Literal["planned"]
    stage: Stage


@dataclass(frozen=True)
class StepStarted(JournalEvent):
    """A step is about to be done. found: the whole state that it begins from; users: its dependents by then."""

    event: Literal["begin"]
    step: Step
    found: Mapping[str, Json]
    users: tuple[Dependent, ...]


@dataclass(frozen=True)
class StepEnded(JournalEvent):
    """The host has done a step. before, after: as the host itself saw them; nothing after, where it is gone."""

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
    """The run has restored these for good: all but what is kept and what could not be judged."""

    event: Literal["restored"]
    resources: tuple[ResourceRef, ...]


@dataclass(frozen=True)
class WithDependents:
    """Something that the run changed, and its dependents. users: in no order."""

    resource: str
    key: Key
    users: tuple[Dependent, ...]


@dataclass(frozen=True)
class DependentsNoted(JournalEvent):
    """The dependents of what the run has changed so far: rollback tells newer ones from them."""

    event: Literal["dependents"]
    resources: tuple[WithDependents, ...]


@dataclass(frozen=True)
class StepRefused(JournalEvent):
    """The host has refused a step. after: what is so now, where the host could tell."""

    event: Literal["failed"]
    resource: str
    key: Key
    after: Mapping[str, Json] | None
    error: str


@dataclass(frozen=True)
class RestartStarted(JournalEvent):
    """A restart is about to be asked for, of this boot."""

    event: Literal["restarting"]
    boot_id: str


@dataclass(frozen=True)
class StateAfterRestart:
    """The state after a restart of something whose change took effect with it."""

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
    """Consents given later."""

    event: Literal["accept"]
    accepted: tuple[str, ...]


@dataclass(frozen=True)
class RollbackStarted(JournalEvent):
    """The run goes back from here on. accepted: consents given for that; those for the way forward do not count."""

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
    """A value of the request that was chosen again. old: as the request had it, null where it said nothing."""

    name: str
    old: Json
    new: Json


@dataclass(frozen=True)
class RequestAmended(JournalEvent):
    """Request values that no stage had used yet were replaced.

    request: from here on; stage: planned from it, instead of what was not finished. accepted: consents given for that;
    those for the request before do not count.
    """

    event: Literal["amend"]
    changes: tuple[AmendedValue, ...]
    request: PlanRequest
    stage: Stage
    accepted: tuple[str, ...]


@dataclass(frozen=True)
class Waiting:
    """A resource that rollback keeps because something that came later depends on it, or changed it. why: that, in
    words; runs: the later runs of this controller among it; others: those of other controllers, by their marks on the
    host.
    """

    title: str
    why: str
    runs: tuple[str, ...] = ()
    others: tuple[MarkedRun, ...] = ()


@dataclass(frozen=True)
class RunEnded(JournalEvent):
    """The run ended. nothing changed: it stopped with the host as it was found, so nothing waits for it. waiting: what
    a partly rolled back run keeps.
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
    """Raises pydantic's ValidationError."""
    return _adapter().validate_python(entry)
