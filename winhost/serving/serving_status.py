"""The state of the models that a Linux serves, by the file that declares them and by what the Linux answers."""

from collections.abc import Collection
from typing import Literal, TypeAlias

from winhost.core.dataclass import dataclass
from winhost.gateway.gateway_settings import FIRST, SECOND
from winhost.model.served import BootTest, EngineState, GatewayState, Sample, ServingState, UnitState, Version
from winhost.model.units import Bytes
from winhost.serving.deployed import Deployed, DeployedEngine, DeployedGateway

_STATE = "turn:"
WAITING_STATES = ("down", "asleep", "suspended", "waking", "falling-asleep")
"""States in which a model does not answer now, but will in its turn."""


@dataclass(frozen=True)
class TurnStatus:
    """The state of a model that takes turns, as the gateway reports it. waiting: requests that wait for the turn;
    move_seconds: how long the engine took to wake or start the last time; move_at: when that ended, in seconds since
    1970. Both are None if it was not moved since the gateway started.
    """

    state: str
    waiting: int
    move_seconds: float | None
    move_at: float | None


def turn_of(model: str, metrics: Collection[Sample]) -> TurnStatus | None:
    """Return the state of a model that takes turns; None for other models."""
    values = {each.name: each.value for each in metrics if each.model == model}
    state = next((name.removeprefix(_STATE) for name in values if name.startswith(_STATE)), None)
    if state is None:
        return None
    return TurnStatus(state, int(values.get("turn_waiting", 0)), values.get("move_seconds"), values.get("move_at"))


# failing: systemd starts it again and again; broken: it runs, and reports that it cannot serve any more.
Standing: TypeAlias = Literal["serving", "starting", "stopping", "stopped", "failed", "failing", "broken", "missing"]

YIELDS = {
    "yielding": "models are leaving their GPUs to something else; requests get 503 until it is over",
    "yielded": "all models have left their GPUs to something else; requests get 503 until it is over",
}


@dataclass(frozen=True)
class ModelStatus:
    """The state of a model. None: not reported.

    seconds: since its unit is in this state; restarts: by systemd since it was started; version: as the engine reports
    it; planned: the version that was installed; length: the longest context in tokens; kv_cache: the share in use, from
    0 to 1; running, waiting: requests in the engine; takes_turns: the gateway starts and stops it; turn: as the gateway
    reports it to a request with a key; stands_by: the model whose standby this engine is; answers: it is the one of two
    engines that answers now.
    """

    model: str
    state: Standing
    unit: str
    seconds: int | None
    restarts: int
    enabled: bool
    version: str | None
    planned: str
    image: str | None
    profile: str
    gpus: tuple[int, ...]
    length: int | None
    running: int | None
    waiting: int | None
    kv_cache: float | None
    generated_tokens: int | None
    takes_turns: bool
    turn: TurnStatus | None
    stands_by: str | None = None
    answers: bool | None = None

    @property
    def serves(self) -> bool:
        """Tell whether it answers now, or when its turn comes."""
        at_rest = self.turn.state in WAITING_STATES if self.turn else self.takes_turns
        return self.state == "serving" or (at_rest and self.state in ("stopped", "stopping"))

    @property
    def starts(self) -> bool:
        """Tell whether it is starting and will serve by itself."""
        by_turn = self.turn is not None and self.turn.state == "starting"
        return not self.serves and (by_turn or self.state == "starting")


@dataclass(frozen=True)
class GatewayStatus:
    """The state of the gateway. None: not reported.

    ready: each model answered a completion; running, waiting, answered, refused, broken: numbers of requests, which it
    reports to a request with a key; yields: `yielding` while models leave their GPUs to another program, `yielded` once
    they have left, else None.
    """

    state: Standing
    unit: str
    listen: str
    tls: bool
    seconds: int | None
    restarts: int
    enabled: bool
    ready: bool | None
    running: int | None
    waiting: int | None
    answered: int | None
    refused: int | None
    broken: int | None
    yields: str | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.listen}"


@dataclass(frozen=True)
class ServedGpu:
    """A GPU. total, used: bytes; busy: percent; models: those whose engines have it."""

    index: int
    name: str
    total: Bytes | None
    used: Bytes | None
    busy: int | None
    models: tuple[str, ...]


