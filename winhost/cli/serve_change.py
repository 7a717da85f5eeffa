"""winhost serve up and down, and winhost yield: start, stop and suspend what a target serves, and watch that."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import click

from winhost.cli.envelope import show_results
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.running import begin
from winhost.cli.serving_target import ServingTarget, serving_target
from winhost.cli.watch import Watch, watching
from winhost.core.dataclass import dataclass
from winhost.engine.keys import kept_api_key
from winhost.engine.progress import ProgressEvent
from winhost.model.durations import render_duration
from winhost.model.errors import UsageError, WinhostError
from winhost.model.served import UnitState, YieldState
from winhost.serving.deployed import DeployedEngine
from winhost.serving.engine_start import LINES_OF_A_START, StartProgress, start_failure
from winhost.serving.serving_status import ServingStatus, standing

# As it is now; `already` where it was so before.
Outcome: TypeAlias = Literal["serving", "already-serving", "taking-turns", "stopped", "already-stopped"]


@dataclass(frozen=True)
class ChangedUnit:
    """source: a model, or `gateway`; seconds: that it took; enabled: it starts with the machine."""

    source: str
    unit: str
    outcome: Outcome
    seconds: float
    enabled: bool


@dataclass(frozen=True)
class ServingChange:
    """url: where the gateway listens, as the machine itself reaches it."""

    host: str
    url: str
    units: tuple[ChangedUnit, ...]


def show_change(found: ServingChange) -> None:
    for each in found.units:
        took = f" after {each.seconds:.0f} s" if each.outcome in ("serving", "stopped") else ""
        say(f"{found.host}: {each.source}: {each.outcome.replace('-', ' ')}{took}", hang=2)


_PAUSE_S = 1.0
_GATEWAY_S = 60.0
_START_GOES_ON = "Ctrl-C stops watching; what starts goes on starting there."


def up(target: str, models: tuple[str, ...], within: float, fleet_file: Path | None, output: Output) -> int:
    with watching(stops=_START_GOES_ON) as watch, serving_target(target, fleet_file, watch) as served:
        found = Starting(served, watch, within).all(served.chosen(models))
    show_results("serving-change", output.shape, [(found.host, found)], show_change)
    if output.shape == "table":
        key = "" if kept_api_key(found.host) else " --api-key REF"
        say(f"Next: winhost serve test {found.host}{key}")
    return 0


class Starting:
    """One engine after the other: two that start at once measure each other's memory. Those that take turns are started
    by the gateway.
    """

    def __init__(self, served: ServingTarget, watch: Watch, within: float) -> None:
        self._served, self._watch, self._within = served, watch, within
        self._host, self._session = served.host, served.session

    def all(self, engines: Sequence[DeployedEngine]) -> ServingChange:
        """Raises WinhostError (StartFailed, NotServingInTime)."""
        done: list[ChangedUnit] = []
        at = ""
        try:
            for engine in engines:
                if not engine.turns:
                    at = engine.model
                    done.append(self._engine(engine))
            at = "gateway"
            by_turns = [engine for engine in engines if engine.turns]
            done.append(self._gateway(by_turns))
            done += [ChangedUnit(each.model, each.unit, "taking-turns", 0.0, enabled=False) for each in by_turns]
        except KeyboardInterrupt:
            self._say_what_stands(done, at, [each.model for each in engines])
            raise click.exceptions.Abort from None
        gateway = self._served.deployed.gateway
        return ServingChange(self._host, gateway.url(gateway.address), tuple(done))

    def _say_what_stands(self, done: Sequence[ChangedUnit], at: str, models: Sequence[str]) -> None:
        """Nothing is half done: what was started goes on by itself, and what was not is as it was."""
        serving = ", ".join(each.source for each in done)
        later = [name for name in (*models, "gateway") if name not in {at, *(each.source for each in done)}]
        parts = [f"{serving} serving" if serving else "", f"{at} goes on starting there"]
        parts.append(f"not started: {', '.join(later)}" if later else "")
        self._watch.say(f"{self._host}: {'; '.join(filter(None, parts))}.")
        self._watch.say(f"  See: winhost serve status {self._host}. To stop it: winhost serve down {self._host}")

    def _engine(self, engine: DeployedEngine) -> ChangedUnit:
        began = time.monotonic()
        unit, health = self._look(engine)
        if standing(unit, health) == "serving":
            return ChangedUnit(engine.model, engine.unit, "already-serving", 0.0, unit.enabled == "enabled")
        if not unit.there:
            raise self._missing(engine.model, engine.unit)
        with self._watch.at(self._host, f"{engine.model}: starting"):
            if unit.active not in ("active", "activating") or unit.sub == "auto-restart":
                self._session.start(engine.unit)
            unit = self._until_it_serves(engine, began + self._within)
        return ChangedUnit(
            engine.model, engine.unit, "serving", round(time.monotonic() - began, 1), unit.enabled == "enabled"
        )

    def _look(self, engine: DeployedEngine) -> tuple[UnitState, int | None]:
        found = self._session.state([engine.unit], [engine.socket])
        return found.units[0], found.engines[0].health

    def _until_it_serves(self, engine: DeployedEngine, end: float) -> UnitState:
        progress, cursor, start, restarts = StartProgress(), None, "", None
        while True:
            unit, health = self._look(engine)
            start, restarts = start or unit.invocation, unit.restarts if restarts is None else restarts
            if start:
                page = self._session.log([engine.unit], lines=LINES_OF_A_START, cursor=cursor, invocation=start)
                cursor = page.cursor
                self._tell(engine, progress, [each.text for each in page.lines])
            found = standing(unit, health)
            if found == "serving" and unit.invocation == start:
                self._watch(ProgressEvent(self._host, "done", f"{engine.model}: {progress.phase.says}"))
                return unit
            if found in ("failed", "failing", "stopped", "broken") or unit.restarts > restarts:
                raise self._failed(engine, unit, start)
            if time.monotonic() > end:
                raise self._late(engine, progress)
            time.sleep(_PAUSE_S)

    def _tell(self, engine: DeployedEngine, progress: StartProgress, lines: Sequence[str]) -> None:
        before = progress.phase
        if progress.read(lines):
            self._watch(ProgressEvent(self._host, "done", f"{engine.model}: {before.says}"))
            self._watch(ProgressEvent(self._host, "at", f"{engine.model}: {progress.phase.says}"))
        self._watch.now(self._host, f"{engine.model} {progress.bar}")

    def _failed(self, engine: DeployedEngine, unit: UnitState, start: str) -> WinhostError:
        """systemd would start it again and again: it is stopped."""
        lines = self._session.start_log(engine.unit, start, LINES_OF_A_START)
        self._session.stop(engine.unit)
        return start_failure(self._host, engine.model, unit, lines)

    def _late(self, engine: DeployedEngine, progress: StartProgress) -> WinhostError:
        return WinhostError(
            "NotServingInTime",
            what=f"{self._host}: {engine.model} does not serve after {render_duration(int(self._within))}; "
            f"it is at: {progress.phase.says}",
            meaning="It goes on starting there.",
            hint=f"Wait longer: winhost serve up {self._host} --within 2h. "
            f"Its log: winhost serve logs {self._host} --model {engine.model}",
            host=self._host,
        )

    def _missing(self, source: str, unit: str) -> WinhostError:
        return WinhostError(
            "UnitMissing",
            what=f"{self._host}: {source}: there is no unit {unit}",
            meaning="It was removed, or was never installed to its end.",
            hint="winhost runs shows runs to resume; a new plan puts it back: "
            f"winhost plan {self._host} --workload WORKLOAD",
            host=self._host,
        )

    def _gateway(self, by_turns: Sequence[DeployedEngine]) -> ChangedUnit:
        """by_turns: the engines that it starts, each once before it is ready."""
        planned, began = self._served.deployed.gateway, time.monotonic()
        unit, *stale = self._session.state([planned.unit, *(each.unit for each in by_turns)]).units
        for source, found in zip(("gateway", *(each.model for each in by_turns)), (unit, *stale), strict=True):
            if not found.there:
                raise self._missing(source, found.unit)
        before = unit.active == "active"
        models = ", ".join(each.model for each in by_turns)
        with self._watch.at(self._host, f"gateway: starting {models}" if models else "gateway: starting"):
            if not before:
                self._session.start(planned.unit)
            self._until_ready(began + (self._within if by_turns else _GATEWAY_S), by_turns, stale)
        took = 0.0 if before else round(time.monotonic() - began, 1)
        outcome: Outcome = "already-serving" if before else "serving"
        return ChangedUnit("gateway", planned.unit, outcome, took, unit.enabled == "enabled")

    def _until_ready(self, end: float, by_turns: Sequence[DeployedEngine], stale: Sequence[UnitState]) -> None:
        """stale: how engines were before."""
        units = [self._served.deployed.gateway.unit, *(each.unit for each in by_turns)]
        while True:
            state = self._session.state(units, gateway=self._served.gateway, ready=True)
            (unit, *engines), gateway = state.units, state.gateway
            if gateway and gateway.health == 200 and gateway.ready == 200:
                return
            for engine, found, before in zip(by_turns, engines, stale, strict=True):
                if found.active == "failed" and found.invocation != before.invocation:
                    raise self._failed(engine, found, found.invocation)
            if time.monotonic() > end or unit.active == "failed" or unit.sub == "auto-restart":
                raise self._gateway_failed(unit, gateway is not None and gateway.health == 200)
            time.sleep(_PAUSE_S)

    def _gateway_failed(self, unit: UnitState, healthy: bool) -> WinhostError:
        said = self._session.log([unit.unit], lines=20, invocation=unit.invocation or None)
        last = next((each.text for each in reversed(said.lines) if each.text.strip()), "")
        why = "a model does not complete a request" if healthy else f"it is {unit.active} ({unit.result})"
        return start_failure(self._host, "gateway", unit, [last], f"the gateway is not ready: {why}")


_STOP_PAUSE_S = 0.5
_STOP_GOES_ON = "Ctrl-C stops watching; what is stopping goes on stopping there."


def down(
    target: str, models: tuple[str, ...], yes: bool, within: float, fleet_file: Path | None, output: Output
) -> int:
    with watching(stops=_STOP_GOES_ON) as watch, serving_target(target, fleet_file, watch) as served:
        chosen = served.chosen(models)
        with watch.at(served.host, "asking engines"):
            found = served.status()
        with watch.paused():
            restarted = [each.model for each in chosen if models and each.turns]
            begin(_stop_question(found, [each.model for each in chosen], restarted), yes)
        sources = [] if models else [("gateway", served.deployed.gateway.unit)]
        sources += [(each.model, each.unit) for each in reversed(chosen)]
        change = Stopping(served, watch, within).all(sources, found.gateway.url)
    show_results("serving-change", output.shape, [(change.host, change)], show_change)
    return 0


def _stop_question(found: ServingStatus, models: Sequence[str], restarted: Sequence[str]) -> str:
    """The question, with the number of open requests. restarted: models that the gateway starts again."""
    running = sum(each.running or 0 for each in found.models if each.model in models)
    requests = f" {running} requests are open; they may end first." if running else ""
    again = f" The gateway starts {', '.join(restarted)} again when its turn comes." if restarted else ""
    return f"Stop {', '.join(models)} on {found.host}?{requests}{again}"


class Stopping:
    """The gateway first: it takes no more requests, and lets the open ones end. Then engines, the last one first."""

    def __init__(self, served: ServingTarget, watch: Watch, within: float) -> None:
        self._served, self._watch, self._within = served, watch, within
        self._host = served.host

    def all(self, sources: Sequence[tuple[str, str]], url: str) -> ServingChange:
        """sources: names and units. Raises WinhostError: NotStoppedInTime."""
        done: list[ChangedUnit] = []
        try:
            for source, unit in sources:
                done.append(self._unit(source, unit))
        except KeyboardInterrupt:
            at, *later = (source for source, _ in sources[len(done) :])
            parts = [f"stopped: {', '.join(each.source for each in done)}" if done else ""]
            parts += [f"{at} goes on stopping there", f"not stopped: {', '.join(later)}" if later else ""]
            self._watch.say(f"{self._host}: {'; '.join(filter(None, parts))}.")
            self._watch.say(f"  See: winhost serve status {self._host}. To go on: winhost serve down {self._host}")
            raise click.exceptions.Abort from None
        return ServingChange(self._host, url, tuple(done))

    def _unit(self, source: str, name: str) -> ChangedUnit:
        began = time.monotonic()
        unit = self._served.unit(name)
        enabled = unit.enabled == "enabled"
        if self._is_stopped(unit):
            return ChangedUnit(source, name, "already-stopped", 0.0, enabled)
        with self._watch.at(self._host, f"{source}: stopping; open requests end first"):
            self._served.session.stop(name)
            while not self._is_stopped(unit := self._served.unit(name)):
                if time.monotonic() > began + self._within:
                    raise self._late(source, unit)
                time.sleep(_STOP_PAUSE_S)
            self._watch(ProgressEvent(self._host, "done", f"{source}: stopped"))
        return ChangedUnit(source, name, "stopped", round(time.monotonic() - began, 1), enabled)

    @staticmethod
    def _is_stopped(unit: UnitState) -> bool:
        return not unit.there or (unit.active in ("inactive", "failed") and unit.sub != "auto-restart")

    def _late(self, source: str, unit: UnitState) -> WinhostError:
        return WinhostError(
            "NotStoppedInTime",
            what=f"{self._host}: {source} has not stopped after {render_duration(int(self._within))}: "
            f"it is {unit.active}",
            meaning="It goes on stopping there; systemd ends it when its own time is over.",
            hint=f"See: winhost serve status {self._host}",
            host=self._host,
        )


_YIELD_STAYS = "Ctrl-C stops watching; what was asked for stays."
_MODES = {"now": "on", "auto": "by whoever has a key for it", "never": "off"}
_STATES = {
    "yielded": "the GPUs are free",
    "yielding": "models are leaving their GPUs",
    "not-ready": "not every model answers",
    "no-answer": "the gateway does not answer",
    "serving": "models are served",
}


@dataclass(frozen=True)
class Yielding:
    """mode: now, auto or never; state: yielded, yielding, serving, not-ready (a model does not answer), no-answer (the
    gateway does not).
    """

    host: str
    mode: str
    state: str


def yields(host: str, mode: str | None, within: float, fleet_file: Path | None, output: Output) -> int:
    with watching(stops=_YIELD_STAYS) as watch, serving_target(host, fleet_file, watch) as served:
        if not served.deployed.gateway.yields:
            raise _never_asked(served.host)
        with watch.at(served.host, "asking the gateway"):
            found = served.session.yields(served.gateway, mode)
        if mode == "now":
            found = _left(served, watch, within)
    state = found.code if found.code in _STATES else "not-ready"
    now = Yielding(served.host, found.mode, state if found.code else "serving")
    show_results("yield", output.shape, [(now.host, now)], _show_yield)
    return 0


def _show_yield(now: Yielding) -> None:
    say(f"{now.host}: yield is {_MODES[now.mode]}: {_STATES[now.state]}", hang=2)


def _left(served: ServingTarget, watch: Watch, within: float) -> YieldState:
    """When all models have. Raises WinhostError: NotYielded."""
    until = time.monotonic() + within
    with watch.at(served.host, "waiting until models have left their GPUs"):
        while (found := served.session.yields(served.gateway)).code != "yielded":
            if time.monotonic() >= until:
                raise WinhostError(
                    "NotYielded",
                    what=f"{served.host}: not all models have left their GPUs",
                    meaning="No model takes requests any more; one that cannot leave is tried again every 15 seconds.",
                    hint=f"winhost serve logs {served.host} --gateway",
                    host=served.host,
                )
            time.sleep(_PAUSE_S)
    return found


def _never_asked(host: str) -> UsageError:
    return UsageError(
        "NoYield",
        what=f"{host}: its gateway is not set up to yield GPUs",
        meaning="Its workload has no availability.yield_to, so nothing takes its models off their GPUs.",
        hint=f"Add availability.yield_to to the workload and plan again: winhost plan {host} --workload WORKLOAD",
        host=host,
    )
