"""What a Linux says of what it serves: units, engines, gateway, GPUs, logs, and what came of a request."""

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes


@dataclass(frozen=True)
class UnitState:
    """As systemd has it. code: with which the last process ended; seconds: that it has been so, None where unknown;
    invocation: of this start.
    """

    unit: str
    there: bool
    active: str
    sub: str
    result: str
    enabled: str
    pid: int
    restarts: int
    code: int
    invocation: str
    seconds: int | None


@dataclass(frozen=True)
class ServedModel:
    """length: the longest context in tokens, where the engine tells it."""

    id: str
    length: int | None


@dataclass(frozen=True)
class Sample:
    """A metric, summed up by model; no model where it has none."""

    name: str
    model: str
    value: float


@dataclass(frozen=True)
class EngineState:
    """health: the status that its /health answers; None where nobody listens at the socket."""

    socket: str
    health: int | None
    version: str | None
    models: tuple[ServedModel, ...]
    metrics: tuple[Sample, ...]

    def metric(self, name: str) -> float | None:
        """Of all its models."""
        found = [each.value for each in self.metrics if each.name == name]
        return sum(found) if found else None


@dataclass(frozen=True)
class GatewayState:
    """health, ready: statuses, None where nothing answers or was not asked; metrics: None without a key that it knows;
    own: whether its process listens there, and nobody else.
    """

    health: int | None
    ready: int | None
    metrics: tuple[Sample, ...] | None
    own: bool


@dataclass(frozen=True)
class CardState:
    """A GPU as nvidia-smi has it. busy: in percent; None is what it does not tell."""

    index: int
    name: str
    busy: int | None
    total: Bytes | None
    used: Bytes | None


@dataclass(frozen=True)
class ServingState:
    """gateway: None where it was not asked for; gpus: None without an nvidia-smi that answers."""

    units: tuple[UnitState, ...]
    engines: tuple[EngineState, ...]
    gateway: GatewayState | None
    gpus: tuple[CardState, ...] | None


@dataclass(frozen=True)
class DeployedText:
    """The file that says what is served; None where there is none."""

    text: str | None


@dataclass(frozen=True)
class UnitLine:
    """A line of a unit's journal. at: seconds since 1970."""

    unit: str
    at: float
    text: str


@dataclass(frozen=True)
class LogPage:
    """cursor: after which line the next page begins; more: there is one already."""

    lines: tuple[UnitLine, ...]
    cursor: str | None
    more: bool


@dataclass(frozen=True)
class TimedAnswer:
    """What came of a request. first: seconds until the first text of a stream; tokens: as the engine counts; whole: it
    came to its end; text: how it begins; why: what went wrong with it; failed: starts of its engine that failed while
    it waited, by invocation: it was given up then.
    """

    status: int | None
    first: float | None
    seconds: float
    events: int
    tokens: int | None
    whole: bool
    text: str
    why: str | None
    failed: tuple[str, ...]


@dataclass(frozen=True)
class YieldState:
    """mode: now, auto or never; code: why the gateway is not ready, empty where it is."""

    mode: str
    code: str


@dataclass(frozen=True)
class Acknowledged:
    """It was done, and nothing else is told of it."""
