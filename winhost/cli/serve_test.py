"""winhost serve test: ask the gateway of a target what a client would, and what a client should not."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.serving_target import ServingTarget, secret_key, serving_target
from winhost.cli.tables import table
from winhost.cli.watch import Watch, watching
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.engine.keys import kept_api_key
from winhost.engine.verified import keep_verified
from winhost.model.errors import Exit, WinhostError, visible
from winhost.model.masking import masked
from winhost.model.served import TimedAnswer, Version
from winhost.serving.deployed import DeployedEngine
from winhost.serving.engine_start import LINES_OF_A_START, start_failure

_COMPLETIONS = "/v1/completions"
_NO_MODEL = "winhost/no-such-model"
_TOKENS, _STREAMED = 16, 64
_SHOWN = 200


@dataclass(frozen=True)
class TestedRequest:
    """check: completion, stream, too-long, wrong-model, no-key or private; model: whose, None of those of the gateway;
    status: that came, and expected; first_token, seconds: in seconds; tokens: of the answer; per_second: tokens after
    the first one.
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


@dataclass(frozen=True)
class TestedServing:
    """passed: every request was answered as it should be. skipped: checks that could not be made, and why."""

    host: str
    url: str
    passed: bool
    requests: tuple[TestedRequest, ...]
    skipped: tuple[str, ...]


def test(target: str, key: str | None, models: tuple[str, ...], fleet_file: Path | None, output: Output) -> int:
    secret = secret_key(key) or _own_key(target)
    with watching(reads=True) as watch, serving_target(target, fleet_file, watch) as served:
        found = _tested(served, watch, secret, models)
    results: list[tuple[str, TestedServing | WinhostError]] = [(found.host, found)]
    show_results("serving-test", output.shape, results, _show)
    return int(Exit.SUCCESS if found.passed else Exit.FAILURE)


def _tested(served: ServingTarget, watch: Watch, key: str, models: tuple[str, ...]) -> TestedServing:
    """Remembers with which versions all of it passed."""
    testing = Testing(served, watch, key)
    found = testing.all(models)
    if found.passed and not models:
        keep_verified(found.host, testing.versions)
    return found


def test_again(host: str, key: str | None, fleet_file: Path | None) -> str:
    """Test again, and return the result in a line. Raises click.UsageError, WinhostError as `test` does."""
    secret = secret_key(key) or _own_key(host)
    with watching(reads=True) as watch, serving_target(host, fleet_file, watch) as served:
        found = _tested(served, watch, secret, ())
    wrong = [
        f"{each.check} of {each.model}" if each.model else each.check for each in found.requests if not each.passed
    ]
    return f"tested again: {'not as it should be: ' + ', '.join(wrong) if wrong else 'passed'}"


def _own_key(target: str) -> str:
    found = kept_api_key(target)
    if found is None:
        raise click.UsageError(f"winhost made no key for {visible(target)}: name yours, as --api-key env:API_KEY")
    return found.key.resolve().reveal()


