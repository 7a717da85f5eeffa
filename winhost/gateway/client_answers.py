"""Answers to clients: the gateway's own, and those of engines. A head is sent together with the first part of
its body.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from .answer_framing import AnswerFraming, encode_chunk
from .connections import Request
from .engine_control import EngineFault

_RELAYED_HEADERS = tuple(
    (each, each.lower()) for each in ("Content-Type", "Content-Encoding", "Retry-After")
)  # headers of an engine that its client gets
_PART_BYTES = 65_536
_EVENT_STREAM = "text/event-stream"
_REASONS = {int(each): each.phrase for each in HTTPStatus}


@lru_cache(maxsize=1)  # writing it takes as long as the rest of a head
def _date(now: int) -> str:
    return formatdate(now, usegmt=True)


def _head(minor: int, status: int, headers: Mapping[str, str], keep_alive: bool) -> bytes:
    text = f"HTTP/1.{minor} {status} {_REASONS.get(status, '')}\r\n"
    for name, value in headers.items():
        text += f"{name}: {value}\r\n"
    end = "\r\n\r\n" if keep_alive else "\r\nConnection: close\r\n\r\n"
    return f"{text}Date: {_date(int(time.time()))}{end}".encode("latin-1")


@dataclass
class OwnAnswer:
    """An answer of the gateway itself. keep_alive: another request may follow on the connection if the client wants
    that.
    """

    status: int
    body: bytes
    headers: dict[str, str]
    keep_alive: bool = True

    @classmethod
    def json(cls, status: int, content: object, headers: Mapping[str, str]) -> "OwnAnswer":
        text = json.dumps(content).encode("ascii")
        return cls(status, text, {"Content-Type": "application/json; charset=utf-8", **headers})

    async def write_to(self, request: Request) -> bool:
        """Write the answer. Return whether another request may follow on its connection. A long body is written in
        parts, so that no stream waits for it.
        """
        head = request.head
        keep_alive = self.keep_alive and head.keep_alive
        headers = {**self.headers, "Content-Length": str(len(self.body))}
        body = b"" if head.method == "HEAD" else self.body
        request.client.write(_head(head.minor, self.status, headers, keep_alive) + body[:_PART_BYTES])
        for offset in range(_PART_BYTES, len(body), _PART_BYTES):
            await request.client.drain()
            await asyncio.sleep(0)
            request.client.write(body[offset : offset + _PART_BYTES])
        return keep_alive


class RelayedAnswer:
    """The answer of an engine. head: as its client gets it; framed: the body goes in chunks; is_stream: it consists of
    events; keep_alive: another request may follow on the connection.
    """

    def __init__(
        self, request: Request, answer: AnswerFraming, gateway_headers: Mapping[str, str], is_last: bool
    ) -> None:
        """gateway_headers: added to those of the engine; is_last: the connection closes after this answer. Raises
        EngineFault.
        """
        # Other statuses concern the gateway's request, and not that of the client.
        if not (200 <= answer.status < 300 or 400 <= answer.status < 600) or answer.status in (401, 403):
            raise EngineFault(str(answer.status))
        headers = {"Content-Type": "application/json", **gateway_headers}
        for name, lower in _RELAYED_HEADERS:
            if (value := answer.headers.get(lower)) is not None:
                if not value.isprintable():
                    raise EngineFault("header")
                headers[name] = value
        self._client = request.client
        self.status = answer.status
        self.framed = answer.length is None and request.head.minor == 1
        self.keep_alive = request.head.keep_alive and not is_last and (self.framed or answer.length is not None)
        self.is_stream = headers["Content-Type"].partition(";")[0].strip().lower() == _EVENT_STREAM
        if self.framed:
            headers["Transfer-Encoding"] = "chunked"
        elif answer.length is not None and answer.status != HTTPStatus.NO_CONTENT:
            headers["Content-Length"] = str(answer.length)
        self.head = _head(request.head.minor, answer.status, headers, self.keep_alive)

    def break_off(self, message: str, code: str) -> None:
        """End the answer so that the client sees that it is incomplete: the last chunk is missing, and a stream ends
        with an error event.
        """
        self.keep_alive = False
        if self.is_stream:
            error = {"error": {"message": message, "type": "server_error", "code": code}}
            event = f"data: {json.dumps(error)}\n\n".encode("ascii")
            self._client.write(encode_chunk(event) if self.framed else event)
        self._client.close()
