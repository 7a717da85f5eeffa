"""winhost serve status, logs and test: what a target serves, what it wrote, and whether it answers as it should."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.options import TargetOptions
from winhost.cli.output import say, with_fleet
from winhost.cli.serve.target import ServingTarget, WatchedTarget, reached, secret_key
from winhost.cli.tables import table
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.engine.keys import kept_api_key
from winhost.engine.verified import BOOT, SinceVerified, keep_verified, since_verified
from winhost.model.durations import render_age
from winhost.model.errors import Exit, WinhostError, visible
from winhost.model.masking import masked
from winhost.model.served import BootTest, TimedAnswer, UnitLine
from winhost.model.units import about
from winhost.serving.deployed import DeployedEngine
from winhost.serving.engine_start import MAX_START_LINES, start_failure
from winhost.serving.serving_status import YIELDS, GatewayStatus, ModelStatus, ServingStatus
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
    table(("model", "state", "for", "GPUs", "requests", "KV cache", "vLLM"), map(_model_row, found.models))
    _show_gateway(found.host, found.gateway)
    if found.boot_test:
        say(boot_test_text(found.boot_test), hang=2)
    if turns := [each for each in found.models if each.turn]:
        table(("model", "turn", "waiting for it", "last brought up"), map(_turn, turns))
    if found.gpus:
        rows = []
        for gpu in found.gpus:
            memory = "" if gpu.total is None or gpu.used is None else f"{about(gpu.used)} of {about(gpu.total)}"
            busy = "" if gpu.busy is None else f"{gpu.busy} %"
            rows.append((gpu.index, gpu.name, memory, busy, ", ".join(gpu.models)))
        table(("GPU", "name", "memory", "busy", "models"), rows)
    elif any(each.gpus for each in found.models):
        say("GPUs: nvidia-smi is not there, or does not answer.")
    for each in found.models:
        if each.state in _TROUBLED:
            told = f"{each.model}: {_TROUBLED[each.state]} winhost serve logs {found.host} --model {each.model}"
            say(with_fleet(told), hang=2)


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


def _turn(each: ModelStatus) -> tuple[object, ...]:
    assert each.turn
    turn, moved = each.turn, ""
    if turn.move_seconds is not None and turn.move_at is not None:
        at = datetime.fromtimestamp(turn.move_at, UTC).isoformat(timespec="seconds")
        moved = f"{at}, in {turn.move_seconds:.1f} s"
    return each.model, turn.state, turn.waiting, moved


def _show_gateway(host: str, found: GatewayStatus) -> None:
    ready = {True: ", each model completed a request", False: ", not every model completes a request", None: ""}
    requests = ""
    if found.answered is not None:
        requests = f"; {found.running} requests now, {found.waiting} waiting, {found.answered} answered"
        requests += f", {found.refused} refused, {found.broken} broken off"
    say(f"Gateway: {found.state}{ready[found.ready]}{requests}", hang=2)
    if found.yields:
        say(with_fleet(f"  {YIELDS[found.yields]}. Who decides it: winhost yield {host}"), hang=2)
    if found.state not in ("serving", "starting", "stopped"):
        say(with_fleet(f"  Its log: winhost serve logs {host} --gateway"), hang=2)


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


_NO_MODEL = "winhost/no-such-model"
_TOKENS, _STREAMED = 16, 64
_SHOWN = 200


@dataclass(frozen=True)
class TestedRequest:
    """check: completion, stream, too-long, wrong-model, no-key or private; model: None for requests that are about the
    gateway; status: that came, and expected; first_token, seconds: in seconds; tokens: of the answer; per_second:
    tokens after the first one.
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
    """The result of the test. passed: every request was answered as it should be; skipped: checks that could not be
    made, and why.
    """

    host: str
    url: str
    passed: bool
    requests: tuple[TestedRequest, ...]
    skipped: tuple[str, ...]


def test(at: TargetOptions, api_key: str | None, models: tuple[str, ...]) -> int:
    found = _test(at, api_key, models)
    show_results("serving-test", at.output.shape, [(found.host, found)], _show)
    return int(Exit.SUCCESS if found.passed else Exit.FAILURE)


def test_again(host: str, key: str | None, fleet_file: Path | None) -> str:
    """Test again, and return the result in a line. Raises click.UsageError, WinhostError as `test` does."""
    found = _test(TargetOptions(host, fleet_file), key, ())
    wrong = ", ".join(each.title for each in found.requests if not each.passed)
    return f"tested again: {f'not as it should be: {wrong}' if wrong else 'passed'}"


