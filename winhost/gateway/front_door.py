"""One request from its head to the end of its answer."""

import asyncio
import json
import logging
import secrets
import time
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from .answer_framing import AnswerFraming
from .api_keys import ApiKeys
from .connections import ClientConnection, Clients
from .engine_connection import EngineConnection
from .engine_control import EngineFault, NotUp
from .engine_side import Engines
from .gateway_metrics import GatewayMetrics
from .gateway_settings import GatewaySettings, PublishedModel
from .published import (
    HEALTH,
    METRICS,
    MODELS,
    READY,
    NotUnderstood,
    for_engine,
    method_of,
    model_in,
    needs_key,
    route_of,
    understood,
)
from .strict_http import REFUSED
from .turn_state import Seat, TurnEnded
from .turns import Busy, Turns

_LOG = logging.getLogger("gateway")
_LARGE = 262_144  # bytes; parsing more would hold up everybody's streams
_PASSED = ("Content-Type", "Content-Encoding", "Retry-After")  # of an engine's headers
_GONE = 499  # the client went away; for log and metrics alone


@dataclass
class Exchange:
    """What is known of a request by now; all of it may be logged."""

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=time.monotonic)
    route: str = "-"
    key: str = "-"
    model: str = "-"
    sent: int = 0
    first_byte: float | None = None

    @property
    def age(self) -> float:
        return time.monotonic() - self.began


