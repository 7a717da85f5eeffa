"""The answers of a Linux about what it serves: units, engines, gateway, GPUs, logs, and the outcome of a request."""

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes


@dataclass(frozen=True)
class UnitState:
    """A unit as systemd reports it. there: it exists; code: the exit code of the last process; seconds: since when it
    is in this state, None if unknown; invocation: the id of this start.
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
    """A model that an engine serves. length: the longest context in tokens, None if the engine does not report it."""

    id: str
    length: int | None


@dataclass(frozen=True)
class Sample:
    """The value of a metric, summed up by model; model: empty if the metric has none."""

    name: str
    model: str
    value: float


@dataclass(frozen=True)
class EngineState:
    """An engine. health: the HTTP status of /health; None if nothing listens on the socket."""

    socket: str
    health: int | None
    version: str | None
    models: tuple[ServedModel, ...]
    metrics: tuple[Sample, ...]

    def metric(self, name: str) -> float | None:
        """Return the sum of a metric over all models; None if the engine does not have it."""
        values = [each.value for each in self.metrics if each.name == name]
        return sum(values) if values else None


@dataclass(frozen=True)
class GatewayState:
    """The gateway. health, ready: HTTP statuses, None if there was no answer or no request; metrics: None without a
    valid API key; own: the process that listens is the gateway, and no other.
    """

    health: int | None
    ready: int | None
    metrics: tuple[Sample, ...] | None
    own: bool


@dataclass(frozen=True)
class GpuState:
    """A GPU as nvidia-smi reports it. busy: in percent; None: not reported."""

    index: int
    name: str
    busy: int | None
    total: Bytes | None
    used: Bytes | None


@dataclass(frozen=True)
class Version:
    """The version of a component. name: driver, toolkit, wsl, kernel, windows, or boot, whose version changes with each
    boot.
    """

    name: str
    version: str


@dataclass(frozen=True)
class BootTest:
    """The test of the endpoint after a boot. at: when it ended; seconds: since the boot; why: the code of what was not
    ready.
    """

    at: str
    ready: bool
    seconds: int
    why: str


@dataclass(frozen=True)
class ServingState:
    """Everything that a Linux serves. gateway: None if it was not requested; gpus: None if nvidia-smi does not answer;
    boot_test: None if the machine has not tested its endpoint since it booted.
    """

    units: tuple[UnitState, ...]
    engines: tuple[EngineState, ...]
    gateway: GatewayState | None
    gpus: tuple[GpuState, ...] | None
    versions: tuple[Version, ...] = ()
    boot_test: BootTest | None = None


@dataclass(frozen=True)
class DeployedText:
    """The file that describes what is deployed. text: None if there is no such file."""

    text: str | None


@dataclass(frozen=True)
class UnitLine:
    """A line of a unit's journal. at: seconds since 1970."""

    unit: str
    at: float
    text: str


@dataclass(frozen=True)
class LogPage:
    """A page of logs. cursor: of the last line, after which the next page begins; more: there are further lines
    already.
    """

    lines: tuple[UnitLine, ...]
    cursor: str | None
    more: bool


@dataclass(frozen=True)
class TimedAnswer:
    """The outcome of a request. first: seconds until the first text of a stream; tokens: as the engine counts them;
    whole: the answer was complete; text: the beginning of the answer; why: what went wrong; failed: the invocations of
    engine starts that failed while the request waited, so that it was given up.
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
    """When models leave their GPUs. mode: now, auto or never; code: why the gateway is not ready, empty if it is."""

    mode: str
    code: str


@dataclass(frozen=True)
class Acknowledged:
    """The answer to a change that was made. It has no content."""


@dataclass(frozen=True)
class KeyUsed:
    """The use of an API key. since: when counting began; refused: requests beyond its limits; last: None before the
    first use.
    """

    requests: int
    refused: int
    tokens_in: int
    tokens_out: int
    since: str
    last: str | None


@dataclass(frozen=True)
class ServedKey:
    """An API key of the gateway. planned: the plan contains it; state: active, expired, revoked, or hidden by a key of
    the plan with the same name; metrics: it can only read metrics; yields: it can only request that models leave the
    GPUs; models: None for all; limits: None for no limit; times are in UTC; used: None if nothing is known.
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
    """The API keys of the gateway. outcome: of a change, empty if none was requested; models: the served models;
    problem: why a file of keys cannot be read; in_force: the gateway uses the keys as they are listed here.
    """

    outcome: str
    keys: tuple[ServedKey, ...]
    models: tuple[str, ...]
    problem: str | None
    in_force: bool
