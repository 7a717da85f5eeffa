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
from .client_answers import OwnAnswer, RelayedAnswer
from .connections import Clients, Request
from .continuation import Continuation, NotContinued
from .engine_connection import EngineConnection
from .engine_control import EngineFault, EngineUnreachable
from .engine_metrics import EngineMetrics
from .engines import Answer, Engines
from .fair_queue import QueueTimeout
from .gateway_metrics import GatewayMetrics, parse_states, request_labels
from .gateway_settings import GatewaySettings, PublishedModel
from .gpu_metrics import GpuMetrics
from .key_limits import CountedRequest, KeyLimits, OverLimit, TokenCount
from .key_lines import KeyLine
from .key_use import KeyUse
from .request_rules import ErrorAnswer
from .routes import ENGINE_METRICS, HEALTH, METRICS_ROUTES, MODELS, READY, find_model, find_route, method_of, needs_key
from .standby import FailoverAnswer, create_pairs, metric_lines
from .strict_http import Head
from .turn_state import Seat, TurnEnded
from .turns import Busy, SeatedRequest, Turn, Turns
from .yielding import MAX_BODY_BYTES, ROUTE

_CLIENT_CLOSED_REQUEST = 499  # the client went away; only the log and the metrics show it
_KEY_PIECE = 8  # so many characters of its key in a client's id make the id unusable


@dataclass(slots=True)
class Exchange:
    """A request and its answer, as they are logged and counted. All of it may be logged.

    client_id: the client's id for the request; id: the id for the log and the engine, which accepts no id twice;
    revoked: the key was revoked while the request ran; error: why there is no answer, or why it broke off.
    """

    client_id: str = ""
    id: str = field(default_factory=lambda: os.urandom(8).hex())
    began: float = field(default_factory=time.monotonic)
    client: str = "-"
    route: str = "-"
    key: str = "-"
    key_line: KeyLine | None = None
    model: str = "-"
    sent: int = 0
    first_byte: float | None = None
    count: TokenCount | None = None
    revoked: bool = False
    error: str = ""
    streams: bool = False
    continuation: Continuation | None = None

    def set_client_id(self, client_id: str) -> None:
        self.client_id = client_id
        self.id = f"{client_id}-{self.id}"

    @property
    def age(self) -> float:
        return time.monotonic() - self.began


def _unauthorized(code: str, message: str) -> ErrorAnswer:
    return ErrorAnswer(401, code, message, WWW_Authenticate="Bearer")


def _key_revoked() -> ErrorAnswer:
    return _unauthorized("key-revoked", "This API key was revoked.")


def _stopping() -> ErrorAnswer:
    return ErrorAnswer(503, "stopping", "The gateway is stopping.", Retry_After="10")


def _model_not_allowed(models: "list[str]") -> ErrorAnswer:
    message = f"This API key may ask {', '.join(models) or 'no model that is here'}."
    return ErrorAnswer(403, "model-not-allowed", message, "model")