class Testing:
    """Requests one after the other, from the target itself: the gateway may listen on nothing but its own address."""

    def __init__(self, served: ServingTarget, watch: Watch, key: str) -> None:
        self._served, self._watch, self._key = served, watch, key
        self._skipped: list[str] = []
        self.versions: tuple[Version, ...] = ()

    def all(self, models: tuple[str, ...]) -> TestedServing:
        """Raises RemoteError where the gateway does not listen, WinhostError: StartFailed."""
        chosen = self._served.chosen(models)
        with self._watch.at(self._served.host, "asking engines"):
            status = self._served.status()
        self.versions = status.versions
        lengths = {each.model: each.length for each in status.models}
        self._skipped += [f"{each.model}: it takes over for {each.stands_by}" for each in chosen if each.stands_by]
        chosen = tuple(each for each in chosen if not each.stands_by)
        asked = [each for engine in chosen for each in self._of_model(engine, lengths[engine.model])]
        asked += self._of_gateway(chosen[0].model if chosen else _NO_MODEL)
        passed = bool(chosen) and all(each.passed for each in asked)
        return TestedServing(self._served.host, status.gateway.url, passed, tuple(asked), tuple(self._skipped))

    def _of_model(self, engine: DeployedEngine, length: int | None) -> Iterator[TestedRequest]:
        model = engine.model
        ask = partial(self._asked, model, engine=engine)
        plain: dict[str, Json] = {"model": model, "prompt": "One two three", "temperature": 0}
        yield ask("completion", 200, {**plain, "max_tokens": _TOKENS}, _has_text)
        # ignore_eos: a model that ends at once would leave nothing to measure.
        more: dict[str, Json] = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        yield ask("stream", 200, {**plain, **more, "max_tokens": _STREAMED}, _is_whole)
        if length is None:
            self._skipped.append(f"too-long: the engine of {model} does not say how long a prompt may be")
        else:
            yield ask("too-long", 400, {"model": model, "prompt": [1] * (length + 1), "max_tokens": 1})

    def _of_gateway(self, model: str) -> Iterator[TestedRequest]:
        body: dict[str, Json] = {"model": _NO_MODEL, "prompt": "One", "max_tokens": 1}
        yield self._asked(None, "wrong-model", 404, body)
        yield self._asked(None, "no-key", 401, {**body, "model": model}, key=None)
        yield self._asked(None, "private", 404, {**body, "model": model}, path="/collective_rpc")

    def _asked(
        self,
        model: str | None,
        check: str,
        expected: int,
        body: Json,
        holds: "Callable[[TimedAnswer], str | None] | None" = None,
        path: str = _COMPLETIONS,
        key: str | None = "",
        engine: DeployedEngine | None = None,
    ) -> TestedRequest:
        """holds: why an answer with the right status is wrong, or None; key: the usual one unless it says otherwise."""
        with self._watch.at(self._served.host, f"{model or 'gateway'}: {check}"):
            given = self._key if key == "" else key
            watched: dict[str, Json] | None = {"unit": engine.unit, "turns": engine.turns} if engine else None
            answer = self._served.session.test(self._served.gateway, path, body, given, watched)
        if engine and answer.failed:
            raise self._failed(engine, answer.failed)
        wrong = answer.why if answer.status != expected else holds(answer) if holds else None
        passed = answer.status == expected and wrong is None
        if answer.status != expected and not wrong:
            wrong = answer.text[:_SHOWN]
        why = masked(wrong.replace(self._key, "***"))[:_SHOWN] if wrong else None
        return TestedRequest(
            check,
            model,
            passed,
            answer.status,
            expected,
            answer.seconds,
            answer.first,
            answer.tokens,
            _rate(answer),
            why,
        )

    def _failed(self, engine: DeployedEngine, starts: Sequence[str]) -> WinhostError:
        """starts: those that failed, by invocation."""
        lines = self._served.session.start_log(engine.unit, starts[-1], LINES_OF_A_START)
        what = f"its engine failed{' again and again' if len(starts) > 1 else ''}, and a request waited for it"
        return start_failure(self._served.host, engine.model, self._served.unit(engine.unit), lines, what)


def _has_text(answer: TimedAnswer) -> str | None:
    return None if answer.tokens else "the answer has no tokens"


def _is_whole(answer: TimedAnswer) -> str | None:
    if answer.why:
        return answer.why
    return None if answer.whole and answer.tokens else "the stream did not come to its end"


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
            what = f"{each.check} of {each.model}" if each.model else each.check
            say(f"{what}: {each.expected} was expected, {each.status or 'no answer'} came. {each.why or ''}", hang=2)
    for skipped in found.skipped:
        say(f"Skipped: {skipped}", hang=2)


def _row(each: TestedRequest) -> tuple[object, ...]:
    first = "" if each.first_token is None else f"{each.first_token * 1000:.0f} ms"
    mark = "✓" if each.passed else "✗"
    status = each.status or "none"
    return mark, each.check, each.model or "", status, first, each.per_second or "", f"{each.seconds:.2f}"
