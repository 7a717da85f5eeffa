"""One request from its head to the end of its answer."""

import asyncio
import math
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from .api_keys import ApiKeys
from .bodies import Bodies, Body
from .body_process import BodyProcess
from .connections import Clients, Request
from .continuing import Again, NotContinued
from .engine_connection import EngineConnection
from .engine_control import EngineFault, NotUp
from .engine_metrics import EngineMetrics
from .engine_side import Answer, Engines
from .fair_line import WaitedTooLong
from .gateway_metrics import GatewayMetrics, asked_of, states_in
from .gateway_settings import GatewaySettings, PublishedModel
from .gpu_metrics import GpuMetrics
from .key_limits import Counted, KeyLimits, OverLimit, TokenCount
from .key_lines import KeyLine
from .key_use import KeyUse
from .passed_answer import OwnAnswer, PassedAnswer
from .published import (
    ENGINE_METRICS,
    FOR_METRICS,
    HEALTH,
    MODELS,
    READY,
    method_of,
    model_in,
    needs_key,
    route_of,
)
from .request_rules import ErrorAnswer
from .standby import Relayed, lines, pairs_of
from .strict_http import Head
from .turn_state import Seat, TurnEnded
from .turns import Busy, Seated, Turn, Turns
from .yielding import MOST_BYTES, ROUTE

_GONE = 499  # the client went away; only the log and the metrics show it
_PIECE = 8  # characters of a key that no id may have


@dataclass(slots=True)
class Exchange:
    """The facts about a request so far; all of it may be logged.

    given: the client's id for it; id: the id for the log and the engine, which takes no id twice; holder: its key;
    revoked: the key was revoked while the request ran; error: why it has no answer, or why the answer broke off.
    """

    given: str = ""
    id: str = field(default_factory=lambda: os.urandom(8).hex())
    began: float = field(default_factory=time.monotonic)
    client: str = "-"
    route: str = "-"
    key: str = "-"
    holder: KeyLine | None = None
    model: str = "-"
    sent: int = 0
    first_byte: float | None = None
    count: TokenCount | None = None
    revoked: bool = False
    error: str = ""
    streams: bool = False
    again: Again | None = None

    def name(self, given: str) -> None:
        self.given = given
        self.id = f"{given}-{self.id}"

    @property
    def age(self) -> float:
        return time.monotonic() - self.began


def _unauthorized(code: str, message: str) -> ErrorAnswer:
    return ErrorAnswer(401, code, message, WWW_Authenticate="Bearer")


def _revoked() -> ErrorAnswer:
    return _unauthorized("key-revoked", "This API key was revoked.")


def _stopping() -> ErrorAnswer:
    return ErrorAnswer(503, "stopping", "The gateway is stopping.", Retry_After="10")


def _other_model(models: "list[str]") -> ErrorAnswer:
    message = f"This API key may ask {', '.join(models) or 'no model that is here'}."
    return ErrorAnswer(403, "model-not-allowed", message, "model")