@dataclass(frozen=True)
class ServingStatus:
    """serves: every model answers through the gateway; gpus: None if nvidia-smi does not answer; versions: of engines
    and of the software below them; boot_test: the test of the machine itself since its start.
    """

    host: str
    serves: bool
    models: tuple[ModelStatus, ...]
    gateway: GatewayStatus
    gpus: tuple[ServedGpu, ...] | None
    versions: tuple[Version, ...]
    boot_test: BootTest | None = None


def serving_status(host: str, deployed: Deployed, found: ServingState, yields: str | None = None) -> ServingStatus:
    """Combine what was deployed with its state. found: the states of the units of `deployed`, engines first and then
    the gateway, and of the engines' sockets; yields: why the gateway is not ready, if it was asked.
    """
    *units, last = found.units
    pairs = zip(deployed.engines, units, found.engines, strict=True)
    metrics = (found.gateway.metrics if found.gateway else None) or ()
    models = tuple(_model(engine, unit, state, metrics) for engine, unit, state in pairs)
    gateway = _gateway(deployed.gateway, last, found.gateway, yields if yields in YIELDS else None)
    all_serve = bool(models) and all(each.serves for each in models)
    serves = all_serve and gateway.state == "serving" and gateway.ready is not False and not gateway.yields
    gpus: list[ServedGpu] = []
    for gpu in found.gpus or ():
        on_it = tuple(each.model for each in deployed.engines if gpu.index in each.gpus)
        gpus.append(ServedGpu(gpu.index, gpu.name, gpu.total, gpu.used, gpu.busy, on_it))
    shown = None if found.gpus is None else tuple(gpus)
    engines = (Version(f"vLLM of {each.model}", each.version) for each in models if each.version)
    return ServingStatus(host, serves, models, gateway, shown, (*found.versions, *engines), found.boot_test)


def standing(unit: UnitState, health: int | None) -> Standing:
    """Judge a unit by systemd and its /health. health: the status, None without an answer."""
    if not unit.there:
        return "missing"
    if unit.sub == "auto-restart":
        return "failing"
    if unit.active in ("active", "reloading"):
        return "serving" if health == 200 else "starting" if health is None else "broken"
    states: dict[str, Standing] = {"activating": "starting", "deactivating": "stopping", "failed": "failed"}
    return states.get(unit.active, "stopped")


def _model(engine: DeployedEngine, unit: UnitState, found: EngineState, metrics: Collection[Sample]) -> ModelStatus:
    length = next((each.length for each in found.models if each.id == engine.served_name), None)
    return ModelStatus(
        model=engine.model,
        state=standing(unit, found.health),
        unit=engine.unit,
        seconds=unit.seconds,
        restarts=unit.restarts,
        enabled=unit.enabled == "enabled",
        version=found.version,
        planned=engine.version,
        image=engine.image,
        profile=engine.profile,
        gpus=tuple(engine.gpus),
        length=length,
        running=_as_int(found.metric("running")),
        waiting=_as_int(found.metric("waiting")),
        kv_cache=found.metric("kv_cache"),
        generated_tokens=_as_int(found.metric("generated_tokens")),
        takes_turns=engine.turns,
        turn=turn_of(engine.model, metrics),
        stands_by=engine.stands_by,
        answers=_answers_now(engine, metrics),
    )


def _answers_now(engine: DeployedEngine, metrics: Collection[Sample]) -> bool | None:
    is_first, model = engine.stands_by is None, engine.stands_by or engine.model
    named = {each.name for each in metrics if each.model == model}
    if f"standby:{FIRST}" in named:
        return is_first
    return not is_first if f"standby:{SECOND}" in named else None


def _as_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _gateway(
    planned: DeployedGateway, unit: UnitState, found: GatewayState | None, yields: str | None
) -> GatewayStatus:
    sums: dict[str, int] = {}
    for each in (found.metrics or ()) if found else ():
        sums[each.name] = sums.get(each.name, 0) + int(each.value)
    known = found is not None and found.metrics is not None
    counts = {name: sums.get(name, 0) if known else None for name in _REQUEST_COUNTS}
    return GatewayStatus(
        state=standing(unit, found.health if found else None),
        unit=planned.unit,
        listen=planned.listen,
        tls=planned.tls,
        seconds=unit.seconds,
        restarts=unit.restarts,
        enabled=unit.enabled == "enabled",
        ready=None if found is None or found.ready is None else found.ready == 200,
        yields=yields,
        **counts,
    )


_REQUEST_COUNTS = ("running", "waiting", "answered", "refused", "broken")
