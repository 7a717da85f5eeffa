"""Let another engine take over when the engine of a model dies or hangs: a second engine, or the same one started again
where both do not fit.

A request without a first byte goes to the other engine, and so does the rest of a stream (`continuing`). A connection
that an engine closes or refuses shows at once that it died. An engine that hangs is found by /health, which is asked
while a request is open and no byte comes: vLLM's server answers it even while the engine computes a long prompt. If the
GPU is stuck behind such a server, the streams show it: none of them goes on, for far longer than ever before.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from .answer_framing import LAST_CHUNK, AnswerFraming, in_chunk
from .connections import ClientConnection
from .continuing import Again, Continued, EngineSays, NotContinued
from .engine_connection import EngineConnection
from .engine_control import EngineFault, NotUp
from .engine_side import Answer, Engines
from .gateway_metrics import family
from .gateway_settings import FIRST, SECOND, GatewaySettings, PublishedModel
from .key_limits import TokenCount
from .turn_state import TurnEnded
from .turns import Busy, Turn, Turns

_BETWEEN_TRIES_S = 0.25
_MOST_KEPT = 67_108_864  # bytes of requests and texts of all streams that can be continued
_PATIENCE = 10  # an engine counts as stuck after this many times its longest pause, and this many times `within`
_MOST_PATIENCE_S = 120  # longer only for an engine that was as silent before and went on, or with a long `within`
_DOUBLED = 2  # times a pause that ended by itself: the least patience; times one that did not: the most
_LOOKS = 1000  # the number of pauses that are remembered
_FEW_LOOKS = 20  # with fewer pauses, an engine is not judged by them
_MOST_FAULTS = 2  # failures of engines with one request and no token in between: the request itself may end them
_EVENTS = "text/event-stream"


class Room:
    """The memory for all that is kept to continue streams."""

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._left = most

    def take(self, size: int) -> bool:
        """Take this many bytes; False if fewer are left."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


class _Side:
    """One engine. It is watched while it has a request."""

    def __init__(
        self, name: str, model: PublishedModel, engines: Engines, within: float, turns: "Turns | None" = None
    ) -> None:
        """within: seconds in which a hang is noticed; turns: start the engine again then."""
        self.name, self.model, self.failures, self._turns = name, model, 0, turns
        self.open: set[EngineConnection] = set()
        self.waited_for: set[EngineConnection] = set()  # their streams have begun, and their next token is due
        self._pauses: deque[float] = deque(maxlen=_LOOKS)  # those that ended by themselves
        self._left_after: deque[float] = deque(
            maxlen=_LOOKS
        )  # those after which it was given up, and a 0 per other look
        self._engines, self._control, self._within = engines, engines.control(model), within
        self._requests = 0
        self._watch: asyncio.Task[None] | None = None

    def enter(self) -> None:
        self._requests += 1
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._look())

    def leave(self, connection: "EngineConnection | None") -> None:
        if connection:
            self.open.discard(connection)
        self._requests -= 1
        if self._watch and not self._requests:
            self._watch.cancel()
            self._watch = None

    async def _look(self) -> None:
        """Watch the engine, and hang up when it does not live. Time in which this program is stopped does not count."""
        loop, step = asyncio.get_running_loop(), self._within / 10
        now, at = self._received(), loop.time()
        pause = 0.0  # since something came, while a stream waits
        while True:
            await asyncio.sleep(step)
            before, now = now, self._received()
            passed, at = min(loop.time() - at, 2 * step), loop.time()
            if _grown(before, now):
                self._pauses.append(pause)
                self._left_after.append(0.0)
                pause = 0.0
                continue
            pause = pause + passed if self.waited_for else 0.0
            stuck = pause > self._patience
            if stuck or not await self.lives():
                if stuck:  # or only slow, and that may happen again
                    self._left_after.append(pause)
                pause = 0.0
                self._engines.hang_up(self.model.engine)
                if self._turns:
                    self._turns.died(self.model.name)
                for connection in [*self.open]:
                    connection.close()

    @property
    def _patience(self) -> float:
        """Seconds without a token in any stream after which the engine counts as stuck: a working engine gives every
        stream a token with each step.

        A pause after which it was given up says little: it was stuck, or it would have gone on. The next pause may last
        twice as long, up to the most, so that an engine that is stuck once a week is not given ever more time.
        """
        if len(self._pauses) < _FEW_LOOKS:
            return math.inf
        longest, left_after = max(self._pauses), max(self._left_after)
        known = min(_PATIENCE * longest, max(_MOST_PATIENCE_S, _DOUBLED * longest))
        return max(_PATIENCE * self._within, known, min(_DOUBLED * left_after, _MOST_PATIENCE_S))

    def _received(self) -> "dict[EngineConnection, int]":
        return {each: each.received for each in self.open}

    async def lives(self) -> bool:
        """Tell whether it says in time that it is well, or sends more of an answer. Time in which this program is
        stopped does not count.
        """
        step, left, before = self._within / 10, self._within * 0.7, self._received()
        loop = asyncio.get_running_loop()
        asked = asyncio.ensure_future(self._control.healthy())
        try:
            while left > 0:
                at = loop.time()
                await asyncio.wait({asked}, timeout=step)
                if asked.done():
                    return asked.result()
                if _grown(before, self._received()):
                    return True
                left -= min(loop.time() - at, 2 * step)
            return False
        finally:
            asked.cancel()


