"""winhost serve status, logs and test: show what a target serves, print its logs, and test its answers."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.options import TargetOptions
from winhost.cli.output import say, with_fleet
from winhost.cli.serve.target import ServingTarget, WatchedTarget, connect_target, resolve_key
from winhost.cli.tables import table
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.engine.keys import stored_api_key
from winhost.engine.verified import BOOT, SinceVerified, changes_since_verified, save_verified
from winhost.model.durations import render_age
from winhost.model.errors import Exit, WinhostError, visible
from winhost.model.masking import masked
from winhost.model.served import BootTest, TimedAnswer, UnitLine
from winhost.model.units import about
from winhost.serving.deployed import DeployedEngine
from winhost.serving.engine_start import MAX_START_LINES, start_failure
from winhost.serving.serving_status import YIELDS, GatewayStatus, ModelStatus, ServingStatus
from winhost.symptoms.scan import strip_control_codes


def status(options: TargetOptions, metrics_key: str | None) -> int:
    secret = resolve_key(metrics_key, "--metrics-key")
    with connect_target(options, reads=True) as target, target.show_activity("asking engines and gateway"):
        serving_status = target.status(secret, ready=True)

    def show(serving_status: ServingStatus) -> None:
        show_status(serving_status)
        if changes := format_version_changes(changes_since_verified(serving_status.host, serving_status.versions)):
            say(changes[0].upper() + changes[1:], hang=2)

    show_results("serving", options.output.shape, [(serving_status.host, serving_status)], show)
    return int(Exit.SUCCESS if serving_status.serves else Exit.DRIFT)


def show_status(status: ServingStatus) -> None:
    count = sum(each.serves for each in status.models)
    starting = sum(each.starts for each in status.models)
    headline = f"{count} of {len(status.models)} models serve{f', {starting} starting' if starting else ''}"
    say(f"{status.host}: {headline} at {status.gateway.url}", fg="green" if status.serves else "red", bold=True)
    table(("model", "state", "for", "GPUs", "requests", "KV cache", "vLLM"), map(_model_row, status.models))
    _show_gateway(status.host, status.gateway)
    if status.boot_test:
        say(format_boot_test(status.boot_test), hang=2)
    if turns := [each for each in status.models if each.turn]:
        table(("model", "turn", "waiting for it", "last brought up"), map(_turn_row, turns))
    if status.gpus:
        rows = []
        for gpu in status.gpus:
            memory = "" if gpu.total is None or gpu.used is None else f"{about(gpu.used)} of {about(gpu.total)}"
            busy = "" if gpu.busy is None else f"{gpu.busy} %"
            rows.append((gpu.index, gpu.name, memory, busy, ", ".join(gpu.models)))
        table(("GPU", "name", "memory", "busy", "models"), rows)
    elif any(each.gpus for each in status.models):
        say("GPUs: nvidia-smi is missing, or does not answer.")
    for each in status.models:
        if each.state in _STATE_HINTS:
            text = f"{each.model}: {_STATE_HINTS[each.state]} winhost serve logs {status.host} --model {each.model}"
            say(with_fleet(text), hang=2)


def format_boot_test(boot_test: BootTest) -> str:
    elapsed = f"{render_age(boot_test.seconds)} after its start ({boot_test.at})"
    if boot_test.ready:
        return f"The machine tested its endpoint: each model answered, {elapsed}."
    return f"The machine tested its endpoint: not every model answered ({boot_test.why}), {elapsed}."


def format_version_changes(since: SinceVerified | None) -> str:
    """Name the versions that have changed since the endpoint was last found to answer; empty if none has."""
    if since is None or not (since.changed or since.unknown):
        return ""
    parts = [", ".join(f"{each.what} {each.verified} → {each.now}" for each in since.changed if each.what != BOOT)]
    if any(each.what == BOOT for each in since.changed):
        parts.append("the machine was started again")
    if since.unknown:
        parts.append(f"not known now: {', '.join(since.unknown)}")
    return f"since it was found to answer on {since.at[:10]}: {'; '.join(filter(None, parts))}"


_STATE_HINTS = {
    "failed": "its engine failed. Its log:",
    "failing": "its engine fails repeatedly. Its log:",
    "broken": "its engine runs and cannot serve any more. Its log:",
    "missing": "its unit is missing. Its log:",
}


def _model_row(each: ModelStatus) -> tuple[object, ...]:
    requests = "" if each.running is None else f"{each.running} running, {each.waiting or 0} waiting"
    state = each.state + (f" ({each.restarts} restarts)" if each.restarts else "")
    if each.answers is not None:
        state += ", answers" if each.answers else ", stands by"
    version = each.version or each.planned
    # Without their local parts, such as +cpu.
    same = version.partition("+")[0] == each.planned.lstrip("v").partition("+")[0]
    other = f" ({each.planned} was planned)" if each.version and not same else ""
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


def _turn_row(each: ModelStatus) -> tuple[object, ...]:
    assert each.turn
    turn, last_move = each.turn, ""
    if turn.move_seconds is not None and turn.move_at is not None:
        moved_at = datetime.fromtimestamp(turn.move_at, UTC).isoformat(timespec="seconds")
        last_move = f"{moved_at}, in {turn.move_seconds:.1f} s"
    return each.model, turn.state, turn.waiting, last_move


def _show_gateway(host: str, gateway: GatewayStatus) -> None:
    ready = {True: ", each model completed a request", False: ", not every model completes a request", None: ""}
    requests = ""
    if gateway.answered is not None:
        requests = f"; {gateway.running} requests now, {gateway.waiting} waiting, {gateway.answered} answered"
        requests += f", {gateway.refused} refused, {gateway.broken} broken off"
    say(f"Gateway: {gateway.state}{ready[gateway.ready]}{requests}", hang=2)
    if gateway.yields:
        say(with_fleet(f"  {YIELDS[gateway.yields]}. Who decides it: winhost yield {host}"), hang=2)
    if gateway.state not in ("serving", "starting", "stopped"):
        say(with_fleet(f"  Its log: winhost serve logs {host} --gateway"), hang=2)


_PAUSE_S = 1.0
_EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class ServingLine:
    """A line of the journal, without secrets. source: a model, or `gateway`; time: ISO 8601 in UTC."""

    host: str
    source: str
    unit: str
    time: str
    text: str


def logs(options: TargetOptions, models: tuple[str, ...], gateway: bool, follow: bool, lines: int) -> int:
    codes = [0]
    with connect_target(options, reads=True) as target:
        engines = target.chosen(models) if models or not gateway else ()
        sources = {each.unit: each.model for each in engines}
        if gateway or not models:
            sources[target.deployed.gateway.unit] = "gateway"

        def results() -> Iterator[tuple[str, ServingLine | WinhostError]]:
            try:
                for each in _read_lines(target, list(sources), lines, follow):
                    time_ = datetime.fromtimestamp(each.at, UTC).isoformat(timespec="seconds")
                    text = masked(strip_control_codes(each.text))
                    yield target.host, ServingLine(target.host, sources[each.unit], each.unit, time_, text)
            except KeyboardInterrupt:  # the document is still completed, and there is nothing to undo
                codes.append(_EXIT_INTERRUPTED)

        width = max(map(len, sources.values()))

        def show(line: ServingLine) -> None:
            click.echo(f"{line.time[:19]} {line.source:{width}} {visible(line.text)}")

        with target.watch.paused():
            show_results("serving-log", options.output.shape, results(), show)
    return max(codes)


def _read_lines(target: ServingTarget, units: Sequence[str], lines: int, follow: bool) -> Iterator[UnitLine]:
    page = target.session.log(units, lines=lines)
    while True:
        yield from page.lines
        cursor = page.cursor
        if not page.more:
            if not follow:
                return
            time.sleep(_PAUSE_S)
        page = target.session.log(units, lines=lines, cursor=cursor)


_UNKNOWN_MODEL = "winhost/no-such-model"
_COMPLETION_TOKENS, _STREAM_TOKENS = 16, 64
_MAX_ERROR_LENGTH = 200


@dataclass(frozen=True)
class TestedRequest:
    """A request and its answer. check: completion, stream, too-long, wrong-model, no-key or private; model: None for
    requests that test the gateway; status, expected: the HTTP status of the answer and the expected one; first_token,
    seconds: in seconds; tokens: of the answer; per_second: tokens per second after the first one.
    """

    check: str
    model: str | None
    passed: bool
    status: int | None
    expected: int
    seconds: float
    first_token: float | None
    tokens: int | None
    per_second: float | None
    why: str | None

    @property
    def title(self) -> str:
        return f"{self.check} of {self.model}" if self.model else self.check


@dataclass(frozen=True)
class TestedServing:
    """The result of the test. passed: every answer was as expected; skipped: checks that could not be made, and why."""

    host: str
    url: str
    passed: bool
    requests: tuple[TestedRequest, ...]
    skipped: tuple[str, ...]


def test(options: TargetOptions, api_key: str | None, models: tuple[str, ...]) -> int:
    result = _run_test(options, api_key, models)
    show_results("serving-test", options.output.shape, [(result.host, result)], _show_test)
    return int(Exit.SUCCESS if result.passed else Exit.FAILURE)


def test_again(host: str, key: str | None, fleet_file: Path | None) -> str:
    """Test again, and return the result as one line. Raises click.UsageError, WinhostError as `test` does."""
    result = _run_test(TargetOptions(host, fleet_file), key, ())
    wrong = ", ".join(each.title for each in result.requests if not each.passed)
    return f"tested again: {f'failed: {wrong}' if wrong else 'passed'}"


def _run_test(options: TargetOptions, reference: str | None, models: tuple[str, ...]) -> TestedServing:
    """Send one request after the other, from the target itself, because the gateway may listen only there. If all of
    them pass, save the versions with which they did.

    Raises RemoteError where the gateway does not listen, WinhostError (NotStarted, StartFailed).
    """
    key = resolve_key(reference)
    if not key:
        kept_key = stored_api_key(options.target)
        if kept_key is None:
            raise click.UsageError(
                f"winhost made no API key for {visible(options.target)}: name yours, as --api-key env:API_KEY"
            )
        key = kept_key.key.resolve().reveal()
    with connect_target(options, reads=True) as target:
        chosen = target.chosen(models)
        with target.show_activity("asking engines"):
            status = target.status()
        if status.gateway.state == "stopped":
            what, hint = "its gateway is stopped, so it cannot be tested", f"Start it: winhost serve up {target.host}"
            raise WinhostError("NotStarted", what=f"{target.host}: {what}", hint=hint, host=target.host)
        lengths = {each.model: each.length for each in status.models}
        engines = [each for each in chosen if not each.stands_by]
        skipped = [f"{each.model}: it takes over for {each.stands_by}" for each in chosen if each.stands_by]
        skipped += [
            f"too-long: the engine of {each.model} does not say how long a prompt may be"
            for each in engines
            if lengths[each.model] is None
        ]
        requests = [request for each in engines for request in _engine_requests(each, lengths[each.model])]
        requests += _gateway_requests(engines[0].model if engines else _UNKNOWN_MODEL)
        results = tuple(_send(target, key, each) for each in requests)
        passed = bool(engines) and all(each.passed for each in results)
        result = TestedServing(target.host, status.gateway.url, passed, results, tuple(skipped))
    if passed and not models:
        save_verified(result.host, status.versions)
    return result


def _completion_fault(answer: TimedAnswer) -> str | None:
    return None if answer.tokens else "the answer has no tokens"


def _stream_fault(answer: TimedAnswer) -> str | None:
    if answer.why:
        return answer.why
    return None if answer.whole and answer.tokens else "the stream did not come to its end"


@dataclass(frozen=True)
class _Request:
    """A request to send. expected: the expected status; engine: the engine of the model, None if the gateway itself
    answers; fault: returns why an answer with that status is wrong, or None; keyed: send the API key.
    """

    check: str
    expected: int
    body: Mapping[str, Json]
    engine: DeployedEngine | None = None
    fault: Callable[[TimedAnswer], str | None] = lambda _: None
    path: str = "/v1/completions"
    keyed: bool = True


def _engine_requests(engine: DeployedEngine, length: int | None) -> Iterator[_Request]:
    base: dict[str, Json] = {"model": engine.model, "prompt": "One two three", "temperature": 0}
    yield _Request("completion", 200, {**base, "max_tokens": _COMPLETION_TOKENS}, engine, _completion_fault)
    # ignore_eos: if the model ended at once, there would be nothing to measure.
    stream_options: dict[str, Json] = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    yield _Request("stream", 200, {**base, **stream_options, "max_tokens": _STREAM_TOKENS}, engine, _stream_fault)
    if length is not None:
        yield _Request("too-long", 400, {"model": engine.model, "prompt": [1] * (length + 1), "max_tokens": 1}, engine)


def _gateway_requests(model: str) -> Iterator[_Request]:
    body: dict[str, Json] = {"model": _UNKNOWN_MODEL, "prompt": "One", "max_tokens": 1}
    yield _Request("wrong-model", 404, body)
    yield _Request("no-key", 401, {**body, "model": model}, keyed=False)
    yield _Request("private", 404, {**body, "model": model}, path="/collective_rpc")


def _send(target: WatchedTarget, key: str, request: _Request) -> TestedRequest:
    engine, expected = request.engine, request.expected
    model = engine.model if engine else None
    with target.show_activity(f"{model or 'gateway'}: {request.check}"):
        engine_to_watch: dict[str, Json] | None = {"unit": engine.unit, "turns": engine.turns} if engine else None
        key_to_send = key if request.keyed else None
        answer = target.session.test(target.gateway, request.path, dict(request.body), key_to_send, engine_to_watch)
    if engine and answer.failed:
        lines = target.session.start_log(engine.unit, answer.failed[-1], MAX_START_LINES)
        repeatedly = " again and again" if len(answer.failed) > 1 else ""
        what = f"its engine failed{repeatedly}, and a request waited for it"
        raise start_failure(target.host, engine.model, target.unit(engine.unit), lines, what)
    fault = request.fault(answer) if answer.status == expected else answer.why or answer.text[:_MAX_ERROR_LENGTH]
    passed = answer.status == expected and fault is None
    why = masked(fault.replace(key, "***"))[:_MAX_ERROR_LENGTH] if fault else None
    rate = None
    if answer.first is not None and (answer.tokens or 0) > 1 and answer.seconds > answer.first:
        rate = round(((answer.tokens or 0) - 1) / (answer.seconds - answer.first), 1)
    times = answer.seconds, answer.first, answer.tokens, rate
    return TestedRequest(request.check, model, passed, answer.status, expected, *times, why)


def _show_test(result: TestedServing) -> None:
    good = sum(each.passed for each in result.requests)
    headline = f"{result.host}: {good} of {len(result.requests)} requests to {result.url} got the expected answer"
    say(headline, fg="green" if result.passed else "red", bold=True)
    rows = []
    for each in result.requests:
        first = "" if each.first_token is None else f"{each.first_token * 1000:.0f} ms"
        head = ("✓" if each.passed else "✗", each.check, each.model or "", each.status or "none")
        rows.append((*head, first, each.per_second or "", f"{each.seconds:.2f}"))
    table(("", "request", "model", "status", "first token", "tokens/s", "seconds"), rows)
    for each in result.requests:
        if not each.passed:
            status = each.status or "no answer"
            say(f"{each.title}: expected {each.expected}, got {status}. {each.why or ''}", hang=2)
    for skipped in result.skipped:
        say(f"Skipped: {skipped}", hang=2)
