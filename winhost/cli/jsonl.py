"""Print the lines of --jsonl: one for each event of a run, and one for its end. `winhost schema event` publishes
them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from winhost.cli.envelope import print_json
from winhost.cli.output import error_result
from winhost.core.answers import Json, Key
from winhost.core.dataclass import dataclass
from winhost.engine.progress import ProgressEvent
from winhost.engine.run_context import Outcome
from winhost.model.errors import ErrorDocument, WinhostError


@dataclass(frozen=True)
class Resource:
    """The resource of a step."""

    resource: str
    key: Key


@dataclass(frozen=True)
class EventLine:
    """An event of a run. time: ISO 8601 in UTC; before: the properties that the step changes, as they were; after: the
    same properties as the step set them, null until it is done; number, total: of the step; percent: of a file that is
    being sent.
    """

    event: str
    time: str
    run: str | None
    host: str
    text: str
    step: str | None
    resource: Resource | None
    before: Mapping[str, Json] | None
    after: Mapping[str, Json] | None
    number: int
    total: int
    percent: int | None


@dataclass(frozen=True)
class EndLine:
    """The end of a run on a host: an outcome or an error."""

    event: Literal["end"]
    time: str
    run: str | None
    host: str | None
    outcome: Outcome | None
    error: ErrorDocument | None
    exit_code: int


AnyLine: TypeAlias = EventLine | EndLine


def print_event(event: ProgressEvent) -> None:
    """Print one line on stdout."""
    step = event.step
    print_json(
        EventLine(
            event.kind,
            _now(),
            event.run or None,
            event.host,
            event.text,
            step.id if step else None,
            Resource(step.resource, step.key) if step else None,
            step.before if step else None,
            step.desired if step and event.kind == "done" else None,
            event.number,
            event.total,
            event.percent,
        )
    )


def print_end(host: str | None, end: Outcome | WinhostError) -> None:
    """Print the last line of a host. host: None if the error is not about one."""
    if isinstance(end, WinhostError):
        run = getattr(end, "run", None)
        run = run if isinstance(run, str) else None
        result = error_result(end, host)
        print_json(EndLine("end", _now(), run, result.host, None, result.error, int(end.exit_code)))
    else:
        print_json(EndLine("end", _now(), end.run, end.host, end, None, int(end.exit_code)))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