class FrontDoor:
    """Answer requests.

    draining: new requests are refused; open: the number of requests without a whole answer; keys_unread: the key files
    have changed and cannot be read.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        keys: ApiKeys,
        engines: Engines,
        clients: Clients,
        turns: Turns,
        use: KeyUse,
        gpus: GpuMetrics,
    ) -> None:
        self._settings, self._engines, self._clients = settings, engines, clients
        self._turns, self._use, self._gpus = turns, use, gpus
        self._pairs = pairs_of(settings, engines, turns)
        self._key_limits = KeyLimits(settings.per_key)
        self._bodies, self._body_process = Bodies(settings.limits), BodyProcess(settings)
        self._metrics, self._engine_metrics = GatewayMetrics(), EngineMetrics(engines)
        self._began = int(time.time())
        self.draining = False
        self._cutting = False
        self._work: dict[asyncio.Task[Any], Exchange] = {}
        self.keys_unread = False
        self.change_keys(keys)

    def change_keys(self, keys: ApiKeys) -> None:
        """Use these keys from now on. A revoked key may be in wrong hands, so its requests are broken off, and it no
        longer holds the GPUs.
        """
        self._keys = keys
        self._key_limits.change({name: limits for name in keys.names if (limits := keys.line(name).limits)})
        for work, exchange in self._work.items():
            if exchange.holder and exchange.holder.sha256 not in keys.hashes:
                exchange.revoked = True
                work.cancel()
        self._turns.yielding.only(keys.hashes)

    @property
    def open(self) -> int:
        return len(self._work)

    def cut(self) -> None:
        """End what is still open: streams with an error event, other requests with 503."""
        self._cutting = True
        for work in self._work:
            work.cancel()

    async def close(self) -> None:
        """End what was started for requests, after the last one."""
        await self._body_process.close()

    async def answer(self, request: Request) -> bool:
        """Answer a request. Returns whether another one may follow on its connection."""
        exchange = Exchange(client=request.address or "-")
        work = asyncio.current_task()  # each request has one
        assert work
        self._work[work] = exchange
        status, kept = 500, False
        try:
            status, kept = await self._answered(request, exchange)
        except asyncio.CancelledError:
            if not request.client.gone:
                raise
            status = _GONE
        finally:
            del self._work[work]
            self._note(exchange, status)
        return kept

    def _note(self, exchange: Exchange, status: int) -> None:
        counted = self._metrics
        counted.requests[exchange.route, exchange.model, status] += 1
        counted.sent[exchange.model] += exchange.sent
        if exchange.count and exchange.holder:
            self._use.used(exchange.holder, exchange.count)
        if exchange.model != "-":
            error = exchange.error or (str(status) if status >= 400 else "")
            counted.whole.add_to(asked_of(exchange.route, exchange.model, error), exchange.age)
            if exchange.streams and status == 200 and exchange.first_byte is not None:
                counted.first_token.add_to(asked_of(exchange.route, exchange.model), exchange.first_byte)
        # No value has a space or a quote: keys, routes and models come from the settings, and addresses are parsed.
        line = f"level=info msg=request id={exchange.id} client={exchange.client} key={exchange.key}"
        line += f" route={exchange.route} model={exchange.model} status={status}"
        if exchange.error:
            line += f" error={exchange.error}"
        if exchange.first_byte is not None:
            line += f" first_byte_s={exchange.first_byte:.3f}"
        line += f" request_s={exchange.age:.3f} sent_bytes={exchange.sent}\n"
        with suppress(OSError):  # nobody reads the log
            sys.stderr.write(line)  # a record of `logging` would cost ten times as much

    async def _answered(self, request: Request, exchange: Exchange) -> "tuple[int, bool]":
        """Return the status, and whether another request may follow."""
        try:
            found: OwnAnswer | PassedAnswer
            if not request.refused and request.head.target == ROUTE and self._turns.yielding.may_be_asked:
                found = await self._yielded(request, exchange)
            else:
                found = await self._routed(request, exchange)
        except ErrorAnswer as error:
            found = self._error(error, exchange)
        except asyncio.CancelledError:
            if not (self._cutting or exchange.revoked) or request.client.gone:
                raise
            found = self._error(_revoked() if exchange.revoked else _stopping(), exchange)
        if isinstance(found, PassedAnswer):
            return found.status, found.kept
        return found.status, await found.write_to(request)

    def _error(self, error: ErrorAnswer, exchange: Exchange) -> OwnAnswer:
        self._metrics.refused[error.code] += 1
        exchange.error = error.code
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        body = {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}
        if error.status == 429:
            body["error"]["type"] = "rate_limit_error"
        own = {name.replace("_", "-"): value for name, value in error.headers.items()}
        answer = OwnAnswer.json(error.status, body, {**self._headers(exchange), **own})
        # The body may still be on its way, and nothing after it on this connection would be read.
        answer.kept = not (error.status in (401, 403, 404, 405, 408, 413, 415) or self.draining)
        return answer

    def _headers(self, exchange: Exchange) -> dict[str, str]:
        return {"Server": "winhost", "X-Request-Id": exchange.given or exchange.id, "Cache-Control": "no-store"}

    async def _routed(self, request: Request, exchange: Exchange) -> "OwnAnswer | PassedAnswer":
        if request.refused:
            code = request.refused.code
            message = f"The request is refused before it is read further: {code}."
            raise ErrorAnswer(request.refused.status, code, message)
        head = request.head
        route = route_of(head.target, self._settings.models)
        if needs_key(route):
            holder = self._holder(head, exchange)
            request.client.has_key()
            self._name(head, exchange)
            self._check_use(holder, route)
        if route is None:
            raise ErrorAnswer(404, "not-published", "Nothing is published here.")
        exchange.route = route
        if head.method != method_of(route):
            raise ErrorAnswer(405, "method", f"This takes {method_of(route)} alone.", Allow=method_of(route))
        if self.draining:
            raise _stopping()
        if method_of(route) == "POST":
            return await self._completed(request, exchange)
        return await self._own_answer(route, head.target.partition("?")[0], exchange)

    def _holder(self, head: Head, exchange: Exchange) -> KeyLine:
        name = self._keys.name_of(head.authorization)
        if name is None:
            raise _unauthorized("no-key", "An API key is needed: the header `Authorization: Bearer KEY`.")
        exchange.key, line = name, self._keys.line(name)
        state = line.state(time.time())
        if state == "revoked":
            raise _revoked()
        if state == "expired":
            raise _unauthorized("key-expired", "This API key has expired.")
        exchange.holder = line
        return line

    def _name(self, head: Head, exchange: Exchange) -> None:
        """Name the request by its client's id, unless that holds a key or a piece of one: it is logged."""
        given, key = head.request_id, head.authorization
        if not given:
            return
        shared = [at for at in range(len(given) - _PIECE + 1) if given[at : at + _PIECE] in key]
        if not shared and sha256(given.encode("ascii")).hexdigest() not in self._keys.hashes:
            exchange.name(given)

    def _check_use(self, holder: KeyLine, route: str | None) -> None:
        """Refuse what a key is not for. Metrics are about everybody's requests, so keys for models do not read them."""
        if holder.yields:
            raise ErrorAnswer(403, "yield-key", f"This key is for {ROUTE} alone.")
        if holder.metrics and route not in FOR_METRICS:
            raise ErrorAnswer(403, "metrics-key", "This key is for /metrics and /metrics/engines alone.")
        if route in FOR_METRICS and not holder.metrics:
            message = f"{route} takes a key of its own: a line of the file of keys that ends with `metrics`."
            raise ErrorAnswer(403, "no-metrics-key", message)

    def _models_of(self, exchange: Exchange) -> "list[str]":
        """The models that the request's key may call."""
        only = exchange.holder.models if exchange.holder else ()
        return [name for name in self._settings.models if only is None or name in only]

    async def _yielded(self, request: Request, exchange: Exchange) -> OwnAnswer:
        """Answer a key that asks for the GPUs or gives them back; it may do nothing else."""
        yielding, head = self._turns.yielding, request.head
        exchange.route, holder = ROUTE, self._holder(head, exchange)
        request.client.has_key()
        self._name(head, exchange)
        if not holder.yields:
            message = f"{ROUTE} takes a key of its own: a line of the file of keys that ends with `yield`."
            raise ErrorAnswer(403, "no-yield-key", message)
        if head.method not in ("GET", "POST"):
            raise ErrorAnswer(405, "method", "This takes GET and POST alone.", Allow="GET, POST")
        if self.draining:
            raise _stopping()
        if head.method == "POST":
            if head.content_type != "application/json":
                raise ErrorAnswer(415, "content-type", "The body has to be application/json.")
            if head.length is None or head.length > MOST_BYTES:
                raise ErrorAnswer(413, "too-large", f"The body has to have a Content-Length of up to {MOST_BYTES}.")
            async with Body(self._bodies, exchange.key, head.length, self._turns.until()) as body:
                await self._receive(request, body)
                yielding.take(holder.sha256, b"".join(body.parts))
        on_gpus = self._turns.on_gpus
        state = "serving" if not yielding.asked else "yielding" if on_gpus else "yielded"
        seconds = math.ceil(yielding.left) if math.isfinite(yielding.left) else None
        told = {"state": state, "mode": yielding.mode, "seconds": seconds, "on_gpus": on_gpus}
        return OwnAnswer.json(200, told, self._headers(exchange))

    def _not_yielded(self, left: str = "yielded") -> None:
        """Refuse while the GPUs are wanted for something else. left: the code while models are still leaving them."""
        yielding = self._turns.yielding
        if yielding.asked:
            message = "The GPUs are in use by something else on this machine."
            code = left if self._turns.on_gpus else "yielded"
            raise ErrorAnswer(503, code, message, Retry_After=str(yielding.after))

    async def _own_answer(self, route: str, path: str, exchange: Exchange) -> OwnAnswer:
        headers = self._headers(exchange)
        if route == HEALTH:
            return OwnAnswer.json(200, {"status": "ok"}, headers)
        if route in FOR_METRICS:
            text = await self._metrics_text(route, exchange)
            return OwnAnswer(200, text, {**headers, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
        if route == READY:
            models = self._settings.models.values()
            self._not_yielded("yielding")
            if not all(await asyncio.gather(*(self._ready(model) for model in models))):
                raise ErrorAnswer(503, "not-ready", "A model does not answer with a completion.", Retry_After="10")
            return OwnAnswer.json(200, {"ready": True}, headers)
        named, allowed = model_in(path, self._settings.models), self._models_of(exchange)
        made = {"object": "model", "created": self._began, "owned_by": "winhost"}
        if path != MODELS and named:
            if named not in allowed:
                raise _other_model(allowed)
            return OwnAnswer.json(200, {"id": named, **made}, headers)
        data = [{"id": name, **made} for name in allowed]
        return OwnAnswer.json(200, {"object": "list", "data": data}, headers)

    async def _metrics_text(self, route: str, exchange: Exchange) -> bytes:
        assert exchange.holder  # `_check_use` lets only keys for metrics come here
        only = None if exchange.holder.models is None else frozenset(exchange.holder.models)
        if route == ENGINE_METRICS:
            models = [each for name, each in self._settings.models.items() if only is None or name in only]
            models += [side.model for each in models if each.standby for side in self._pairs[each.name].sides[1:]]
            return await self._engine_metrics.text(models, states_in(self._turns.metrics()))
        now = {"requests_running": self._turns.running, "requests_waiting": self._turns.waiting}
        now["held_body_bytes"] = self._bodies.held
        now["yield_asked"] = int(self._turns.yielding.asked)
        now["yielded"] = int(self._turns.yielding.asked and not self._turns.on_gpus)
        more = [*self._turns.metrics(), *lines(self._pairs)]
        if only is None:
            more += [*self._use.lines(self.keys_unread), *await self._gpus.lines()]
        return self._metrics.text(more, only, **now, connections=self._clients.now).encode()

    async def _ready(self, model: PublishedModel) -> bool:
        """Tell whether a model answers. One that takes turns was asked when its turn began: to ask it in between would
        hold up others.
        """
        if self._turns.takes_turns(model.name):
            return self._turns.ready(model.name)
        if model.standby:
            return await self._pairs[model.name].ready()
        return await self._engines.ready(model)

    # ---- what goes to an engine

    async def _completed(self, request: Request, exchange: Exchange) -> PassedAnswer:
        """Admit a request by its head alone, then read its body."""
        if request.head.content_type != "application/json":
            raise ErrorAnswer(415, "content-type", "The body has to be application/json.")
        self._not_yielded()
        until = self._turns.until()
        try:
            with Counted(self._key_limits, exchange.key) as exchange.count, Seated(self._turns, exchange.key) as seat:
                async with Body(self._bodies, exchange.key, request.head.length, until) as body:
                    await self._read(request, body, exchange, until)
                    while (passed := await self._asked(request, body, exchange, seat, until)) is None:
                        pass  # the engine was not up: the request waits for another turn of its model
                    return passed
        except OverLimit as over:
            if exchange.holder:
                self._use.refused(exchange.holder)
            message = f"This API key may have {over.what}."
            raise ErrorAnswer(429, "rate_limit_exceeded", message, Retry_After=str(over.after)) from None
        except (Busy, WaitedTooLong) as busy:
            message = "Too many requests run or wait already, or the model's turn did not come in time."
            after = busy.after if isinstance(busy, Busy) else 5
            raise ErrorAnswer(503, "busy", message, Retry_After=str(after)) from None

    async def _asked(
        self, request: Request, body: Body, exchange: Exchange, seat: Seat, until: float
    ) -> "PassedAnswer | None":
        """Ask an engine, and pass its answer on. None if the model takes turns and no byte of the request went
        anywhere.
        """
        name = exchange.model
        try:
            async with (
                Turn(self._turns, seat, name, until) as turn,
                self._answer(body, exchange, until, turn) as answer,
            ):
                body.sent()
                return await self._passed_on(request, answer, exchange, seat)
        except NotUp:
            if self._turns.not_up(name):
                return None
            message = f"The engine of {name} is not up, or still starting."
            raise ErrorAnswer(503, "engine-not-up", message, Retry_After="10") from None
        except TurnEnded:
            self._not_yielded()
            message = f"The turn of {name} ended before it answered."
            raise ErrorAnswer(503, "turn-ended", message, Retry_After="5") from None
        except EngineFault:
            self._turns.doubt(name)
            self._metrics.broken[name] += 1
            message = f"The engine of {name} broke off before it answered."
            raise ErrorAnswer(502, "engine-broke-off", message) from None

    def _answer(self, body: Body, exchange: Exchange, until: float, turn: Turn) -> "Answer | Relayed":
        model = self._settings.models[exchange.model]
        if model.standby:
            pair = self._pairs[model.name]
            return Relayed(pair, exchange.route, body.parts, exchange.id, exchange.again, until, turn)
        hold = 0 if self._turns.takes_turns(model.name) else None
        return Answer(self._engines, model, exchange.route, body.parts, exchange.id, hold)

    async def _read(self, request: Request, body: Body, exchange: Exchange, until: float) -> None:
        await self._receive(request, body)
        found = await self._body_process.read(body.parts, exchange.route, exchange.key, until)
        exchange.model, body.parts, exchange.again = found.model, found.parts, found.again
        only = exchange.holder.models if exchange.holder else ()
        if only is not None and found.model not in only:
            raise _other_model(self._models_of(exchange))
        if exchange.count:
            exchange.count.hides_usage = found.adds_usage

    async def _receive(self, request: Request, body: Body) -> None:
        if request.head.expects:
            request.client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await body.receive(request)

    async def _passed_on(
        self, request: Request, engine: "EngineConnection | Relayed", exchange: Exchange, seat: Seat
    ) -> PassedAnswer:
        client = request.client
        passed = PassedAnswer(request, engine.answer, self._headers(exchange), self.draining)
        count = exchange.count
        if count:
            count.answered = True
            count.hides_usage = count.hides_usage and passed.is_stream
        await engine.begins()
        seat.begun = True
        exchange.first_byte, exchange.streams = exchange.age, passed.is_stream
        try:
            await engine.pass_on(client, passed.head, passed.framed, count)
            await client.drained()
        except EngineFault as fault:
            if not isinstance(fault, NotContinued):  # the engine that failed is known by then; others are not to blame
                self._turns.doubt(exchange.model)
            why = f" Nothing goes on with it: {fault}." if exchange.again else ""
            self._break_off(passed, exchange, "engine-broke-off", why)
        except asyncio.CancelledError:
            if not (seat.ended or self._cutting or exchange.revoked):
                raise
            ended = "yielded" if self._turns.yielding.asked else "turn-ended"
            code = "key-revoked" if exchange.revoked else ended if seat.ended else "stopping"
            self._break_off(passed, exchange, code)
        finally:
            exchange.sent = engine.passed
        return passed

    def _break_off(self, passed: PassedAnswer, exchange: Exchange, code: str, why: str = "") -> None:
        self._metrics.broken[exchange.model] += 1
        exchange.error = code
        passed.break_off(f"The answer of {exchange.model} is broken off: {code}.{why}", code)
