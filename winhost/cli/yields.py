"""winhost yield: models leave their GPUs to something else, and come back."""

import time
from pathlib import Path

from winhost.cli.output import say
from winhost.cli.serving_target import ServingTarget, serving_target
from winhost.cli.watch import Watch, watching
from winhost.model.errors import UsageError, WinhostError
from winhost.model.served import YieldState

_PAUSE_S = 1.0
_STOPS = "Ctrl-C stops watching; what was asked for stays."
_MODES = {"now": "on", "auto": "by whoever has a key for it", "never": "off"}


def yields(host: str, mode: str | None, within: float, fleet_file: Path | None) -> int:
    """Show whether models of a host yield their GPUs, or decide it."""
    with watching(stops=_STOPS) as watch, serving_target(host, fleet_file, watch) as served:
        if not served.deployed.gateway.yields:
            raise _never_asked(served.host)
        with watch.at(served.host, "asking the gateway"):
            found = served.session.yields(served.gateway, mode)
        if mode == "now":
            found = _left(served, watch, within)
    state = {"yielded": "the GPUs are free", "yielding": "models are leaving their GPUs"}.get(found.code)
    say(f"{served.host}: yield is {_MODES[found.mode]}: {state or 'models are served'}", hang=2)
    return 0


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