class Answered(Exception):
    """The answer is an error: status, code and what it means."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(code)
        self.status, self.code, self.message, self.headers = status, code, message, headers


class FrontDoor:
    """Handles requests for aiohttp's server. draining: it takes no more of them; open: how many are not answered."""

    def __init__(
        self, settings: GatewaySettings, keys: ApiKeys, engines: Engines, clients: Clients, turns: Turns
    ) -> None:
        self._settings, self._keys, self._engines, self._clients = settings, keys, engines, clients
        self._turns = turns
        self._metrics = GatewayMetrics()
        self._began = int(time.time())
        self.draining = False
        self._cutting = False
        self._work: set[asyncio.Task[web.StreamResponse]] = set()

    @property
    def open(self) -> int:
        return len(self._work)

    def cut(self) -> None:
        """End what is still open: streams with an error event, other requests with 503."""
        self._cutting = True
        for work in self._work:
            work.cancel()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """What aiohttp calls."""
        connection = request.transport.get_protocol() if request.transport else None
        if not isinstance(connection, ClientConnection):
            return web.Response(status=_GONE)  # it went away before its turn came
        connection.answering()
        exchange = Exchange()
        work = asyncio.ensure_future(self._answer(request, connection, exchange))
        self._work.add(work)
        connection.tie(work)
        try:
            response = await work
        except asyncio.CancelledError:
            if not work.cancelled() or request.transport is not None:
                raise
            response = web.Response(status=_GONE)
        finally:
            self._work.discard(work)
        self._note(exchange, response.status)
        return response

    def _note(self, exchange: Exchange, status: int) -> None:
        counted = self._metrics
        counted.requests[exchange.route, exchange.model, status] += 1
        counted.sent[exchange.model] += exchange.sent
        counted.whole.add(exchange.model, exchange.age)
        if exchange.first_byte is not None:
            counted.first_byte.add(exchange.model, exchange.first_byte)
        first = "-" if exchange.first_byte is None else f"{exchange.first_byte:.3f}"
        parts = (exchange.id, f"key={exchange.key}", exchange.route, f"model={exchange.model}", str(status))
        _LOG.info("%s first=%s s, whole=%.3f s, %d bytes", " ".join(parts), first, exchange.age, exchange.sent)

    async def _answer(
        self, request: web.BaseRequest, connection: ClientConnection, exchange: Exchange
    ) -> web.StreamResponse:
        try:
            return await self._routed(request, connection, exchange)
        except Answered as error:
            return self._error(error, exchange)
        except asyncio.CancelledError:
            if not self._cutting or request.transport is None:
                raise
            return self._error(Answered(503, "stopping", "The gateway is stopping.", Retry_After="10"), exchange)

    def _error(self, error: Answered, exchange: Exchange) -> web.Response:
        self._metrics.refused[error.code] += 1
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        body = {"error": {"message": error.message, "type": kind, "code": error.code}}
        response = web.json_response(body, status=error.status, headers=self._headers(exchange))
        response.headers.update({name.replace("_", "-"): value for name, value in error.headers.items()})
        # Its body may still be on the way: nothing after it on this connection would be read.
        if error.status in (401, 404, 405, 408, 413, 415) or self.draining:
            response.force_close()
        return response

    def _headers(self, exchange: Exchange) -> dict[str, str]:
        return {"Server": "winhost", "X-Request-Id": exchange.id, "Cache-Control": "no-store"}

    async def _routed(
        self, request: web.BaseRequest, connection: ClientConnection, exchange: Exchange
    ) -> web.StreamResponse:
        if refused := request.headers.get(REFUSED):
            status, _, code = refused.partition(" ")
            raise Answered(int(status), code, f"The request is refused before it is read further: {code}.")
        target = request.raw_path
        route = route_of(target, self._settings.models)
        if needs_key(route):
            exchange.key = self._holder(request)
            connection.has_key()
        if route is None:
            raise Answered(404, "not-published", "Nothing is published here.")
        exchange.route = route
        if request.method != method_of(route):
            raise Answered(405, "method", f"This takes {method_of(route)} alone.", Allow=method_of(route))
        if self.draining:
            raise Answered(503, "stopping", "The gateway is stopping.", Retry_After="10")
        if method_of(route) == "POST":
            return await self._completed(request, exchange)
        return await self._own_answer(route, target.partition("?")[0], exchange)

    def _holder(self, request: web.BaseRequest) -> str:
        holder = self._keys.name_of(request.headers.get("Authorization", ""))
        if holder is None:
            message = "An API key is needed: the header `Authorization: Bearer KEY`."
            raise Answered(401, "no-key", message, WWW_Authenticate="Bearer")
        return holder

    async def _own_answer(self, route: str, path: str, exchange: Exchange) -> web.Response:
        headers = self._headers(exchange)
        if route == HEALTH:
            return web.json_response({"status": "ok"}, headers=headers)
        if route == METRICS:
            now = {"requests_running": self._turns.running, "requests_waiting": self._turns.waiting}
            text = self._metrics.text(self._turns.metrics(), **now, connections=self._clients.now)
            return web.Response(text=text, headers={**headers, "Content-Type": "text/plain; version=0.0.4"})
        if route == READY:
            models = self._settings.models.values()
            if not all(await asyncio.gather(*(self._ready(model) for model in models))):
                raise Answered(503, "not-ready", "A model does not answer with a completion.", Retry_After="10")
            return web.json_response({"ready": True}, headers=headers)
        named = model_in(path, self._settings.models)
        if path != MODELS and named:
            return web.json_response(self._described(named), headers=headers)
        data = [self._described(name) for name in self._settings.models]
        return web.json_response({"object": "list", "data": data}, headers=headers)

    async def _ready(self, model: PublishedModel) -> bool:
        """A model that takes turns answered when its turn began; asked in between, it would hold up others."""
        if self._turns.takes_turns(model.name):
            return self._turns.ready(model.name)
        return await self._engines.ready(model)

    def _described(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._began, "owned_by": "winhost"}

    # ---- what goes to an engine

    async def _completed(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        model, body = await self._read(request)
        exchange.model = model.name
        until = self._turns.until()
        while True:
            try:
                return await self._turned(request, model, body, exchange, until)
            except NotUp:
                # No byte of it went anywhere: where its model takes turns, it waits for another.
                if not self._turns.not_up(model.name):
                    message = f"The engine of {model.name} is not up, or still starting."
                    raise Answered(503, "engine-not-up", message, Retry_After="10") from None

    async def _turned(
        self, request: web.BaseRequest, model: PublishedModel, body: bytes, exchange: Exchange, until: float
    ) -> web.StreamResponse:
        hold = 0 if self._turns.takes_turns(model.name) else None
        try:
            async with (
                self._turns.turn(model.name, until) as seat,
                self._engines.answer(model, exchange.route, [body], exchange.id, hold) as answer,
            ):
                return await self._passed_on(request, answer, exchange, seat)
        except Busy as busy:
            message = "All places are taken, and those to wait as well, or the model's turn did not come in time."
            raise Answered(503, "busy", message, Retry_After=str(busy.after)) from None
        except TurnEnded:
            message = f"The turn of {model.name} ended before it answered."
            raise Answered(503, "turn-ended", message, Retry_After="5") from None
        except EngineFault:
            self._turns.doubt(model.name)
            self._metrics.broken[model.name] += 1
            message = f"The engine of {model.name} broke off before it answered."
            raise Answered(502, "engine-broke-off", message) from None

    async def _read(self, request: web.BaseRequest) -> tuple[PublishedModel, bytes]:
        if request.content_type != "application/json":
            raise Answered(415, "content-type", "The body has to be application/json.")
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            body = await asyncio.wait_for(_whole(request.content), self._settings.limits.receive)
        except asyncio.TimeoutError:  # another class before Python 3.11
            raise Answered(408, "too-slow", "The body did not come in time.") from None
        if _elements(body) > self._settings.limits.elements:
            raise Answered(
                413, "too-many-elements", f"The body has more than {self._settings.limits.elements} elements."
            )
        try:
            if len(body) < _LARGE:
                return self._translated(body)
            return await asyncio.get_running_loop().run_in_executor(None, self._translated, body)
        except NotUnderstood as error:
            raise Answered(400, "body", str(error)) from None

    def _translated(self, body: bytes) -> tuple[PublishedModel, bytes]:
        found = understood(body)
        model = self._settings.models.get(found["model"])
        if model is None:
            message = f"There is no such model here. There are: {', '.join(self._settings.models)}."
            raise Answered(404, "model_not_found", message)
        return model, for_engine(found, model.served_as)

    async def _passed_on(
        self, request: web.BaseRequest, engine: EngineConnection, exchange: Exchange, seat: "Seat | None"
    ) -> web.StreamResponse:
        """The first part begins the answer by aiohttp; the others go past it."""
        response = self._begun(request, engine.answer, exchange)
        try:
            first = await engine.part()
            exchange.first_byte = exchange.age
            await response.prepare(request)
            if first:
                await response.write(first)
            client = request.transport.get_protocol() if request.transport else None
            if not isinstance(client, ClientConnection):
                raise asyncio.CancelledError  # it has just gone
            await engine.pass_on(client, response.chunked)
        except EngineFault:
            if not response.prepared:
                raise
            self._turns.doubt(exchange.model)
            await self._break_off(request, response, exchange, "engine-broke-off")
            return response
        except asyncio.CancelledError:
            ended = seat is not None and seat.ended
            if not (ended or self._cutting) or not response.prepared:
                raise
            await self._break_off(request, response, exchange, "turn-ended" if ended else "stopping")
            return response
        finally:
            exchange.sent = engine.passed
        await response.write_eof()
        return response

    def _begun(self, request: web.BaseRequest, answer: AnswerFraming, exchange: Exchange) -> web.StreamResponse:
        # The others are between engine and gateway, and nothing that the client can mend.
        if not (200 <= answer.status < 300 or 400 <= answer.status < 600) or answer.status in (401, 403):
            raise EngineFault(str(answer.status))
        passed = {name: answer.headers[name.lower()] for name in _PASSED if name.lower() in answer.headers}
        if not all(value.isprintable() for value in passed.values()):
            raise EngineFault("header")
        headers = {"Content-Type": "application/json", **self._headers(exchange), **passed}
        response = web.StreamResponse(status=answer.status, headers=headers)
        response.content_length = answer.length
        if answer.length is None and request.version >= (1, 1):
            response.enable_chunked_encoding()
        if self.draining:
            response.force_close()
        return response

    async def _break_off(
        self, request: web.BaseRequest, response: web.StreamResponse, exchange: Exchange, code: str
    ) -> None:
        """Never ends an answer as if it were whole: its last chunk does not come, and a stream says why."""
        self._metrics.broken[exchange.model] += 1
        if response.content_type == "text/event-stream":
            message = f"The answer of {exchange.model} is broken off: {code}."
            error = {"error": {"message": message, "type": "server_error", "code": code}}
            await response.write(f"data: {json.dumps(error)}\n\n".encode("ascii"))
        if request.transport:
            request.transport.close()


def _elements(body: bytes) -> int:
    """As many values as JSON can have at most, counted a hundred times as fast as it is parsed."""
    return sum(map(body.count, (b",", b"[", b"{")))


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """How long it can be is known by now: a longer one is refused before."""
    parts = [part async for part in content.iter_any()]
    return b"".join(parts)
