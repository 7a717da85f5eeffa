"""winhost serve up and down, and winhost yield: start and stop the units of a target, or free its GPUs, and wait."""

import time
from collections.abc import Sequence
from typing import Literal, TypeAlias

import click

from winhost.cli.change.running import confirm_start
from winhost.cli.envelope import show_results
from winhost.cli.options import TargetOptions
from winhost.cli.output import say, with_fleet
from winhost.cli.serve.target import WatchedTarget, connect_target
from winhost.core.dataclass import dataclass
from winhost.engine.keys import stored_api_key
from winhost.engine.progress import ProgressEvent
from winhost.model.durations import render_duration
from winhost.model.errors import UsageError, WinhostError
from winhost.model.served import UnitState, YieldState
from winhost.serving.deployed import DeployedEngine
from winhost.serving.engine_start import MAX_START_LINES, StartProgress, start_failure
from winhost.serving.serving_status import standing

# The state after the command; `already-…` if the unit was in that state before.
Outcome: TypeAlias = Literal["serving", "already-serving", "taking-turns", "stopped", "already-stopped"]


@dataclass(frozen=True)
class ChangedUnit:
    """A unit after the change. source: a model, or `gateway`; seconds: the time that the change took; enabled: the unit
    starts with the machine.
    """

    source: str
    unit: str
    outcome: Outcome
    seconds: float
    enabled: bool


@dataclass(frozen=True)
class ServingChange:
    """The changes on a host. url: the gateway's address on the machine itself."""

    host: str
    url: str
    units: tuple[ChangedUnit, ...]


def _show_change(options: TargetOptions, target: WatchedTarget, changed: Sequence[ChangedUnit]) -> None:
    gateway = target.deployed.gateway
    change = ServingChange(target.host, gateway.url(gateway.address), tuple(changed))

    def show(found: ServingChange) -> None:
        for each in found.units:
            took = f" after {each.seconds:.0f} s" if each.outcome in ("serving", "stopped") else ""
            say(f"{found.host}: {each.source}: {each.outcome.replace('-', ' ')}{took}", hang=2)

    show_results("serving-change", options.output.shape, [(change.host, change)], show)


def _report_interrupt(
    target: WatchedTarget, changed: str, continuing: str, pending: str, purpose: str
) -> click.exceptions.Abort:
    """Report the units that are changed, that continue to change, and that were not started, and return the exception
    that ends the command. purpose: what `winhost serve down` is for now.
    """
    target.watch.say(f"{target.host}: {'; '.join(filter(None, (changed, continuing, pending)))}.")
    target.watch.say(f"  See: winhost serve status {target.host}. {purpose}: winhost serve down {target.host}")
    return click.exceptions.Abort()


# ---- up

_PAUSE_S = 1.0
_GATEWAY_TIMEOUT_S = 60.0


def up(options: TargetOptions, models: tuple[str, ...], timeout: float) -> int:
    with connect_target(options, stops="Ctrl-C stops watching; units that are starting continue to start.") as target:
        changed = _Starter(target, timeout).start_all(target.chosen(models))
    _show_change(options, target, changed)
    if options.output.shape == "table":
        key = "" if stored_api_key(target.host) else " --api-key REF"
        say(with_fleet(f"Next: winhost serve test {target.host}{key}"))
    return 0


