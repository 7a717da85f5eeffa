"""An engine's answer on its way to a client. It goes past aiohttp, which is only told that it has ended: so its head
comes in one write with its first part, and its end with the last one.
"""

import json
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from aiohttp import web

from .answer_framing import AnswerFraming, in_chunk
from .connections import ClientConnection
from .engine_control import EngineFault

_PASSED = ("Content-Type", "Content-Encoding", "Retry-After")  # of an engine's headers
_EVENTS = "text/event-stream"
_REASONS = {int(each): each.phrase for each in HTTPStatus}


@lru_cache(maxsize=1)  # to write it takes as long as the rest of a head
def _date(now: int) -> str:
    return formatdate(now, usegmt=True)


class PassedAnswer(web.StreamResponse):
    """head: of it, as its client gets it; framed: its body goes in chunks; is_stream: it consists of events."""

    def __init__(
        self,
        request: web.BaseRequest,
        client: ClientConnection,
        answer: AnswerFraming,
        own: Mapping[str, str],
        last: bool,
    ) -> None:
        """own: headers of the gateway; last: the connection closes after it. Raises EngineFault."""
        super().__init__(status=answer.status)
        # The others are between engine and gateway, and nothing that the client can mend.
        if not (200 <= answer.status < 300 or 400 <= answer.status < 600) or answer.status in (401, 403):
            raise EngineFault(str(answer.status))
        passed = {name: answer.headers[name.lower()] for name in _PASSED if name.lower() in answer.headers}
        if not all(value.isprintable() for value in passed.values()):
            raise EngineFault("header")
        self._client = client
        self.framed = answer.length is None and request.version >= (1, 1)
        self._kept = request.keep_alive and not last and (self.framed or answer.length is not None)
        headers = {"Content-Type": "application/json", **own, **passed, "Date": _date(int(time.time()))}
        self.is_stream = headers["Content-Type"].partition(";")[0].strip().lower() == _EVENTS
        if self.framed:
            headers["Transfer-Encoding"] = "chunked"
        elif answer.length is not None and answer.status != HTTPStatus.NO_CONTENT:
            headers["Content-Length"] = str(answer.length)
        if not self._kept:
            headers["Connection"] = "close"
        elif request.version < (1, 1):
            headers["Connection"] = "keep-alive"
        first = f"HTTP/1.{request.version.minor} {answer.status} {_REASONS.get(answer.status, '')}"
        lines = [first, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.head = "\r\n".join(lines).encode("latin-1")

    def break_off(self, message: str, code: str) -> None:
        """Never ends it as if it were whole: its last chunk does not come, and a stream says why."""
        if self.is_stream:
            error = {"error": {"message": message, "type": "server_error", "code": code}}
            event = f"data: {json.dumps(error)}\n\n".encode("ascii")
            self._client.write(in_chunk(event) if self.framed else event)
        self._client.close()

    # ---- what aiohttp asks when it has ended

    @property
    def keep_alive(self) -> bool:
        return self._kept

    async def prepare(self, request: web.BaseRequest) -> Any:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None
