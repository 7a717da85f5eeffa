"""A stub of an engine and a client of it, each a process of its own: bytes that were made before, and no parser.

python -m bench.streams stub SOCKET TOKENS SECONDS     python -m bench.streams client SOCKET REQUESTS SECONDS
"""

import asyncio
import json
import random
import ssl
import sys
import time
from asyncio import StreamReader, StreamWriter

# A token's event, as long as vLLM's.
_EVENT = b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1795443982,"model":"tiny","choices"'
_EVENT += b':[{"index":0,"text":" word","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":null}]}\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK = b"%x\r\n%s\r\n" % (len(_EVENT), _EVENT)
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_BODY = b'{"model":"tiny","prompt":"One two three","max_tokens":64,"stream":true}'
KEY = "wh-bench0123456789abcdefghij"


class Stub:
    """Every stream gets a token at once, and then one with each tick, all of them together, as an engine's steps do."""

    def __init__(self, tokens: int, pause: float) -> None:
        self._tokens, self._pause = tokens, pause
        self._open: dict[StreamWriter, int] = {}

    async def serve(self, place: str) -> None:
        server = await asyncio.start_unix_server(self._begin, place, backlog=512)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        async with server:
            await self._tick()

    async def _begin(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length[15:]))
                writer.write(_HEAD + _CHUNK)
                self._open[writer] = 1
        except asyncio.IncompleteReadError:
            self._open.pop(writer, None)
            writer.close()

    async def _tick(self) -> None:
        due = time.monotonic()
        while True:
            due += self._pause
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            for writer, sent in list(self._open.items()):
                if sent < self._tokens:
                    writer.write(_CHUNK)
                    self._open[writer] = sent + 1
                else:
                    writer.write(_END)
                    del self._open[writer]


class Client:
    """Streams that begin one after so many seconds, whether those before have ended or not, each at any moment of its
    time: evenly, the same share of them would begin in a step of the engine, in one run none and in another an eighth.
    place: a socket, or the port of a gateway with TLS and the certificate that it has to have.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        port, _, authority = place.partition(":")
        self._port = int(port) if authority else 0
        self._tls = ssl.create_default_context(cafile=authority) if authority else None
        lines = ["POST /v1/completions HTTP/1.1", "Host: bench", f"Authorization: Bearer {KEY}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(_BODY)}", "Connection: close"]
        self._request = "\r\n".join([*lines, "", ""]).encode() + _BODY
        self.first: list[float] = []
        self.gaps: list[float] = []
        self.tokens = self.broken = 0

    async def run(self, requests: int, pause: float) -> dict[str, object]:
        began = time.monotonic()
        moments = random.Random(1)  # the same for all ways
        await asyncio.gather(*(self._stream((number + moments.random()) * pause) for number in range(requests)))
        seconds = time.monotonic() - began
        cpu = time.process_time()
        found = {"first": self.first, "tokens": self.tokens, "broken": self.broken}
        return {**found, "gaps": self.gaps, "seconds": seconds, "cpu": cpu}

    async def _stream(self, wait: float) -> None:
        await asyncio.sleep(wait)
        began = time.monotonic()
        if self._tls:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
        else:
            reader, writer = await asyncio.open_unix_connection(self._place)
        writer.write(self._request)
        first, tail, last = True, b"", 0.0
        while not tail.endswith(b"0\r\n\r\n") and (part := await reader.read(65536)):
            self.tokens += part.count(b"data: {")
            if first and b"data: {" in part:
                self.first.append(time.monotonic() - began)
                first = False
            now = time.monotonic()
            if last:
                self.gaps.append(now - last)
            last = now
            tail = (tail + part)[-20:]
        self.broken += not tail.endswith(b"0\r\n\r\n")
        writer.close()


if __name__ == "__main__":
    what, place, *numbers = sys.argv[1:]
    if what == "stub":
        asyncio.run(Stub(int(numbers[0]), float(numbers[1])).serve(place))
    else:
        sys.stdout.write(json.dumps(asyncio.run(Client(place).run(int(numbers[0]), float(numbers[1])))))