@dataclass(frozen=True)
class _Starter:
    """Starts engines one after the other, because engines that start together measure each other's memory. The gateway
    starts the engines that take turns. timeout: seconds for each.
    """

    target: WatchedTarget
    timeout: float

    def start_all(self, engines: Sequence[DeployedEngine]) -> list[ChangedUnit]:
        """Start the engines, then the gateway. Raises WinhostError (StartFailed, NotServingInTime)."""
        changed: list[ChangedUnit] = []
        by_turns = [engine for engine in engines if engine.turns]
        source = ""
        try:
            for engine in engines:
                if not engine.turns:
                    source = engine.model
                    changed.append(self._start_engine(engine))
            source = "gateway"
            changed.append(self._start_gateway(by_turns))
        except KeyboardInterrupt:
            serving = ", ".join(each.source for each in changed)
            started = {source, *(each.source for each in changed)}
            later = ", ".join(name for name in (*(each.model for each in engines), "gateway") if name not in started)
            pending = f"not started: {later}" if later else ""
            serving_text = f"{serving} serving" if serving else ""
            raise _report_interrupt(
                self.target, serving_text, f"{source} goes on starting there", pending, "To stop it"
            ) from None
        return changed + [ChangedUnit(each.model, each.unit, "taking-turns", 0.0, enabled=False) for each in by_turns]

    def _start_engine(self, engine: DeployedEngine) -> ChangedUnit:
        start_time = time.monotonic()
        unit, health = self._read_engine(engine)
        if standing(unit, health) == "serving":
            return ChangedUnit(engine.model, engine.unit, "already-serving", 0.0, unit.enabled == "enabled")
        self._check_unit_exists(engine.model, unit)
        with self.target.show_activity(f"{engine.model}: starting"):
            if unit.active not in ("active", "activating") or unit.sub == "auto-restart":
                self.target.session.start(engine.unit)
            unit = self._wait_until_serving(engine, start_time + self.timeout)
        seconds = round(time.monotonic() - start_time, 1)
        return ChangedUnit(engine.model, engine.unit, "serving", seconds, unit.enabled == "enabled")

    def _read_engine(self, engine: DeployedEngine) -> tuple[UnitState, int | None]:
        state = self.target.session.state([engine.unit], [engine.socket])
        return state.units[0], state.engines[0].health

    def _wait_until_serving(self, engine: DeployedEngine, deadline: float) -> UnitState:
        progress, cursor, start, restarts = StartProgress(), None, "", None
        host, model = self.target.host, engine.model
        while True:
            unit, health = self._read_engine(engine)
            start, restarts = start or unit.invocation, unit.restarts if restarts is None else restarts
            if start:
                lines = MAX_START_LINES
                page = self.target.session.log([engine.unit], lines=lines, cursor=cursor, invocation=start)
                cursor = page.cursor
                previous_phase = progress.phase
                if progress.read([each.text for each in page.lines]):
                    self.target.watch(ProgressEvent(host, "done", f"{model}: {previous_phase.title}"))
                    self.target.watch(ProgressEvent(host, "at", f"{model}: {progress.phase.title}"))
                self.target.watch.rename_activity(host, f"{model} {progress.bar}")
            state = standing(unit, health)
            if state == "serving" and unit.invocation == start:
                self.target.watch(ProgressEvent(host, "done", f"{model}: {progress.phase.title}"))
                return unit
            if state in ("failed", "failing", "stopped", "broken") or unit.restarts > restarts:
                raise self._stop_failed(engine, unit, start)
            if time.monotonic() > deadline:
                raise WinhostError(
                    "NotServingInTime",
                    what=f"{host}: {model} does not serve after {render_duration(int(self.timeout))}; "
                    f"its phase is: {progress.phase.title}",
                    meaning="It continues to start.",
                    hint=f"Wait longer: winhost serve up {host} --within 2h. "
                    f"Its log: winhost serve logs {host} --model {model}",
                    host=host,
                )
            time.sleep(_PAUSE_S)

    def _stop_failed(self, engine: DeployedEngine, unit: UnitState, start: str) -> WinhostError:
        """Stop the engine, which systemd would restart repeatedly, and return the error that says why it failed."""
        lines = self.target.session.start_log(engine.unit, start, MAX_START_LINES)
        self.target.session.stop(engine.unit)
        return start_failure(self.target.host, engine.model, unit, lines)

    def _check_unit_exists(self, source: str, unit: UnitState) -> None:
        """Check that a unit is installed. Raises WinhostError: UnitMissing."""
        if not unit.there:
            raise WinhostError(
                "UnitMissing",
                what=f"{self.target.host}: {source}: there is no unit {unit.unit}",
                meaning="It was removed, or its installation did not finish.",
                hint="winhost runs lists runs to resume; a new plan installs the unit again: "
                f"winhost plan {self.target.host} --workload WORKLOAD",
                host=self.target.host,
            )

    def _start_gateway(self, by_turns: Sequence[DeployedEngine]) -> ChangedUnit:
        """Start the gateway. by_turns: the engines that the gateway starts, each once before it is ready."""
        name, session, start_time = self.target.deployed.gateway.unit, self.target.session, time.monotonic()
        unit, *units_before = session.state([name, *(each.unit for each in by_turns)]).units
        for source, unit_found in zip(
            ("gateway", *(each.model for each in by_turns)), (unit, *units_before), strict=True
        ):
            self._check_unit_exists(source, unit_found)
        active = unit.active == "active"
        models = ", ".join(each.model for each in by_turns)
        with self.target.show_activity(f"gateway: starting {models}" if models else "gateway: starting"):
            if not active:
                session.start(name)
            self._wait_until_ready(
                start_time + (self.timeout if by_turns else _GATEWAY_TIMEOUT_S), by_turns, units_before
            )
        seconds = 0.0 if active else round(time.monotonic() - start_time, 1)
        return ChangedUnit(
            "gateway", name, "already-serving" if active else "serving", seconds, unit.enabled == "enabled"
        )

    def _wait_until_ready(
        self, deadline: float, by_turns: Sequence[DeployedEngine], units_before: Sequence[UnitState]
    ) -> None:
        """Wait until the gateway is ready. units_before: the units of `by_turns` before the gateway was started."""
        units = [self.target.deployed.gateway.unit, *(each.unit for each in by_turns)]
        while True:
            state = self.target.session.state(units, gateway=self.target.gateway, ready=True)
            (unit, *engines), gateway = state.units, state.gateway
            healthy = gateway is not None and gateway.health == 200
            if gateway and healthy and gateway.ready == 200:
                return
            for engine, unit_now, unit_before in zip(by_turns, engines, units_before, strict=True):
                if unit_now.active == "failed" and unit_now.invocation != unit_before.invocation:
                    raise self._stop_failed(engine, unit_now, unit_now.invocation)
            if time.monotonic() > deadline or unit.active == "failed" or unit.sub == "auto-restart":
                page = self.target.session.log([unit.unit], lines=20, invocation=unit.invocation or None)
                last = next((each.text for each in reversed(page.lines) if each.text.strip()), "")
                why = "a model does not complete a request" if healthy else f"it is {unit.active} ({unit.result})"
                what = f"the gateway is not ready: {why}"
                raise start_failure(self.target.host, "gateway", unit, [last], what)
            time.sleep(_PAUSE_S)