def _grown(before: "Mapping[EngineConnection, int]", now: "Mapping[EngineConnection, int]") -> bool:
    return any(size > before.get(each, 0) for each, size in now.items())


class Pair:
    """The engines of one model. One answers until it fails; then the other one does. If there is only one, it answers
    again from its next turn on.
    """

    def __init__(self, model: PublishedModel, engines: Engines, turns: Turns, room: Room, hold: float) -> None:
        standby = model.standby
        assert standby
        own_turns = None if standby.engine else turns
        first = _Side(FIRST, model, engines, standby.within, own_turns)
        if standby.engine:
            second = replace(model, name=f"{model.name}-standby", engine=standby.engine)
            self.sides: tuple[_Side, ...] = (first, _Side(SECOND, second, engines, standby.within))
        else:
            self.sides = (first,)
        self.name, self.engines, self.turns, self.room, self.hold = model.name, engines, own_turns, room, hold
        self.side = self.sides[0]
        self.counts: Counter[str] = Counter()

    def refused(self, side: _Side) -> None:
        """Switch to the other engine, because this one refused a connection."""
        if self.turns:
            self.turns.not_up(self.name)
        elif self.side is side:
            self.side = self.sides[1] if side is self.sides[0] else self.sides[0]

    def failed(self, side: _Side) -> None:
        """Switch to the other engine, because this one failed a request."""
        side.failures += 1
        if self.turns:
            self.turns.doubt(self.name)
        else:
            self.refused(side)

    async def ready(self) -> bool:
        """Tell whether one of them answers with a completion."""
        others = [side for side in self.sides if side is not self.side]
        for side in (self.side, *others):
            if await self.engines.ready(side.model):
                return True
        return False


