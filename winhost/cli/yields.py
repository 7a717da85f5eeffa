"""winhost yield: models leave their GPUs to something else, and come back."""

import time
from dataclasses import dataclass
from pathlib import Path

from winhost.cli.envelope import show_results
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.serving_target import ServingTarget, serving_target
from winhost.cli.watch import Watch, watching
from winhost.model.errors import UsageError, WinhostError
from winhost.model.served import YieldState

_PAUSE_S = 1.0
_STOPS = "Ctrl-C stops watching; what was asked for stays."
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
    """Show whether models of a host yield their GPUs, or decide it."""
    with watching(stops=_STOPS) as watch, serving_target(host, fleet_file, watch) as served:
        if not served.deployed.gateway.yields:
            raise _never_asked(served.host)
        with watch.at(served.host, "asking the gateway"):
            found = served.session.yields(served.gateway, mode)
        if mode == "now":
            found = _left(served, watch, within)
    state = found.code if found.code in _STATES else "not-ready"
    now = Yielding(served.host, found.mode, state if found.code else "serving")
    show_results("yield", output.shape, [(now.host, now)], _show)
    return 0


def _show(now: Yielding) -> None:
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
