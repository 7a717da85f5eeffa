"""winhost serve down: stop the gateway of a target, then its engines, each when its open requests are done."""

import time
from collections.abc import Sequence
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.outputs import Output
from winhost.cli.running import begin
from winhost.cli.serve_change import ChangedUnit, ServingChange, show_change
from winhost.cli.serving_target import ServingTarget, serving_target
from winhost.cli.watch import Watch, watching
from winhost.engine.progress import ProgressEvent
from winhost.model.durations import render_duration
from winhost.model.errors import WinhostError
from winhost.model.served import UnitState
from winhost.serving.serving_status import ServingStatus

_PAUSE_S = 0.5
_STOPS = "Ctrl-C stops watching; what is stopping goes on stopping there."


def down(
    target: str, models: tuple[str, ...], yes: bool, within: float, fleet_file: Path | None, output: Output
) -> int:
    """Stop what is served on TARGET, when its open requests are done."""
    with watching(stops=_STOPS) as watch, serving_target(target, fleet_file, watch) as served:
        chosen = served.chosen(models)
        with watch.at(served.host, "asking engines"):
            found = served.status()
        with watch.paused():
            restarted = [each.model for each in chosen if models and each.turns]
            begin(_question(found, [each.model for each in chosen], restarted), yes)
        sources = [] if models else [("gateway", served.deployed.gateway.unit)]
        sources += [(each.model, each.unit) for each in reversed(chosen)]
        change = Stopping(served, watch, within).all(sources, found.gateway.url)
    show_results("serving-change", output.shape, [(change.host, change)], show_change)
    return 0


def _question(found: ServingStatus, models: Sequence[str], restarted: Sequence[str]) -> str:
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
                time.sleep(_PAUSE_S)
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