class Relayed:
    """The answer to one request, which one engine begins and another one may continue. It can be passed on as an
    EngineConnection can. Entering raises NotUp, EngineFault, Busy, TurnEnded. answer: the first engine's; passed: bytes
    that went to the client.
    """

    def __init__(
        self,
        pair: Pair,
        path: str,
        body: "Sequence[bytes]",
        request_id: str,
        again: "Again | None",
        until: float,
        turn: Turn,
    ) -> None:
        """until: the time of the event loop until which the first byte may come; turn: with the only engine, and taken
        again if that fails.
        """
        self._turn = turn if pair.turns else None
        self._pair, self._path, self._id, self._until = pair, path, request_id, until
        self._body: Sequence[bytes] = list(body)
        self._story = Continued(again or Again("it is no stream of a chat or a completion"))
        self._kept = 0  # bytes of room
        self._asked = self._faults = 0
        self._given = 0  # tokens, when an engine failed last
        self._side: _Side | None = None
        self._answer: Answer | None = None
        self._connection: EngineConnection | None = None
        self.answer: AnswerFraming
        self.passed = 0

    async def __aenter__(self) -> "Relayed":
        self.answer = (await self._ask(self._body, self._until)).answer
        kind = self.answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.answer.status != 200 or kind != _EVENTS:
            self._story.give_up("it is no stream")
        self._body = () if self._story.broken else [b"".join(self._body)]
        self._keep()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._pair.room.give_back(self._kept)
        await self._leave()

    async def begins(self) -> None:
        """Return at once: the answer has begun."""

    # ---- asking

    async def _ask(self, body: "Sequence[bytes]", until: float) -> EngineConnection:
        """Ask until the first byte of an answer comes. Raises NotUp, EngineFault, Busy, TurnEnded."""
        loop, refused = asyncio.get_running_loop(), 0
        while True:
            side = self._pair.side
            try:
                return await self._ask_one(side, body)
            except NotUp:
                self._pair.refused(side)
                refused += 1
                if loop.time() >= until:
                    raise
                if refused % len(self._pair.sides) == 0 and not self._turn:
                    await asyncio.sleep(_BETWEEN_TRIES_S)
            except EngineFault:
                self._pair.failed(side)
                self._faults += 1
                if self._faults >= _MOST_FAULTS:
                    raise
                self._pair.counts["asked_again"] += 1
            if self._turn:
                await self._turn.anew(until)

    async def _ask_one(self, side: _Side, body: "Sequence[bytes]") -> EngineConnection:
        """Ask this engine once. Raises NotUp, EngineFault."""
        self._asked += 1  # an engine that lives after all may still have the id
        name = self._id if self._asked == 1 else f"{self._id}-{self._asked}"
        answer = Answer(self._pair.engines, side.model, self._path, body, name, hold=0, begun=self._begun)
        self._side, self._connection = side, None
        side.enter()
        try:
            connection = await answer.__aenter__()
            self._answer = answer
            if connection.answer.status >= 500 and not await side.lives():
                raise EngineFault(str(connection.answer.status))
            await connection.begins()
        except BaseException:
            await self._leave()
            raise
        return connection

    def _begun(self, connection: EngineConnection) -> None:
        assert self._side
        if self._connection:  # one that was kept, which its engine closed just then
            self._side.open.discard(self._connection)
        self._side.open.add(connection)
        self._connection = connection

    async def _leave(self) -> None:
        (side, self._side), (answer, self._answer) = (self._side, None), (self._answer, None)
        if side:
            side.leave(self._connection)
        if answer:
            await answer.__aexit__(None, None, None)

    # ---- passing on

    async def pass_on(self, client: ClientConnection, head: bytes, framed: bool, count: "TokenCount | None") -> None:
        """Like EngineConnection.pass_on. Raises EngineFault, whose message says why no engine goes on."""
        if not self._body:
            await self._pass_as_it_is(client, head, framed, count)
            return
        try:
            async for told in self._events():
                part = in_chunk(told) if framed and told else told
                client.write(head + part)
                head = b""
                self.passed += len(told)
                await client.drained()
            if framed:
                client.write(LAST_CHUNK)
        finally:
            if count:
                count.report(self._story.taken, self._story.given)
        if self._side:
            with suppress(EngineFault):  # so that the connection can be used again
                while self._connection and await self._connection.part():
                    pass

    async def _pass_as_it_is(
        self, client: ClientConnection, head: bytes, framed: bool, count: "TokenCount | None"
    ) -> None:
        assert self._connection
        try:
            await self._connection.pass_on(client, head, framed, count)
        except EngineFault:
            if self._side:
                self._pair.failed(self._side)
            self._pair.counts["not_continued"] += 1
            raise NotContinued(self._story.broken) from None
        finally:
            self.passed = self._connection.passed

    async def _events(self) -> "AsyncIterator[bytes]":
        """The events for the client, until the last one. Raises EngineFault."""
        story = self._story
        while not story.done:
            assert self._connection
            ended: EngineFault | EngineSays | None = None
            try:
                part = await self._next_part(self._connection)
                told, ended = story.take(part), story.fault
                if not part:
                    ended = EngineFault("unfinished")
            except EngineFault as error:
                told, ended = b"", error
            self._keep()
            if told:
                yield told
            if ended and (told := await self._go_on_after(ended)):
                yield told

    async def _next_part(self, connection: EngineConnection) -> bytes:
        """Wait for the next part. An engine whose streams all wait for too long counts as stuck. Raises EngineFault."""
        assert self._side
        waited_for = self._side.waited_for
        if self._story.runs:
            waited_for.add(connection)
        try:
            return await connection.part()
        finally:
            waited_for.discard(connection)

    async def _go_on_after(self, fault: "EngineFault | EngineSays") -> bytes:
        """Have another engine go on. Returns the last events instead if none has to. Raises EngineFault."""
        story, pair, side = self._story, self._pair, self._side
        assert side
        if isinstance(fault, EngineSays) and (not fault.ours or await side.lives()):
            story.done = True
            return fault.event + b"data: [DONE]\n\n"
        pair.failed(side)
        await self._leave()
        if (left := story.ends_here()) is not None:
            return left
        self._faults = self._faults + 1 if story.given == self._given else 1
        self._given = story.given
        try:
            if self._faults > _MOST_FAULTS:
                raise NotContinued("one engine after another ended with it")
            body = story.ask_again(self._body[0] if self._body else b"")
            until = asyncio.get_running_loop().time() + pair.hold
            if self._turn:
                await self._turn.anew(until)
            connection = await self._ask([body], until)
            if connection.answer.status != 200:
                raise NotContinued(f"the other engine answered {connection.answer.status}")
        except (NotUp, EngineFault, Busy, TurnEnded) as error:
            pair.counts["not_continued"] += 1
            raise error if isinstance(error, NotContinued) else NotContinued(_why(error)) from None
        pair.counts["continued"] += 1
        return b""

    def _keep(self) -> None:
        """Keep what is needed to ask for the rest, or nothing if there is no room for all of it."""
        story, size = self._story, len(self._body[0]) + self._story.size if self._body else 0
        if story.broken or not self._pair.room.take(size - self._kept):
            story.give_up("too much is kept for other streams")
            self._body = [b""] if self._body else ()
            size = 0
            self._pair.room.give_back(self._kept)
            self._kept = 0
        self._kept = size


