"""Answers as clients get them: the gateway's own and those of engines. A head goes out with the first part of its
body.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from .answer_framing import AnswerFraming, in_chunk
from .connections import Request
from .engine_control import EngineFault

_PASSED = tuple((each, each.lower()) for each in ("Content-Type", "Content-Encoding", "Retry-After"))  # of an engine's
_PART_BYTES = 65_536
_EVENTS = "text/event-stream"
_REASONS = {int(each): each.phrase for each in HTTPStatus}


@lru_cache(maxsize=1)  # to write it takes as long as the rest of a head
def _date(now: int) -> str:
    return formatdate(now, usegmt=True)


def _head(minor: int, status: int, headers: Mapping[str, str], kept: bool) -> bytes:
    text = f"HTTP/1.{minor} {status} {_REASONS.get(status, '')}\r\n"
    for name, value in headers.items():
        text += f"{name}: {value}\r\n"
    end = "\r\n\r\n" if kept else "\r\nConnection: close\r\n\r\n"
    return f"{text}Date: {_date(int(time.time()))}{end}".encode("latin-1")


@dataclass
class OwnAnswer:
    """An answer of the gateway itself. kept: another request may follow on the connection if the client wants that."""

    status: int
    body: bytes
    headers: dict[str, str]
    kept: bool = True

    @classmethod
    def json(cls, status: int, found: object, headers: Mapping[str, str]) -> "OwnAnswer":
        text = json.dumps(found).encode("ascii")
        return cls(status, text, {"Content-Type": "application/json; charset=utf-8", **headers})

    async def write_to(self, request: Request) -> bool:
        """Write the answer; True if its connection stays. A long body goes in parts, so that no stream waits for it."""
        head = request.head
        kept = self.kept and head.kept
        headers = {**self.headers, "Content-Length": str(len(self.body))}
        body = b"" if head.method == "HEAD" else self.body
        request.client.write(_head(head.minor, self.status, headers, kept) + body[:_PART_BYTES])
        for at in range(_PART_BYTES, len(body), _PART_BYTES):
            await request.client.drained()
            await asyncio.sleep(0)
            request.client.write(body[at : at + _PART_BYTES])
        return kept


class PassedAnswer:
    """The answer of an engine. head: as its client gets it; framed: the body goes in chunks; is_stream: it consists of
    events; kept: another request may follow on the connection.
    """

    def __init__(self, request: Request, answer: AnswerFraming, own: Mapping[str, str], last: bool) -> None:
        """own: headers of the gateway; last: the connection closes after this answer. Raises EngineFault."""
        # Other statuses are between engine and gateway; the client can do nothing about them.
        if not (200 <= answer.status < 300 or 400 <= answer.status < 600) or answer.status in (401, 403):
            raise EngineFault(str(answer.status))
        headers = {"Content-Type": "application/json", **own}
        for name, lower in _PASSED:
            if (value := answer.headers.get(lower)) is not None:
                if not value.isprintable():
                    raise EngineFault("header")
                headers[name] = value
        self._client = request.client
        self.status = answer.status
        self.framed = answer.length is None and request.head.minor == 1
        self.kept = request.head.kept and not last and (self.framed or answer.length is not None)
        self.is_stream = headers["Content-Type"].partition(";")[0].strip().lower() == _EVENTS
        if self.framed:
            headers["Transfer-Encoding"] = "chunked"
        elif answer.length is not None and answer.status != HTTPStatus.NO_CONTENT:
            headers["Content-Length"] = str(answer.length)
        self.head = _head(request.head.minor, answer.status, headers, self.kept)

    def break_off(self, message: str, code: str) -> None:
        """End the answer so that it cannot be taken for whole: the last chunk is missing, and a stream says why."""
        self.kept = False
        if self.is_stream:
            error = {"error": {"message": message, "type": "server_error", "code": code}}
            event = f"data: {json.dumps(error)}\n\n".encode("ascii")
            self._client.write(in_chunk(event) if self.framed else event)
        self._client.close()
