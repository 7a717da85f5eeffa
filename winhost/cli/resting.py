"""winhost serve explain: how a model may rest between its turns."""

import click

from winhost.cli.tables import table
from winhost.gateway.gateway_settings import Limits
from winhost.serving.levels import LADDER, MEASURED, ON_DISK, STOPPED, ChosenRung, choose, preferred


def explain(
    weights: float | None, host_memory: float | None, swap_within: float | None, pinned: bool, reloads: bool
) -> int:
    """Print the ladder, and which rung the memory and the time ask for."""
    if (weights is None) is not (host_memory is None):
        raise click.UsageError("--weights and --host-memory go together")
    if swap_within is not None and weights is None:
        raise click.UsageError("--swap-within needs --weights and --host-memory")
    table(
        ("between its turns", "back in", "away in", "host memory", "stays on the GPU", "needs"),
        [(r.name, _seconds(r.back), r.away, _times(r.of_weights), r.gpu, r.needs) for r in LADDER],
        title="From the fastest to the slowest",
    )
    click.echo(f"Measured: {MEASURED}. Nobody has measured WSL.")
    if weights is not None and host_memory is not None:
        rungs = [rung for rung in preferred(pinned, reloads) if rung.of_weights * weights <= host_memory]
        click.echo(_sentence(choose(rungs, weights, swap_within), weights, swap_within))
        image, cold = (rung.start(weights) for rung in (ON_DISK, STOPPED))
        said = (
            f"A standby that does not fit beside its model is the same engine, started anew: after about {image:.0f} s"
        )
        click.echo(f"{said} from its image on disk, {cold:.0f} s cold (estimates). Requests wait for {Limits.hold} s.")
    return 0


def _sentence(chosen: ChosenRung, weights: float, within: float | None) -> str:
    said = f"Take: {chosen.rung.name}. It answers, once another one like it has left, after about "
    said += f"{chosen.seconds:.1f} s with {weights:g} GiB of weights (estimate)"
    if within is None:
        return said + "."
    return said + (f", within {within:g} s." if chosen.kept else f", which is later than {within:g} s.")


def _seconds(back: tuple[float, float]) -> str:
    if not any(back):
        return "at once"
    return f"{back[0]:g} s" if back[0] == back[1] else f"{back[0]:g} to {back[1]:g} s"


def _times(of_weights: float) -> str:
    return f"{of_weights:g} x weights" if of_weights else "none"