# ---- down

_STOP_PAUSE_S = 0.5


def down(options: TargetOptions, models: tuple[str, ...], yes: bool, timeout: float) -> int:
    with connect_target(options, stops="Ctrl-C stops watching; units that are stopping continue to stop.") as target:
        chosen = target.chosen(models)
        with target.show_activity("asking engines"):
            status = target.status()
        names = [each.model for each in chosen]
        running = sum(each.running or 0 for each in status.models if each.model in names)
        requests = f" {running} requests are open; they may end first." if running else ""
        # With --model the gateway keeps running, and starts these models again.
        restarted = ", ".join(each.model for each in chosen if models and each.turns)
        restart_note = f" The gateway starts {restarted} again when its turn comes." if restarted else ""
        with target.watch.paused():
            confirm_start(f"Stop {', '.join(names)} on {status.host}?{requests}{restart_note}", yes)
        sources = [] if models else [("gateway", target.deployed.gateway.unit)]
        sources += [(each.model, each.unit) for each in reversed(chosen)]
        changed = _stop_units(target, sources, timeout)
    _show_change(options, target, changed)
    return 0


def _stop_units(target: WatchedTarget, sources: Sequence[tuple[str, str]], timeout: float) -> list[ChangedUnit]:
    """Stop units in this order: first the gateway, which accepts no more requests and finishes the open ones; then the
    engines, in reverse order. Raises WinhostError: NotStoppedInTime.
    """
    changed: list[ChangedUnit] = []
    try:
        for source, unit in sources:
            changed.append(_stop_unit(target, source, unit, timeout))
    except KeyboardInterrupt:
        current, *later = (source for source, _ in sources[len(changed) :])
        stopped_text = f"stopped: {', '.join(each.source for each in changed)}" if changed else ""
        pending = f"not stopped: {', '.join(later)}" if later else ""
        raise _report_interrupt(
            target, stopped_text, f"{current} goes on stopping there", pending, "To go on"
        ) from None
    return changed


