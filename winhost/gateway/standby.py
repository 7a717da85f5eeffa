"""Let another engine take over when the engine of a model dies or hangs: a second engine, or the same one started again
where both do not fit.

A request that has no first byte of an answer yet is sent to the other engine, which also continues streams
(continuation.py). An engine that closes or refuses a connection has died. An engine that hangs is found by /health,
which is read while a request is open and no byte comes: vLLM's server answers it even while the engine computes a long
prompt. If the GPU is stuck behind such a server, none of its streams goes on, for far longer than ever before.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from .answer_framing import LAST_CHUNK, AnswerFraming, encode_chunk
from .connections import ClientConnection
from .continuation import Continuation, ContinuedAnswer, EngineErrorEvent, NotContinued
from .engine_connection import EngineConnection
from .engine_control import EngineFault, EngineUnreachable
from .engines import Answer, Engines
from .gateway_metrics import family
from .gateway_settings import FIRST, SECOND, GatewaySettings, PublishedModel
from .key_limits import TokenCount
from .turn_state import TurnEnded
from .turns import Busy, Turn, Turns

_RETRY_PAUSE_S = 0.25
_MAX_KEPT_BYTES = 67_108_864  # bytes of requests and texts of all streams that can be continued
_STUCK_FACTOR = 10  # times the longest pause, and times `within`: an engine without a token for so long is stuck
_MAX_PATIENCE_S = 120  # more only if the engine was as silent before and went on, or if `within` is long
_REPEAT_FACTOR = 2  # times the longest pause that ended by itself: the least patience; times a fatal one: the most
_MAX_PAUSES = 1000  # the number of pauses that are remembered
_MIN_PAUSES = 20  # with fewer pauses, no engine counts as stuck
_MAX_FAULTS = 2  # of engines with one request, and no token in between: the request itself may be the cause
_EVENTS = "text/event-stream"


class TextMemory:
    """The memory for the requests and texts that are kept to continue streams."""

    def __init__(self, limit: int = _MAX_KEPT_BYTES) -> None:
        self._free_bytes = limit

    def take(self, size: int) -> bool:
        """Take this many bytes; False if fewer are left."""
        if size > self._free_bytes:
            return False
        self._free_bytes -= size
        return True

    def give_back(self, size: int) -> None:
        self._free_bytes += size


class _WatchedEngine:
    """One engine. It is watched while it has a request."""

    def __init__(
        self, name: str, model: PublishedModel, connections: Engines, within: float, turns: "Turns | None" = None
    ) -> None:
        """within: seconds in which a hang is noticed; turns: start the engine again then, None: a second engine takes
        over.
        """
        self.name, self.model, self.failures, self._turns = name, model, 0, turns
        self.open_connections: set[EngineConnection] = set()
        self.due_streams: set[EngineConnection] = set()  # streams that have begun and wait for their next token
        self._pauses: deque[float] = deque(maxlen=_MAX_PAUSES)  # that ended by themselves
        # Pauses after which the engine was given up, and a 0 for each pause that ended by itself.
        self._fatal_pauses: deque[float] = deque(maxlen=_MAX_PAUSES)
        self._engines, self._control, self._within = connections, connections.control(model), within
        self._requests = 0
        self._watcher: asyncio.Task[None] | None = None

    def start_request(self) -> None:
        self._requests += 1
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch_engine())

    def end_request(self, connection: "EngineConnection | None") -> None:
        if connection:
            self.open_connections.discard(connection)
        self._requests -= 1
        if self._watcher and not self._requests:
            self._watcher.cancel()
            self._watcher = None

    async def _watch_engine(self) -> None:
        """Watch the engine, and close its connections when it is dead. Time in which the gateway is stopped does not
        count.
        """
        loop, step = asyncio.get_running_loop(), self._within / 10
        now, then = self._received(), loop.time()
        pause = 0.0  # since the last byte, while a stream waits
        while True:
            await asyncio.sleep(step)
            before, now = now, self._received()
            passed, then = min(loop.time() - then, 2 * step), loop.time()
            if _has_grown(before, now):
                self._pauses.append(pause)
                self._fatal_pauses.append(0.0)
                pause = 0.0
                continue
            pause = pause + passed if self.due_streams else 0.0
            stuck = pause > self._patience
            if stuck or not await self.is_alive():
                if stuck:  # perhaps it is only slow, which may happen again
                    self._fatal_pauses.append(pause)
                pause = 0.0
                self._engines.retire_connections(self.model.engine)
                if self._turns:
                    self._turns.note_death(self.model.name)
                for connection in [*self.open_connections]:
                    connection.close()

    @property
    def _patience(self) -> float:
        """Seconds without a token in any stream after which the engine counts as stuck: a working engine generates a
        token for every stream with each step.

        After a pause that ended with giving the engine up, it is not known whether it was stuck or slow. The next pause
        may last twice as long, up to _MAX_PATIENCE_S, so that the patience does not grow with each time.
        """
        if len(self._pauses) < _MIN_PAUSES:
            return math.inf
        longest, longest_fatal = max(self._pauses), max(self._fatal_pauses)
        by_pauses = min(_STUCK_FACTOR * longest, max(_MAX_PATIENCE_S, _REPEAT_FACTOR * longest))
        return max(_STUCK_FACTOR * self._within, by_pauses, min(_REPEAT_FACTOR * longest_fatal, _MAX_PATIENCE_S))

    def _received(self) -> "dict[EngineConnection, int]":
        return {each: each.received for each in self.open_connections}

    async def is_alive(self) -> bool:
        """Tell whether it reports in time that it is healthy, or sends more of an answer. Time in which the gateway is
        stopped does not count.
        """
        step, remaining, before = self._within / 10, self._within * 0.7, self._received()
        loop = asyncio.get_running_loop()
        health = asyncio.ensure_future(self._control.is_healthy())
        try:
            while remaining > 0:
                then = loop.time()
                await asyncio.wait({health}, timeout=step)
                if health.done():
                    return health.result()
                if _has_grown(before, self._received()):
                    return True
                remaining -= min(loop.time() - then, 2 * step)
            return False
        finally:
            health.cancel()


def _has_grown(before: "Mapping[EngineConnection, int]", now: "Mapping[EngineConnection, int]") -> bool:
    return any(size > before.get(each, 0) for each, size in now.items())


class Pair:
    """The engines of one model. The active one answers until it fails; then the other one is active. If there is only
    one, it answers again from its next turn on.
    """

    def __init__(
        self, model: PublishedModel, connections: Engines, turns: Turns, memory: TextMemory, hold: float
    ) -> None:
        """hold: seconds for which a request may wait for an engine."""
        standby = model.standby
        assert standby
        own_turns = None if standby.engine else turns
        first = _WatchedEngine(FIRST, model, connections, standby.within, own_turns)
        if standby.engine:
            second = replace(model, name=f"{model.name}-standby", engine=standby.engine)
            watched = _WatchedEngine(SECOND, second, connections, standby.within)
            self.engines: tuple[_WatchedEngine, ...] = (first, watched)
        else:
            self.engines = (first,)
        self.name, self.connections, self.turns = model.name, connections, own_turns
        self.memory, self.hold = memory, hold
        self.active = self.engines[0]
        self.counts: Counter[str] = Counter()

    def note_unreachable(self, engine: _WatchedEngine) -> None:
        """Switch to the other engine, because this one refused a connection."""
        if self.turns:
            self.turns.note_unreachable(self.name)
        elif self.active is engine:
            self.active = self.engines[1] if engine is self.engines[0] else self.engines[0]

    def note_failure(self, engine: _WatchedEngine) -> None:
        """Switch to the other engine, because this one failed a request."""
        engine.failures += 1
        if self.turns:
            self.turns.note_failure(self.name)
        else:
            self.note_unreachable(engine)

    async def is_ready(self) -> bool:
        """Tell whether one of the engines answers with a completion."""
        others = [engine for engine in self.engines if engine is not self.active]
        for engine in (self.active, *others):
            if await self.connections.is_ready(engine.model):
                return True
        return False


class FailoverAnswer:
    """The answer to one request, which one engine begins and another one may continue. It has the interface of an
    EngineConnection for an answer. Entering sends the request, and raises EngineUnreachable, EngineFault, Busy,
    TurnEnded. answer: the first engine's; relayed_bytes: bytes that the client got.
    """

    def __init__(
        self,
        pair: Pair,
        path: str,
        body: "Sequence[bytes]",
        request_id: str,
        continuation: "Continuation | None",
        deadline: float,
        turn: Turn,
    ) -> None:
        """deadline: the time of the event loop until which the first byte may come; turn: with the only engine, taken
        again if that engine fails.
        """
        self._turn = turn if pair.turns else None
        self._pair, self._path, self._id, self._deadline = pair, path, request_id, deadline
        self._body: Sequence[bytes] = list(body)
        self._answer_text = ContinuedAnswer(continuation or Continuation("it is no stream of a chat or a completion"))
        self._kept_bytes = 0  # of the memory
        self._attempts = self._faults = 0
        self._tokens_at_fault = 0  # of the answer, when an engine failed last
        self._engine: _WatchedEngine | None = None
        self._answer: Answer | None = None
        self._connection: EngineConnection | None = None
        self.answer: AnswerFraming
        self.relayed_bytes = 0

    async def __aenter__(self) -> "FailoverAnswer":
        self.answer = (await self._send(self._body, self._deadline)).answer
        kind = self.answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.answer.status != 200 or kind != _EVENTS:
            self._answer_text.give_up("it is no stream")
        self._body = () if self._answer_text.obstacle else [b"".join(self._body)]
        self._keep_text()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._pair.memory.give_back(self._kept_bytes)
        await self._end_request()

    async def wait_for_body(self) -> None:
        """Return at once, because entering waits for the first byte."""

    # ---- sending

    async def _send(self, body: "Sequence[bytes]", deadline: float) -> EngineConnection:
        """Send the request until the first byte of an answer comes. Raises EngineUnreachable, EngineFault, Busy,
        TurnEnded.
        """
        loop, refused = asyncio.get_running_loop(), 0
        while True:
            engine = self._pair.active
            try:
                return await self._send_once(engine, body)
            except EngineUnreachable:
                self._pair.note_unreachable(engine)
                refused += 1
                if loop.time() >= deadline:
                    raise
                if refused % len(self._pair.engines) == 0 and not self._turn:
                    await asyncio.sleep(_RETRY_PAUSE_S)
            except EngineFault:
                self._pair.note_failure(engine)
                self._faults += 1
                if self._faults >= _MAX_FAULTS:
                    raise
                self._pair.counts["asked_again"] += 1
            if self._turn:
                await self._turn.retake(deadline)

    async def _send_once(self, engine: _WatchedEngine, body: "Sequence[bytes]") -> EngineConnection:
        """Send the request to this engine once. Raises EngineUnreachable, EngineFault."""
        self._attempts += 1  # an engine that is not dead after all may still have the id
        request_id = self._id if self._attempts == 1 else f"{self._id}-{self._attempts}"
        connections = self._pair.connections
        answer = Answer(connections, engine.model, self._path, body, request_id, 0, self._on_connection)
        self._engine, self._connection = engine, None
        engine.start_request()
        try:
            connection = await answer.__aenter__()
            self._answer = answer
            if connection.answer.status >= 500 and not await engine.is_alive():
                raise EngineFault(str(connection.answer.status))
            await connection.wait_for_body()
        except BaseException:
            await self._end_request()
            raise
        return connection

    def _on_connection(self, connection: EngineConnection) -> None:
        assert self._engine
        if self._connection:  # an idle connection that its engine has just closed
            self._engine.open_connections.discard(self._connection)
        self._engine.open_connections.add(connection)
        self._connection = connection

    async def _end_request(self) -> None:
        (engine, self._engine), (answer, self._answer) = (self._engine, None), (self._answer, None)
        if engine:
            engine.end_request(self._connection)
        if answer:
            await answer.__aexit__(None, None, None)

    # ---- relaying

    async def relay(self, client: ClientConnection, head: bytes, framed: bool, count: "TokenCount | None") -> None:
        """Relay the answer as EngineConnection.relay does. Raises EngineFault, whose message says why no engine
        continues.
        """
        if not self._body:
            await self._relay_unchanged(client, head, framed, count)
            return
        try:
            async for events in self._continued_events():
                part = encode_chunk(events) if framed and events else events
                client.write(head + part)
                head = b""
                self.relayed_bytes += len(events)
                await client.drain()
            if framed:
                client.write(LAST_CHUNK)
        finally:
            if count:
                count.report(self._answer_text.prompt_tokens, self._answer_text.answer_tokens)
        if self._engine:
            with suppress(EngineFault):  # read to the end, so that the connection can be used again
                while self._connection and await self._connection.next_part():
                    pass

    async def _relay_unchanged(
        self, client: ClientConnection, head: bytes, framed: bool, count: "TokenCount | None"
    ) -> None:
        assert self._connection
        try:
            await self._connection.relay(client, head, framed, count)
        except EngineFault:
            if self._engine:
                self._pair.note_failure(self._engine)
            self._pair.counts["not_continued"] += 1
            raise NotContinued(self._answer_text.obstacle) from None
        finally:
            self.relayed_bytes = self._connection.relayed_bytes

    async def _continued_events(self) -> "AsyncIterator[bytes]":
        """Yield the events for the client, until the last one. Raises EngineFault."""
        text = self._answer_text
        while not text.complete:
            assert self._connection
            failure: EngineFault | EngineErrorEvent | None = None
            try:
                part = await self._next_part(self._connection)
                events, failure = text.translate(part), text.failure
                if not part:
                    failure = EngineFault("unfinished")
            except EngineFault as error:
                events, failure = b"", error
            self._keep_text()
            if events:
                yield events
            if failure and (events := await self._continue_after(failure)):
                yield events

    async def _next_part(self, connection: EngineConnection) -> bytes:
        """Wait for the next part of the answer. Raises EngineFault."""
        assert self._engine
        due_streams = self._engine.due_streams
        if self._answer_text.is_streaming:
            due_streams.add(connection)
        try:
            return await connection.next_part()
        finally:
            due_streams.discard(connection)

    async def _continue_after(self, fault: "EngineFault | EngineErrorEvent") -> bytes:
        """Have another engine continue the answer. Return its last events instead if it is complete. Raises
        EngineFault.
        """
        text, pair, engine = self._answer_text, self._pair, self._engine
        assert engine
        if isinstance(fault, EngineErrorEvent) and (not fault.engine_at_fault or await engine.is_alive()):
            text.complete = True
            return fault.event + b"data: [DONE]\n\n"
        pair.note_failure(engine)
        await self._end_request()
        if (events := text.final_events()) is not None:
            return events
        self._faults = self._faults + 1 if text.answer_tokens == self._tokens_at_fault else 1
        self._tokens_at_fault = text.answer_tokens
        try:
            if self._faults > _MAX_FAULTS:
                raise NotContinued("several engines failed with it")
            body = text.continuation_body(self._body[0] if self._body else b"")
            deadline = asyncio.get_running_loop().time() + pair.hold
            if self._turn:
                await self._turn.retake(deadline)
            connection = await self._send([body], deadline)
            if connection.answer.status != 200:
                raise NotContinued(f"the other engine answered {connection.answer.status}")
        except (EngineUnreachable, EngineFault, Busy, TurnEnded) as error:
            pair.counts["not_continued"] += 1
            raise error if isinstance(error, NotContinued) else NotContinued(_describe_failure(error)) from None
        pair.counts["continued"] += 1
        return b""

    def _keep_text(self) -> None:
        """Reserve memory for the request and the text so far, or drop both if there is not enough."""
        text, size = self._answer_text, len(self._body[0]) + self._answer_text.text_bytes if self._body else 0
        if text.obstacle or not self._pair.memory.take(size - self._kept_bytes):
            text.give_up("too much is kept for other streams")
            self._body = [b""] if self._body else ()
            size = 0
            self._pair.memory.give_back(self._kept_bytes)
            self._kept_bytes = 0
        self._kept_bytes = size


def _describe_failure(error: Exception) -> str:
    if isinstance(error, TurnEnded):
        return "its turn ended"
    return "the other engine broke off as well" if isinstance(error, EngineFault) else "no engine of it is up"


def create_pairs(settings: GatewaySettings, connections: Engines, turns: Turns) -> "dict[str, Pair]":
    """Create a pair for each model that has a standby, by name."""
    memory = TextMemory()
    return {
        name: Pair(model, connections, turns, memory, settings.limits.hold)
        for name, model in settings.models.items()
        if model.standby
    }


_RESULTS: Mapping[str, str] = {
    "asked_again": "a request without a first byte went to the other engine",
    "continued": "the other engine went on with a stream",
    "not_continued": "a stream ended with an error event",
}


def metric_lines(pairs: "Mapping[str, Pair]") -> Iterable[str]:
    """Yield the metrics for Prometheus; none if no model has a standby."""
    if not pairs:
        return
    states = [({"model": name, "state": pair.active.name}, 1) for name, pair in pairs.items() if len(pair.engines) > 1]
    yield from family("standby_state", "gauge", "1 for the engine that answers now, first or second.", states)
    failures = [
        ({"model": name, "engine": engine.name}, engine.failures)
        for name, pair in pairs.items()
        for engine in pair.engines
    ]
    yield from family("standby_failures_total", "counter", "How often an engine let requests down.", failures)
    results = [
        ({"model": name, "result": result}, pair.counts[result]) for name, pair in pairs.items() for result in _RESULTS
    ]
    meaning = "; ".join(f"{result}: {what}" for result, what in _RESULTS.items()) + "."
    yield from family("standby_taken_over_total", "counter", meaning, results)
