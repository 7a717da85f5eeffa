"""A Linux's answers about what it serves: units, engines, gateway, GPUs, logs, and the outcome of a request."""

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes


@dataclass(frozen=True)
class UnitState:
    """A unit as systemd reports it. code: exit code of the last process; seconds: since it is in this state, None where
    unknown; invocation: of this start.
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
        """The sum of a metric over all its models."""
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
class GpuState:
    """A GPU as nvidia-smi has it. busy: in percent; None is what it does not tell."""

    index: int
    name: str
    busy: int | None
    total: Bytes | None
    used: Bytes | None


@dataclass(frozen=True)
class Version:
    """name: driver, toolkit, wsl, kernel, windows, or boot, whose version is another after each start of the
    machine.
    """

    name: str
    version: str


@dataclass(frozen=True)
class BootTest:
    """at: when the machine had tested its endpoint; seconds: since its start; why: the code of what was not ready."""

    at: str
    ready: bool
    seconds: int
    why: str


@dataclass(frozen=True)
class ServingState:
    """gateway: None where it was not asked for; gpus: None without an nvidia-smi that answers; boot_test: None where
    the machine has not tested its endpoint since its start.
    """

    units: tuple[UnitState, ...]
    engines: tuple[EngineState, ...]
    gateway: GatewayState | None
    gpus: tuple[GpuState, ...] | None
    versions: tuple[Version, ...] = ()
    boot_test: BootTest | None = None


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
    """The outcome of a request. first: seconds until the first text of a stream; tokens: as the engine counts; whole:
    it came to its end; text: how it begins; why: what went wrong with it; failed: starts of its engine that failed
    while it waited, by invocation: it was given up then.
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
    """A change was made; the answer says nothing else."""


@dataclass(frozen=True)
class KeyUsed:
    """The use of an API key since counting began; refused: requests beyond its limits; last: None before the first."""

    requests: int
    refused: int
    tokens_in: int
    tokens_out: int
    since: str
    last: str | None


@dataclass(frozen=True)
class ServedKey:
    """An API key of the gateway. planned: it is of the plan; state: active, expired, revoked, or hidden, where the plan
    has a key of its name; metrics: it reads metrics alone; yields: it asks for the GPUs alone; models: None for all; a
    limit of None is none; times are in UTC; used: None where nothing is known.
    """

    name: str
    planned: bool
    state: str
    metrics: bool
    yields: bool
    models: tuple[str, ...] | None
    concurrent: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    expires: str | None
    added: str | None
    revoked: str | None
    used: KeyUsed | None


@dataclass(frozen=True)
class ServedKeys:
    """outcome: what became of a change, none where none was asked for; models: that are served; problem: why a file of
    keys cannot be read; in_force: the gateway has read the keys as they are told here.
    """

    outcome: str
    keys: tuple[ServedKey, ...]
    models: tuple[str, ...]
    problem: str | None
    in_force: bool
