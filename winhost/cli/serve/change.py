"""winhost serve up and down, and winhost yield: start, stop and suspend what a target serves, and wait for it."""

import time
from collections.abc import Sequence
from typing import Literal, TypeAlias

import click

from winhost.cli.change.running import begin
from winhost.cli.envelope import show_results
from winhost.cli.options import TargetOptions
from winhost.cli.output import say, with_fleet
from winhost.cli.serve.target import WatchedTarget, reached
from winhost.core.dataclass import dataclass
from winhost.engine.keys import kept_api_key
from winhost.engine.progress import ProgressEvent
from winhost.model.durations import render_duration
from winhost.model.errors import UsageError, WinhostError
from winhost.model.served import UnitState, YieldState
from winhost.serving.deployed import DeployedEngine
from winhost.serving.engine_start import MAX_START_LINES, StartProgress, start_failure
from winhost.serving.serving_status import standing

# As it is now; `already` where it was so before.
Outcome: TypeAlias = Literal["serving", "already-serving", "taking-turns", "stopped", "already-stopped"]


@dataclass(frozen=True)
class ChangedUnit:
    """A unit after the change. source: a model, or `gateway`; seconds: the time that it took; enabled: it starts with
    the machine.
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


def _show_change(at: TargetOptions, served: WatchedTarget, done: Sequence[ChangedUnit]) -> None:
    gateway = served.deployed.gateway
    change = ServingChange(served.host, gateway.url(gateway.address), tuple(done))

    def show(found: ServingChange) -> None:
        for each in found.units:
            took = f" after {each.seconds:.0f} s" if each.outcome in ("serving", "stopped") else ""
            say(f"{found.host}: {each.source}: {each.outcome.replace('-', ' ')}{took}", hang=2)

    show_results("serving-change", at.output.shape, [(change.host, change)], show)


def _interrupted(served: WatchedTarget, done: str, going_on: str, left: str, way_on: str) -> click.exceptions.Abort:
    """Tell what is done, what goes on by itself and what was not begun, and return the exception that ends the command.
    Nothing is left half done. way_on: the purpose of `winhost serve down` now.
    """
    served.watch.say(f"{served.host}: {'; '.join(filter(None, (done, going_on, left)))}.")
    served.watch.say(f"  See: winhost serve status {served.host}. {way_on}: winhost serve down {served.host}")
    return click.exceptions.Abort()


# ---- up

_PAUSE_S = 1.0
_GATEWAY_S = 60.0


def up(at: TargetOptions, models: tuple[str, ...], within: float) -> int:
    with reached(at, stops="Ctrl-C stops watching; what starts goes on starting there.") as served:
        done = _Starting(served, within).all(served.chosen(models))
    _show_change(at, served, done)
    if at.output.shape == "table":
        key = "" if kept_api_key(served.host) else " --api-key REF"
        say(with_fleet(f"Next: winhost serve test {served.host}{key}"))
    return 0


@dataclass(frozen=True)
class _Starting:
    """Starts engines one after the other, because two that start together measure each other's memory. The gateway
    starts those that take turns. within: seconds for each.
    """

    served: WatchedTarget
    within: float

    def all(self, engines: Sequence[DeployedEngine]) -> list[ChangedUnit]:
        """Raises WinhostError (StartFailed, NotServingInTime)."""
        done: list[ChangedUnit] = []
        by_turns = [engine for engine in engines if engine.turns]
        source = ""
        try:
            for engine in engines:
                if not engine.turns:
                    source = engine.model
                    done.append(self._engine(engine))
            source = "gateway"
            done.append(self._gateway(by_turns))
        except KeyboardInterrupt:
            serving = ", ".join(each.source for each in done)
            begun = {source, *(each.source for each in done)}
            later = ", ".join(name for name in (*(each.model for each in engines), "gateway") if name not in begun)
            left = f"not started: {later}" if later else ""
            stands = f"{serving} serving" if serving else ""
            raise _interrupted(self.served, stands, f"{source} goes on starting there", left, "To stop it") from None
        return done + [ChangedUnit(each.model, each.unit, "taking-turns", 0.0, enabled=False) for each in by_turns]

    def _engine(self, engine: DeployedEngine) -> ChangedUnit:
        began = time.monotonic()
        unit, health = self._look(engine)
        if standing(unit, health) == "serving":
            return ChangedUnit(engine.model, engine.unit, "already-serving", 0.0, unit.enabled == "enabled")
        self._refuse_missing(engine.model, unit)
        with self.served.at(f"{engine.model}: starting"):
            if unit.active not in ("active", "activating") or unit.sub == "auto-restart":
                self.served.session.start(engine.unit)
            unit = self._until_it_serves(engine, began + self.within)
        took = round(time.monotonic() - began, 1)
        return ChangedUnit(engine.model, engine.unit, "serving", took, unit.enabled == "enabled")

    def _look(self, engine: DeployedEngine) -> tuple[UnitState, int | None]:
        found = self.served.session.state([engine.unit], [engine.socket])
        return found.units[0], found.engines[0].health

    def _until_it_serves(self, engine: DeployedEngine, end: float) -> UnitState:
        progress, cursor, start, restarts = StartProgress(), None, "", None
        host, model = self.served.host, engine.model
        while True:
            unit, health = self._look(engine)
            start, restarts = start or unit.invocation, unit.restarts if restarts is None else restarts
            if start:
                lines = MAX_START_LINES
                page = self.served.session.log([engine.unit], lines=lines, cursor=cursor, invocation=start)
                cursor = page.cursor
                before = progress.phase
                if progress.read([each.text for each in page.lines]):
                    self.served.watch(ProgressEvent(host, "done", f"{model}: {before.title}"))
                    self.served.watch(ProgressEvent(host, "at", f"{model}: {progress.phase.title}"))
                self.served.watch.now(host, f"{model} {progress.bar}")
            found = standing(unit, health)
            if found == "serving" and unit.invocation == start:
                self.served.watch(ProgressEvent(host, "done", f"{model}: {progress.phase.title}"))
                return unit
            if found in ("failed", "failing", "stopped", "broken") or unit.restarts > restarts:
                raise self._failed(engine, unit, start)
            if time.monotonic() > end:
                raise WinhostError(
                    "NotServingInTime",
                    what=f"{host}: {model} does not serve after {render_duration(int(self.within))}; "
                    f"it is at: {progress.phase.title}",
                    meaning="It goes on starting there.",
                    hint=f"Wait longer: winhost serve up {host} --within 2h. "
                    f"Its log: winhost serve logs {host} --model {model}",
                    host=host,
                )
            time.sleep(_PAUSE_S)

    def _failed(self, engine: DeployedEngine, unit: UnitState, start: str) -> WinhostError:
        """Stop the engine, which systemd would start again and again, and return why it failed."""
        lines = self.served.session.start_log(engine.unit, start, MAX_START_LINES)
        self.served.session.stop(engine.unit)
        return start_failure(self.served.host, engine.model, unit, lines)

    def _refuse_missing(self, source: str, unit: UnitState) -> None:
        """Raises WinhostError: UnitMissing."""
        if not unit.there:
            raise WinhostError(
                "UnitMissing",
                what=f"{self.served.host}: {source}: there is no unit {unit.unit}",
                meaning="It was removed, or was never installed to its end.",
                hint="winhost runs shows runs to resume; a new plan puts it back: "
                f"winhost plan {self.served.host} --workload WORKLOAD",
                host=self.served.host,
            )

    def _gateway(self, by_turns: Sequence[DeployedEngine]) -> ChangedUnit:
        """Start the gateway. by_turns: the engines that it starts, each once before it is ready."""
        name, session, began = self.served.deployed.gateway.unit, self.served.session, time.monotonic()
        unit, *before = session.state([name, *(each.unit for each in by_turns)]).units
        for source, found in zip(("gateway", *(each.model for each in by_turns)), (unit, *before), strict=True):
            self._refuse_missing(source, found)
        active = unit.active == "active"
        models = ", ".join(each.model for each in by_turns)
        with self.served.at(f"gateway: starting {models}" if models else "gateway: starting"):
            if not active:
                session.start(name)
            self._until_ready(began + (self.within if by_turns else _GATEWAY_S), by_turns, before)
        took = 0.0 if active else round(time.monotonic() - began, 1)
        return ChangedUnit("gateway", name, "already-serving" if active else "serving", took, unit.enabled == "enabled")

    def _until_ready(self, end: float, by_turns: Sequence[DeployedEngine], before: Sequence[UnitState]) -> None:
        """Wait until the gateway is ready. before: the units of `by_turns` before it was started."""
        units = [self.served.deployed.gateway.unit, *(each.unit for each in by_turns)]
        while True:
            state = self.served.session.state(units, gateway=self.served.gateway, ready=True)
            (unit, *engines), gateway = state.units, state.gateway
            healthy = gateway is not None and gateway.health == 200
            if gateway and healthy and gateway.ready == 200:
                return
            for engine, found, earlier in zip(by_turns, engines, before, strict=True):
                if found.active == "failed" and found.invocation != earlier.invocation:
                    raise self._failed(engine, found, found.invocation)
            if time.monotonic() > end or unit.active == "failed" or unit.sub == "auto-restart":
                page = self.served.session.log([unit.unit], lines=20, invocation=unit.invocation or None)
                last = next((each.text for each in reversed(page.lines) if each.text.strip()), "")
                why = "a model does not complete a request" if healthy else f"it is {unit.active} ({unit.result})"
                what = f"the gateway is not ready: {why}"
                raise start_failure(self.served.host, "gateway", unit, [last], what)
            time.sleep(_PAUSE_S)


# ---- down

_STOP_PAUSE_S = 0.5


def down(at: TargetOptions, models: tuple[str, ...], yes: bool, within: float) -> int:
    with reached(at, stops="Ctrl-C stops watching; what is stopping goes on stopping there.") as served:
        chosen = served.chosen(models)
        with served.at("asking engines"):
            found = served.status()
        names = [each.model for each in chosen]
        running = sum(each.running or 0 for each in found.models if each.model in names)
        requests = f" {running} requests are open; they may end first." if running else ""
        # Without its own stop the gateway keeps running, and starts models again.
        restarted = ", ".join(each.model for each in chosen if models and each.turns)
        again = f" The gateway starts {restarted} again when its turn comes." if restarted else ""
        with served.watch.paused():
            begin(f"Stop {', '.join(names)} on {found.host}?{requests}{again}", yes)
        sources = [] if models else [("gateway", served.deployed.gateway.unit)]
        sources += [(each.model, each.unit) for each in reversed(chosen)]
        done = _stopped(served, sources, within)
    _show_change(at, served, done)
    return 0


def _stopped(served: WatchedTarget, sources: Sequence[tuple[str, str]], within: float) -> list[ChangedUnit]:
    """Stop units in this order: the gateway takes no more requests and lets the open ones end; then engines, the last
    one first. Raises WinhostError: NotStoppedInTime.
    """
    done: list[ChangedUnit] = []
    try:
        for source, unit in sources:
            done.append(_stop(served, source, unit, within))
    except KeyboardInterrupt:
        at, *later = (source for source, _ in sources[len(done) :])
        stands = f"stopped: {', '.join(each.source for each in done)}" if done else ""
        left = f"not stopped: {', '.join(later)}" if later else ""
        raise _interrupted(served, stands, f"{at} goes on stopping there", left, "To go on") from None
    return done


def _stop(served: WatchedTarget, source: str, name: str, within: float) -> ChangedUnit:
    began = time.monotonic()
    unit = served.unit(name)
    enabled = unit.enabled == "enabled"
    if _is_stopped(unit):
        return ChangedUnit(source, name, "already-stopped", 0.0, enabled)
    with served.at(f"{source}: stopping; open requests end first"):
        served.session.stop(name)
        while not _is_stopped(unit := served.unit(name)):
            if time.monotonic() > began + within:
                raise WinhostError(
                    "NotStoppedInTime",
                    what=f"{served.host}: {source} has not stopped after {render_duration(int(within))}: "
                    f"it is {unit.active}",
                    meaning="It goes on stopping there; systemd ends it when its own time is over.",
                    hint=f"See: winhost serve status {served.host}",
                    host=served.host,
                )
            time.sleep(_STOP_PAUSE_S)
        served.watch(ProgressEvent(served.host, "done", f"{source}: stopped"))
    return ChangedUnit(source, name, "stopped", round(time.monotonic() - began, 1), enabled)


def _is_stopped(unit: UnitState) -> bool:
    return not unit.there or (unit.active in ("inactive", "failed") and unit.sub != "auto-restart")


# ---- yield

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
    """The state of a gateway. mode: now, auto or never; state: yielded, yielding, serving, not-ready (a model does not
    answer), no-answer (the gateway does not).
    """

    host: str
    mode: str
    state: str


def yields(at: TargetOptions, mode: str | None, within: float) -> int:
    with reached(at, stops="Ctrl-C stops watching; what was asked for stays.") as served:
        host = served.host
        if not served.deployed.gateway.yields:
            raise UsageError(
                "NoYield",
                what=f"{host}: its gateway is not set up to yield GPUs",
                meaning="Its workload has no availability.yield_to, so nothing takes its models off their GPUs.",
                hint="Add availability.yield_to to the workload and plan again: "
                f"winhost plan {host} --workload WORKLOAD",
                host=host,
            )
        with served.at("asking the gateway"):
            found = served.session.yields(served.gateway, mode)
        if mode == "now":
            found = _wait_until_yielded(served, within)
    state = found.code if found.code in _STATES else "not-ready"
    now = Yielding(host, found.mode, state if found.code else "serving")
    said = f"{host}: yield is {_MODES[now.mode]}: {_STATES[now.state]}"
    return show_results("yield", at.output.shape, [(host, now)], lambda _: say(said, hang=2))


def _wait_until_yielded(served: WatchedTarget, within: float) -> YieldState:
    """Wait until all models have left their GPUs. Raises WinhostError: NotYielded."""
    until = time.monotonic() + within
    with served.at("waiting until models have left their GPUs"):
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