def _stop_unit(target: WatchedTarget, source: str, name: str, timeout: float) -> ChangedUnit:
    start_time = time.monotonic()
    unit = target.unit(name)
    enabled = unit.enabled == "enabled"
    if _is_stopped(unit):
        return ChangedUnit(source, name, "already-stopped", 0.0, enabled)
    with target.show_activity(f"{source}: stopping; open requests end first"):
        target.session.stop(name)
        while not _is_stopped(unit := target.unit(name)):
            if time.monotonic() > start_time + timeout:
                raise WinhostError(
                    "NotStoppedInTime",
                    what=f"{target.host}: {source} has not stopped after {render_duration(int(timeout))}: "
                    f"it is {unit.active}",
                    meaning="It continues to stop; systemd kills it after its own timeout.",
                    hint=f"See: winhost serve status {target.host}",
                    host=target.host,
                )
            time.sleep(_STOP_PAUSE_S)
        target.watch(ProgressEvent(target.host, "done", f"{source}: stopped"))
    return ChangedUnit(source, name, "stopped", round(time.monotonic() - start_time, 1), enabled)


def _is_stopped(unit: UnitState) -> bool:
    return not unit.there or (unit.active in ("inactive", "failed") and unit.sub != "auto-restart")


# ---- yield

_MODES = {"now": "on", "auto": "by clients with a key for it", "never": "off"}
_STATES = {
    "yielded": "the GPUs are free",
    "yielding": "models are leaving their GPUs",
    "not-ready": "not every model answers",
    "no-answer": "the gateway does not answer",
    "serving": "models are served",
}


@dataclass(frozen=True)
class Yielding:
    """The state of a gateway. mode: now, auto or never; state: yielded, yielding, serving, not-ready (a model does not
    answer), no-answer (the gateway does not answer).
    """

    host: str
    mode: str
    state: str


def yields(options: TargetOptions, mode: str | None, timeout: float) -> int:
    with connect_target(options, stops="Ctrl-C stops watching; the mode that you set stays.") as target:
        host = target.host
        if not target.deployed.gateway.yields:
            raise UsageError(
                "NoYield",
                what=f"{host}: its gateway is not set up to yield GPUs",
                meaning="Its workload has no availability.yield_to, so nothing takes its models off their GPUs.",
                hint="Add availability.yield_to to the workload and plan again: "
                f"winhost plan {host} --workload WORKLOAD",
                host=host,
            )
        with target.show_activity("asking the gateway"):
            yield_state = target.session.yield_state(target.gateway, mode)
        if mode == "now":
            yield_state = _wait_until_yielded(target, timeout)
    state = yield_state.code if yield_state.code in _STATES else "not-ready"
    result = Yielding(host, yield_state.mode, state if yield_state.code else "serving")
    text = f"{host}: yield is {_MODES[result.mode]}: {_STATES[result.state]}"
    return show_results("yield", options.output.shape, [(host, result)], lambda _: say(text, hang=2))


def _wait_until_yielded(target: WatchedTarget, timeout: float) -> YieldState:
    """Wait until all models have left their GPUs. Raises WinhostError: NotYielded."""
    deadline = time.monotonic() + timeout
    with target.show_activity("waiting until models have left their GPUs"):
        while (state := target.session.yield_state(target.gateway)).code != "yielded":
            if time.monotonic() >= deadline:
                raise WinhostError(
                    "NotYielded",
                    what=f"{target.host}: not all models have left their GPUs",
                    meaning="No model takes requests any more; one that cannot leave is tried again every 15 seconds.",
                    hint=f"winhost serve logs {target.host} --gateway",
                    host=target.host,
                )
            time.sleep(_PAUSE_S)
    return state
