"""winhost serve status and logs: show what a target serves, and what it wrote to the journal."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

from winhost.cli.envelope import show_results
from winhost.cli.options import TargetOptions
from winhost.cli.output import say
from winhost.cli.serving_target import ServingTarget, reached, secret_key
from winhost.cli.tables import table
from winhost.core.dataclass import dataclass
from winhost.engine.verified import BOOT, SinceVerified, since_verified
from winhost.model.durations import render_age
from winhost.model.errors import Exit, WinhostError, visible
from winhost.model.masking import masked
from winhost.model.served import BootTest, UnitLine
from winhost.model.units import about
from winhost.serving.serving_status import YIELDS, GatewayStatus, ModelStatus, ServedGpu, ServingStatus
from winhost.symptoms.scan import plain


def status(at: TargetOptions, metrics_key: str | None) -> int:
    secret = secret_key(metrics_key, "--metrics-key")
    with reached(at, reads=True) as served, served.at("asking engines and gateway"):
        found = served.status(secret, ready=True)

    def show(found: ServingStatus) -> None:
        show_status(found)
        if since := since_text(since_verified(found.host, found.versions)):
            say(since[0].upper() + since[1:], hang=2)

    show_results("serving", at.output.shape, [(found.host, found)], show)
    return int(Exit.SUCCESS if found.serves else Exit.DRIFT)


def show_status(found: ServingStatus) -> None:
    count = sum(each.serves for each in found.models)
    starting = sum(each.starts for each in found.models)
    says = f"{count} of {len(found.models)} models serve{f', {starting} starting' if starting else ''}"
    say(f"{found.host}: {says} at {found.gateway.url}", fg="green" if found.serves else "red", bold=True)
    table(("model", "state", "for", "GPUs", "requests", "KV cache", "vLLM"), map(_row, found.models))
    _show_gateway(found.host, found.gateway)
    if found.boot_test:
        say(boot_test_text(found.boot_test), hang=2)
    if turns := [each for each in found.models if each.turn]:
        table(("model", "turn", "waiting for it", "last brought up"), map(_turn, turns))
    if found.gpus:
        table(("GPU", "name", "memory", "busy", "models"), map(_gpu_row, found.gpus))
    elif any(each.gpus for each in found.models):
        say("GPUs: nvidia-smi is not there, or does not answer.")
    for each in found.models:
        if each.state in _TROUBLED:
            say(f"{each.model}: {_TROUBLED[each.state]} winhost serve logs {found.host} --model {each.model}", hang=2)


def boot_test_text(found: BootTest) -> str:
    after = f"{render_age(found.seconds)} after its start ({found.at})"
    if found.ready:
        return f"The machine tested its endpoint: each model answered, {after}."
    return f"The machine tested its endpoint: not every model answered ({found.why}), {after}."


def since_text(since: SinceVerified | None) -> str:
    """Name the versions that have changed since the endpoint was last found to answer; empty if none has."""
    if since is None or not (since.changed or since.unknown):
        return ""
    parts = [", ".join(f"{each.what} {each.verified} → {each.now}" for each in since.changed if each.what != BOOT)]
    if any(each.what == BOOT for each in since.changed):
        parts.append("the machine was started again")
    if since.unknown:
        parts.append(f"not known now: {', '.join(since.unknown)}")
    return f"since it was found to answer on {since.at[:10]}: {'; '.join(filter(None, parts))}"


_TROUBLED = {
    "failed": "its engine failed. Its log:",
    "failing": "its engine fails again and again. Its log:",
    "broken": "its engine runs and cannot serve any more. Its log:",
    "missing": "its unit is not there. What is known of it:",
}


def _row(each: ModelStatus) -> tuple[object, ...]:
    requests = "" if each.running is None else f"{each.running} running, {each.waiting or 0} waiting"
    state = each.state + (f" ({each.restarts} restarts)" if each.restarts else "")
    if each.answers is not None:
        state += ", answers" if each.answers else ", stands by"
    version = each.version or each.planned
    other = f" ({each.planned} was planned)" if each.version and not _same(each.version, each.planned) else ""
    cache = "" if each.kv_cache is None else f"{each.kv_cache:.0%}"
    return (
        each.model,
        state,
        "" if each.seconds is None else render_age(each.seconds),
        ", ".join(map(str, each.gpus)) or "none",
        requests,
        cache,
        version + other,
    )


def _turn(each: ModelStatus) -> tuple[object, ...]:
    assert each.turn
    turn, moved = each.turn, ""
    if turn.move_seconds is not None and turn.move_at is not None:
        at = datetime.fromtimestamp(turn.move_at, UTC).isoformat(timespec="seconds")
        moved = f"{at}, in {turn.move_seconds:.1f} s"
    return each.model, turn.state, turn.waiting, moved


def _same(found: str, planned: str) -> bool:
    """Compare versions without their local parts, such as +cpu."""
    return found.partition("+")[0] == planned.lstrip("v").partition("+")[0]


def _show_gateway(host: str, found: GatewayStatus) -> None:
    ready = {True: ", each model completed a request", False: ", not every model completes a request", None: ""}
    requests = ""
    if found.answered is not None:
        requests = f"; {found.running} requests now, {found.waiting} waiting, {found.answered} answered"
        requests += f", {found.refused} refused, {found.broken} broken off"
    say(f"Gateway: {found.state}{ready[found.ready]}{requests}", hang=2)
    if found.yields:
        say(f"  {YIELDS[found.yields]}. Who decides it: winhost yield {host}", hang=2)
    if found.state not in ("serving", "starting", "stopped"):
        say(f"  Its log: winhost serve logs {host} --gateway", hang=2)


def _gpu_row(each: ServedGpu) -> tuple[object, ...]:
    memory = "" if each.total is None or each.used is None else f"{about(each.used)} of {about(each.total)}"
    return each.index, each.name, memory, "" if each.busy is None else f"{each.busy} %", ", ".join(each.models)


_PAUSE_S = 1.0
_STOPPED = 130


@dataclass(frozen=True)
class ServingLine:
    """A line of the journal, without secrets. source: a model, or `gateway`; time: ISO 8601 in UTC."""

    host: str
    source: str
    unit: str
    time: str
    text: str


def logs(at: TargetOptions, models: tuple[str, ...], gateway: bool, follow: bool, lines: int) -> int:
    codes = [0]
    with reached(at, reads=True) as served:
        engines = served.chosen(models) if models or not gateway else ()
        sources = {each.unit: each.model for each in engines}
        if gateway or not models:
            sources[served.deployed.gateway.unit] = "gateway"

        def results() -> Iterator[tuple[str, ServingLine | WinhostError]]:
            try:
                for each in _lines(served, list(sources), lines, follow):
                    time_ = datetime.fromtimestamp(each.at, UTC).isoformat(timespec="seconds")
                    said = masked(plain(each.text))
                    yield served.host, ServingLine(served.host, sources[each.unit], each.unit, time_, said)
            except KeyboardInterrupt:  # the document is ended, and nothing is left to be undone
                codes.append(_STOPPED)

        width = max(map(len, sources.values()))

        def show(line: ServingLine) -> None:
            click.echo(f"{line.time[:19]} {line.source:{width}} {visible(line.text)}")

        with served.watch.paused():
            show_results("serving-log", at.output.shape, results(), show)
    return max(codes)


def _lines(served: ServingTarget, units: Sequence[str], lines: int, follow: bool) -> Iterator[UnitLine]:
    page = served.session.log(units, lines=lines)
    while True:
        yield from page.lines
        cursor = page.cursor
        if not page.more:
            if not follow:
                return
            time.sleep(_PAUSE_S)
        page = served.session.log(units, lines=lines, cursor=cursor)
