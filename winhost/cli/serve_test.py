"""winhost serve test: send the gateway of a target requests that it must answer and ones that it must refuse."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.options import TargetOptions
from winhost.cli.output import say
from winhost.cli.serving_target import WatchedTarget, reached, secret_key
from winhost.cli.tables import table
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.engine.keys import kept_api_key
from winhost.engine.verified import keep_verified
from winhost.model.errors import Exit, WinhostError, visible
from winhost.model.masking import masked
from winhost.model.served import TimedAnswer
from winhost.serving.deployed import DeployedEngine
from winhost.serving.engine_start import LINES_OF_A_START, start_failure

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
    key = secret_key(reference) or _own_key(at.target)
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


def _own_key(target: str) -> str:
    found = kept_api_key(target)
    if found is None:
        raise click.UsageError(f"winhost made no key for {visible(target)}: name yours, as --api-key env:API_KEY")
    return found.key.resolve().reveal()


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
        lines = served.session.start_log(engine.unit, answer.failed[-1], LINES_OF_A_START)
        again = " again and again" if len(answer.failed) > 1 else ""
        what = f"its engine failed{again}, and a request waited for it"
        raise start_failure(served.host, engine.model, served.unit(engine.unit), lines, what)
    wrong = request.fault(answer) if answer.status == expected else answer.why or answer.text[:_SHOWN]
    passed = answer.status == expected and wrong is None
    why = masked(wrong.replace(key, "***"))[:_SHOWN] if wrong else None
    times = answer.seconds, answer.first, answer.tokens, _rate(answer)
    return TestedRequest(request.check, model, passed, answer.status, expected, *times, why)


def _rate(answer: TimedAnswer) -> float | None:
    if answer.first is None or not answer.tokens or answer.tokens < 2 or answer.seconds <= answer.first:
        return None
    return round((answer.tokens - 1) / (answer.seconds - answer.first), 1)


def _show(found: TestedServing) -> None:
    good = sum(each.passed for each in found.requests)
    says = f"{found.host}: {good} of {len(found.requests)} requests to {found.url} answered as they should be"
    say(says, fg="green" if found.passed else "red", bold=True)
    table(("", "request", "model", "status", "first token", "tokens/s", "seconds"), map(_row, found.requests))
    for each in found.requests:
        if not each.passed:
            came = each.status or "no answer"
            say(f"{each.title}: {each.expected} was expected, {came} came. {each.why or ''}", hang=2)
    for skipped in found.skipped:
        say(f"Skipped: {skipped}", hang=2)


def _row(each: TestedRequest) -> Sequence[object]:
    first = "" if each.first_token is None else f"{each.first_token * 1000:.0f} ms"
    mark = "✓" if each.passed else "✗"
    status = each.status or "none"
    return mark, each.check, each.model or "", status, first, each.per_second or "", f"{each.seconds:.2f}"