class FrontDoor:
    """The entry of the gateway, which answers requests.

    draining: new requests are refused; open: the number of requests without a complete answer; keys_unread: the key
    files have changed and cannot be read.
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
        self._pairs = create_pairs(settings, engines, turns)
        self._key_limits = KeyLimits(settings.per_key)
        self._bodies, self._body_process = Bodies(settings.limits), BodyProcess(settings)
        self._metrics, self._engine_metrics = GatewayMetrics(), EngineMetrics(engines)
        self._created = int(time.time())
        self.draining = False
        self._is_stopped = False
        self._exchanges: dict[asyncio.Task[Any], Exchange] = {}
        self.keys_unread = False
        self.change_keys(keys)

    def change_keys(self, keys: ApiKeys) -> None:
        """Use these keys from now on. A revoked key may be stolen: its requests are broken off, and its request for the
        GPUs ends.
        """
        self._keys = keys
        self._key_limits.change({name: limits for name in keys.names if (limits := keys.line(name).limits)})
        for task, exchange in self._exchanges.items():
            if exchange.key_line and exchange.key_line.sha256 not in keys.hashes:
                exchange.revoked = True
                task.cancel()
        self._turns.yielding.drop_other_keys(keys.hashes)

    @property
    def open(self) -> int:
        return len(self._exchanges)

    def break_off_all(self) -> None:
        """End open requests: streams with an error event, others with 503."""
        self._is_stopped = True
        for task in self._exchanges:
            task.cancel()

    async def close(self) -> None:
        """End the process that parses bodies, after the last request."""
        await self._body_process.close()

    async def answer(self, request: Request) -> bool:
        """Answer a request. Return whether another one may follow on its connection."""
        exchange = Exchange(client=request.address or "-")
        task = asyncio.current_task()  # each request has one
        assert task
        self._exchanges[task] = exchange
        status, keep_alive = 500, False
        try:
            status, keep_alive = await self._dispatch(request, exchange)
        except asyncio.CancelledError:
            if not request.client.is_gone:
                raise
            status = _CLIENT_CLOSED_REQUEST
        finally:
            del self._exchanges[task]
            self._record(exchange, status)
        return keep_alive

    def _record(self, exchange: Exchange, status: int) -> None:
        metrics = self._metrics
        metrics.requests[exchange.route, exchange.model, status] += 1
        metrics.sent[exchange.model] += exchange.sent
        if exchange.count and exchange.key_line:
            self._use.count_request(exchange.key_line, exchange.count)
        if exchange.model != "-":
            error = exchange.error or (str(status) if status >= 400 else "")
            metrics.request_duration.add_to(request_labels(exchange.route, exchange.model, error), exchange.age)
            if exchange.streams and status == 200 and exchange.first_byte is not None:
                metrics.first_token.add_to(request_labels(exchange.route, exchange.model), exchange.first_byte)
        # No value has a space or a quote: keys, routes and models come from the settings, and addresses are parsed.
        line = f"level=info msg=request id={exchange.id} client={exchange.client} key={exchange.key}"
        line += f" route={exchange.route} model={exchange.model} status={status}"
        if exchange.error:
            line += f" error={exchange.error}"
        if exchange.first_byte is not None:
            line += f" first_byte_s={exchange.first_byte:.3f}"
        line += f" request_s={exchange.age:.3f} sent_bytes={exchange.sent}\n"
        with suppress(OSError):  # the reader of the log is gone
            sys.stderr.write(line)  # a record of `logging` would cost ten times as much

    async def _dispatch(self, request: Request, exchange: Exchange) -> "tuple[int, bool]":
        """Answer a request. Return the status, and whether another request may follow."""
        try:
            answer: OwnAnswer | RelayedAnswer
            if not request.refused and request.head.target == ROUTE and self._turns.yielding.is_enabled:
                answer = await self._answer_yield(request, exchange)
            else:
                answer = await self._answer_route(request, exchange)
        except ErrorAnswer as error:
            answer = self._error_answer(error, exchange)
        except asyncio.CancelledError:
            if not (self._is_stopped or exchange.revoked) or request.client.is_gone:
                raise
            answer = self._error_answer(_key_revoked() if exchange.revoked else _stopping(), exchange)
        if isinstance(answer, RelayedAnswer):
            return answer.status, answer.keep_alive
        return answer.status, await answer.write_to(request)

    def _error_answer(self, error: ErrorAnswer, exchange: Exchange) -> OwnAnswer:
        self._metrics.refused[error.code] += 1
        exchange.error = error.code
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        body = {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}
        if error.status == 429:
            body["error"]["type"] = "rate_limit_error"
        error_headers = {name.replace("_", "-"): value for name, value in error.headers.items()}
        answer = OwnAnswer.json(error.status, body, {**self._headers(exchange), **error_headers})
        # A body may still follow, and requests after it on this connection would not be read.
        answer.keep_alive = not (error.status in (401, 403, 404, 405, 408, 413, 415) or self.draining)
        return answer

    def _headers(self, exchange: Exchange) -> dict[str, str]:
        return {"Server": "winhost", "X-Request-Id": exchange.client_id or exchange.id, "Cache-Control": "no-store"}

    async def _answer_route(self, request: Request, exchange: Exchange) -> "OwnAnswer | RelayedAnswer":
        if request.refused:
            code = request.refused.code
            message = f"The request is refused before it is read further: {code}."
            raise ErrorAnswer(request.refused.status, code, message)
        head = request.head
        route = find_route(head.target, self._settings.models)
        if needs_key(route):
            key_line = self._authenticate(head, exchange)
            request.client.note_key()
            self._take_client_id(head, exchange)
            self._check_key_kind(key_line, route)
        if route is None:
            raise ErrorAnswer(404, "not-published", "Nothing is published here.")
        exchange.route = route
        if head.method != method_of(route):
            raise ErrorAnswer(405, "method", f"This takes {method_of(route)} alone.", Allow=method_of(route))
        if self.draining:
            raise _stopping()
        if method_of(route) == "POST":
            return await self._answer_post(request, exchange)
        return await self._answer_get(route, head.target.partition("?")[0], exchange)

    def _authenticate(self, head: Head, exchange: Exchange) -> KeyLine:
        name = self._keys.find_name(head.authorization)
        if name is None:
            raise _unauthorized("no-key", "An API key is needed: the header `Authorization: Bearer KEY`.")
        exchange.key, line = name, self._keys.line(name)
        state = line.state(time.time())
        if state == "revoked":
            raise _key_revoked()
        if state == "expired":
            raise _unauthorized("key-expired", "This API key has expired.")
        exchange.key_line = line
        return line

    def _take_client_id(self, head: Head, exchange: Exchange) -> None:
        """Use the client's id for the request, unless it contains a key or a piece of one, because it is logged."""
        client_id, key = head.request_id, head.authorization
        if not client_id:
            return
        offsets = range(len(client_id) - _KEY_PIECE + 1)
        has_key_piece = any(client_id[offset : offset + _KEY_PIECE] in key for offset in offsets)
        if not has_key_piece and sha256(client_id.encode("ascii")).hexdigest() not in self._keys.hashes:
            exchange.set_client_id(client_id)

    def _check_key_kind(self, key_line: KeyLine, route: str | None) -> None:
        """Refuse a route that the kind of the key does not allow. Metrics show the requests of all keys, so that keys
        for models cannot read them.
        """
        if key_line.yields:
            raise ErrorAnswer(403, "yield-key", f"This key is for {ROUTE} alone.")
        if key_line.metrics and route not in METRICS_ROUTES:
            raise ErrorAnswer(403, "metrics-key", "This key is for /metrics and /metrics/engines alone.")
        if route in METRICS_ROUTES and not key_line.metrics:
            message = f"{route} takes a key of its own: a line of the file of keys that ends with `metrics`."
            raise ErrorAnswer(403, "no-metrics-key", message)

    def _allowed_models(self, exchange: Exchange) -> "list[str]":
        """Return the models that the request's key may call."""
        allowed_names = exchange.key_line.models if exchange.key_line else ()
        return [name for name in self._settings.models if allowed_names is None or name in allowed_names]

    async def _answer_yield(self, request: Request, exchange: Exchange) -> OwnAnswer:
        """Answer a request of a `yield` key, which requests the GPUs or gives them back, and may do nothing else."""
        yielding, head = self._turns.yielding, request.head
        exchange.route, key_line = ROUTE, self._authenticate(head, exchange)
        request.client.note_key()
        self._take_client_id(head, exchange)
        if not key_line.yields:
            message = f"{ROUTE} takes a key of its own: a line of the file of keys that ends with `yield`."
            raise ErrorAnswer(403, "no-yield-key", message)
        if head.method not in ("GET", "POST"):
            raise ErrorAnswer(405, "method", "This takes GET and POST alone.", Allow="GET, POST")
        if self.draining:
            raise _stopping()
        if head.method == "POST":
            if head.content_type != "application/json":
                raise ErrorAnswer(415, "content-type", "The body has to be application/json.")
            if head.length is None or head.length > MAX_BODY_BYTES:
                raise ErrorAnswer(413, "too-large", f"The body has to have a Content-Length of up to {MAX_BODY_BYTES}.")
            async with Body(self._bodies, exchange.key, head.length, self._turns.deadline()) as body:
                await self._receive(request, body)
                yielding.apply_request(key_line.sha256, b"".join(body.parts))
        on_gpus = self._turns.models_on_gpus
        state = "serving" if not yielding.is_requested else "yielding" if on_gpus else "yielded"
        seconds = math.ceil(yielding.remaining_s) if math.isfinite(yielding.remaining_s) else None
        state_body = {"state": state, "mode": yielding.mode, "seconds": seconds, "on_gpus": on_gpus}
        return OwnAnswer.json(200, state_body, self._headers(exchange))

    def _refuse_while_yielding(self, leaving_code: str = "yielded") -> None:
        """Refuse a request while the GPUs are requested for something else. leaving_code: the error's code while models
        are still leaving them.
        """
        yielding = self._turns.yielding
        if yielding.is_requested:
            message = "The GPUs are in use by something else on this machine."
            code = leaving_code if self._turns.models_on_gpus else "yielded"
            raise ErrorAnswer(503, code, message, Retry_After=str(yielding.retry_after))

    async def _answer_get(self, route: str, path: str, exchange: Exchange) -> OwnAnswer:
        headers = self._headers(exchange)
        if route == HEALTH:
            return OwnAnswer.json(200, {"status": "ok"}, headers)
        if route in METRICS_ROUTES:
            text = await self._metrics_text(route, exchange)
            return OwnAnswer(200, text, {**headers, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
        if route == READY:
            models = self._settings.models.values()
            self._refuse_while_yielding("yielding")
            if not all(await asyncio.gather(*(self._is_ready(model) for model in models))):
                raise ErrorAnswer(503, "not-ready", "A model does not answer with a completion.", Retry_After="10")
            return OwnAnswer.json(200, {"ready": True}, headers)
        model_name, allowed = find_model(path, self._settings.models), self._allowed_models(exchange)
        common = {"object": "model", "created": self._created, "owned_by": "winhost"}
        if path != MODELS and model_name:
            if model_name not in allowed:
                raise _model_not_allowed(allowed)
            return OwnAnswer.json(200, {"id": model_name, **common}, headers)
        data = [{"id": name, **common} for name in allowed]
        return OwnAnswer.json(200, {"object": "list", "data": data}, headers)

    async def _metrics_text(self, route: str, exchange: Exchange) -> bytes:
        assert exchange.key_line  # `_check_key_kind` allows this route only to keys for metrics
        if route == ENGINE_METRICS:
            models = [self._settings.models[name] for name in self._allowed_models(exchange)]
            models += [engine.model for each in models if each.standby for engine in self._pairs[each.name].engines[1:]]
            return await self._engine_metrics.text(models, parse_states(self._turns.metrics()))
        yielding, on_gpus = self._turns.yielding.is_requested, self._turns.models_on_gpus
        gauges = {
            "requests_running": self._turns.running,
            "requests_waiting": self._turns.waiting,
            "held_body_bytes": self._bodies.reserved_bytes,
            "yield_asked": int(yielding),
            "yielded": int(yielding and not on_gpus),
            "connections": self._clients.count,
        }
        lines = [*self._turns.metrics(), *metric_lines(self._pairs)]
        if exchange.key_line.models is None:
            lines += [*self._use.lines(self.keys_unread), *await self._gpus.lines()]
            return self._metrics.text(gauges, lines).encode()
        return self._metrics.text(gauges, lines, frozenset(exchange.key_line.models)).encode()

    async def _is_ready(self, model: PublishedModel) -> bool:
        """Tell whether a model answers. A model that takes turns was checked when its turn began: a check in between
        would delay others.
        """
        if self._turns.takes_turns(model.name):
            return self._turns.is_ready(model.name)
        if model.standby:
            return await self._pairs[model.name].is_ready()
        return await self._engines.is_ready(model)

    # ---- requests to engines

    async def _answer_post(self, request: Request, exchange: Exchange) -> RelayedAnswer:
        """Admit a request by its head, then read its body, and have an engine answer it."""
        if request.head.content_type != "application/json":
            raise ErrorAnswer(415, "content-type", "The body has to be application/json.")
        self._refuse_while_yielding()
        deadline = self._turns.deadline()
        try:
            with (
                CountedRequest(self._key_limits, exchange.key) as exchange.count,
                SeatedRequest(self._turns, exchange.key) as seat,
            ):
                async with Body(self._bodies, exchange.key, request.head.length, deadline) as body:
                    await self._read(request, body, exchange, deadline)
                    while (answer := await self._try_engine(request, body, exchange, seat, deadline)) is None:
                        pass  # the engine was not up: the request waits for another turn of its model
                    return answer
        except OverLimit as over:
            if exchange.key_line:
                self._use.count_refusal(exchange.key_line)
            message = f"This API key may have {over.limit}."
            raise ErrorAnswer(429, "rate_limit_exceeded", message, Retry_After=str(over.retry_after)) from None
        except (Busy, QueueTimeout) as busy:
            message = "Too many requests run or wait already, or the model's turn did not come in time."
            retry_after = busy.retry_after if isinstance(busy, Busy) else 5
            raise ErrorAnswer(503, "busy", message, Retry_After=str(retry_after)) from None

    async def _try_engine(
        self, request: Request, body: Body, exchange: Exchange, seat: Seat, deadline: float
    ) -> "RelayedAnswer | None":
        """Send the request to an engine, and relay its answer. Return None if no byte of the request was sent, and the
        model may get another turn.
        """
        name = exchange.model
        try:
            async with (
                Turn(self._turns, seat, name, deadline) as turn,
                self._engine_answer(body, exchange, deadline, turn) as answer,
            ):
                body.discard()
                return await self._relay(request, answer, exchange, seat)
        except EngineUnreachable:
            if self._turns.note_unreachable(name):
                return None
            message = f"The engine of {name} is not up, or still starting."
            raise ErrorAnswer(503, "engine-not-up", message, Retry_After="10") from None
        except TurnEnded:
            self._refuse_while_yielding()
            message = f"The turn of {name} ended before it answered."
            raise ErrorAnswer(503, "turn-ended", message, Retry_After="5") from None
        except EngineFault:
            self._turns.note_failure(name)
            self._metrics.broken[name] += 1
            message = f"The engine of {name} broke off before it answered."
            raise ErrorAnswer(502, "engine-broke-off", message) from None

    def _engine_answer(self, body: Body, exchange: Exchange, deadline: float, turn: Turn) -> "Answer | FailoverAnswer":
        model = self._settings.models[exchange.model]
        if model.standby:
            pair = self._pairs[model.name]
            return FailoverAnswer(pair, exchange.route, body.parts, exchange.id, exchange.continuation, deadline, turn)
        wait_s = 0 if self._turns.takes_turns(model.name) else None
        return Answer(self._engines, model, exchange.route, body.parts, exchange.id, wait_s)

    async def _read(self, request: Request, body: Body, exchange: Exchange, deadline: float) -> None:
        await self._receive(request, body)
        engine_body = await self._body_process.read(body.parts, exchange.route, exchange.key, deadline)
        exchange.model, exchange.continuation = engine_body.model, engine_body.continuation
        body.parts = engine_body.parts
        allowed = self._allowed_models(exchange)
        if engine_body.model not in allowed:
            raise _model_not_allowed(allowed)
        if exchange.count:
            exchange.count.hides_usage = engine_body.adds_usage

    async def _receive(self, request: Request, body: Body) -> None:
        if request.head.expects:
            request.client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await body.receive(request)

    async def _relay(
        self, request: Request, engine: "EngineConnection | FailoverAnswer", exchange: Exchange, seat: Seat
    ) -> RelayedAnswer:
        client = request.client
        answer = RelayedAnswer(request, engine.answer, self._headers(exchange), self.draining)
        count = exchange.count
        if count:
            count.answered = True
            count.hides_usage = count.hides_usage and answer.is_stream
        await engine.wait_for_body()
        seat.answer_started = True
        exchange.first_byte, exchange.streams = exchange.age, answer.is_stream
        try:
            await engine.relay(client, answer.head, answer.framed, count)
            await client.drain()
        except EngineFault as fault:
            if not isinstance(fault, NotContinued):  # else the failure of the engine at fault was noted before
                self._turns.note_failure(exchange.model)
            reason = f" No engine can continue it: {fault}." if exchange.continuation else ""
            self._break_off(answer, exchange, "engine-broke-off", reason)
        except asyncio.CancelledError:
            if not (seat.turn_ended or self._is_stopped or exchange.revoked):
                raise
            end_code = "yielded" if self._turns.yielding.is_requested else "turn-ended"
            code = "key-revoked" if exchange.revoked else end_code if seat.turn_ended else "stopping"
            self._break_off(answer, exchange, code)
        finally:
            exchange.sent = engine.relayed_bytes
        return answer

    def _break_off(self, answer: RelayedAnswer, exchange: Exchange, code: str, reason: str = "") -> None:
        self._metrics.broken[exchange.model] += 1
        exchange.error = code
        answer.break_off(f"The answer of {exchange.model} is broken off: {code}.{reason}", code)