def _why(error: Exception) -> str:
    if isinstance(error, TurnEnded):
        return "its turn ended"
    return "the other engine broke off as well" if isinstance(error, EngineFault) else "no engine of it is up"


def pairs_of(settings: GatewaySettings, engines: Engines, turns: Turns) -> "dict[str, Pair]":
    """The pairs by the names of models."""
    room = Room()
    return {
        name: Pair(model, engines, turns, room, settings.limits.hold)
        for name, model in settings.models.items()
        if model.standby
    }


_RESULTS: Mapping[str, str] = {
    "asked_again": "a request without a first byte went to the other engine",
    "continued": "the other engine went on with a stream",
    "not_continued": "a stream ended with an error event",
}


def lines(pairs: "Mapping[str, Pair]") -> Iterable[str]:
    """The metrics for Prometheus; none where no model has two engines."""
    if not pairs:
        return
    states = [({"model": name, "state": pair.side.name}, 1) for name, pair in pairs.items() if len(pair.sides) > 1]
    yield from family("standby_state", "gauge", "1 for the engine that answers now, first or second.", states)
    failures = [
        ({"model": name, "engine": side.name}, side.failures) for name, pair in pairs.items() for side in pair.sides
    ]
    yield from family("standby_failures_total", "counter", "How often an engine let requests down.", failures)
    results = [
        ({"model": name, "result": result}, pair.counts[result]) for name, pair in pairs.items() for result in _RESULTS
    ]
    meaning = "; ".join(f"{result}: {what}" for result, what in _RESULTS.items()) + "."
    yield from family("standby_taken_over_total", "counter", meaning, results)