def _test(at: TargetOptions, reference: str | None, models: tuple[str, ...]) -> TestedServing:
    """Ask one request after the other, from the target itself: the gateway may listen on nothing but its own address.
    Remembers with which versions all of them passed.

    Raises RemoteError where the gateway does not listen, WinhostError (NotStarted, StartFailed).
    """
    key = secret_key(reference)
    if not key:
        made = kept_api_key(at.target)
        if made is None:
            raise click.UsageError(
                f"winhost made no key for {visible(at.target)}: name yours, as --api-key env:API_KEY"
            )
        key = made.key.resolve().reveal()
    with reached(at, reads=True) as served:
        chosen = served.chosen(models)
        with served.at("asking engines"):
            status = served.status()
        if status.gateway.state == "stopped":
            what, hint = "its gateway is stopped, so nothing can be tested", f"Start it: winhost serve up {served.host}"
            raise WinhostError("NotStarted", what=f"{served.host}: {what}", hint=hint, host=served.host)
        lengths = {each.model: each.length for each in status.models}
        engines = [each for each in chosen if not each.stands_by]
        skipped = [f"{each.model}: it takes over for {each.stands_by}" for each in chosen if each.stands_by]
        skipped += [
            f"too-long: the engine of {each.model} does not say how long a prompt may be"
            for each in engines
            if lengths[each.model] is None
        ]
        requests = [request for each in engines for request in _of_engine(each, lengths[each.model])]
        requests += _of_gateway(engines[0].model if engines else _NO_MODEL)
        asked = tuple(_asked(served, key, each) for each in requests)
        passed = bool(engines) and all(each.passed for each in asked)
        found = TestedServing(served.host, status.gateway.url, passed, asked, tuple(skipped))
    if passed and not models:
        keep_verified(found.host, status.versions)
    return found


def _has_text(answer: TimedAnswer) -> str | None:
    return None if answer.tokens else "the answer has no tokens"


def _is_whole(answer: TimedAnswer) -> str | None:
    if answer.why:
        return answer.why
    return None if answer.whole and answer.tokens else "the stream did not come to its end"


@dataclass(frozen=True)
class _Request:
    """A request to send. expected: the status; engine: that of the model, None if the gateway alone answers; fault:
    tells why an answer with that status is wrong, or None; keyed: it is sent with the API key.
    """

    check: str
    expected: int
    body: Mapping[str, Json]
    engine: DeployedEngine | None = None
    fault: Callable[[TimedAnswer], str | None] = lambda _: None
    path: str = "/v1/completions"
    keyed: bool = True


def _of_engine(engine: DeployedEngine, length: int | None) -> Iterator[_Request]:
    plain: dict[str, Json] = {"model": engine.model, "prompt": "One two three", "temperature": 0}
    yield _Request("completion", 200, {**plain, "max_tokens": _TOKENS}, engine, _has_text)
    # ignore_eos: a model that ends at once would leave nothing to measure.
    more: dict[str, Json] = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    yield _Request("stream", 200, {**plain, **more, "max_tokens": _STREAMED}, engine, _is_whole)
    if length is not None:
        yield _Request("too-long", 400, {"model": engine.model, "prompt": [1] * (length + 1), "max_tokens": 1}, engine)


def _of_gateway(model: str) -> Iterator[_Request]:
    body: dict[str, Json] = {"model": _NO_MODEL, "prompt": "One", "max_tokens": 1}
    yield _Request("wrong-model", 404, body)
    yield _Request("no-key", 401, {**body, "model": model}, keyed=False)
    yield _Request("private", 404, {**body, "model": model}, path="/collective_rpc")


def _asked(served: WatchedTarget, key: str, request: _Request) -> TestedRequest:
    engine, expected = request.engine, request.expected
    model = engine.model if engine else None
    with served.at(f"{model or 'gateway'}: {request.check}"):
        watched: dict[str, Json] | None = {"unit": engine.unit, "turns": engine.turns} if engine else None
        given = key if request.keyed else None
        answer = served.session.test(served.gateway, request.path, dict(request.body), given, watched)
    if engine and answer.failed:
        lines = served.session.start_log(engine.unit, answer.failed[-1], MAX_START_LINES)
        again = " again and again" if len(answer.failed) > 1 else ""
        what = f"its engine failed{again}, and a request waited for it"
        raise start_failure(served.host, engine.model, served.unit(engine.unit), lines, what)
    wrong = request.fault(answer) if answer.status == expected else answer.why or answer.text[:_SHOWN]
    passed = answer.status == expected and wrong is None
    why = masked(wrong.replace(key, "***"))[:_SHOWN] if wrong else None
    rate = None
    if answer.first is not None and (answer.tokens or 0) > 1 and answer.seconds > answer.first:
        rate = round(((answer.tokens or 0) - 1) / (answer.seconds - answer.first), 1)
    times = answer.seconds, answer.first, answer.tokens, rate
    return TestedRequest(request.check, model, passed, answer.status, expected, *times, why)


def _show(found: TestedServing) -> None:
    good = sum(each.passed for each in found.requests)
    says = f"{found.host}: {good} of {len(found.requests)} requests to {found.url} answered as they should be"
    say(says, fg="green" if found.passed else "red", bold=True)
    rows = []
    for each in found.requests:
        first = "" if each.first_token is None else f"{each.first_token * 1000:.0f} ms"
        head = ("✓" if each.passed else "✗", each.check, each.model or "", each.status or "none")
        rows.append((*head, first, each.per_second or "", f"{each.seconds:.2f}"))
    table(("", "request", "model", "status", "first token", "tokens/s", "seconds"), rows)
    for each in found.requests:
        if not each.passed:
            came = each.status or "no answer"
            say(f"{each.title}: {each.expected} was expected, {came} came. {each.why or ''}", hang=2)
    for skipped in found.skipped:
        say(f"Skipped: {skipped}", hang=2)
