"""The gateway of a simulated Linux, as clients reach it: a stand-in answers by HTTP, and says that it is one."""

import json
import re
import socket
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from threading import Thread
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.serving_answers import STAND_IN, SimulatedServing

_MOST = 1_000_000
_PATHS = {"/v1/completions": "text", "/v1/chat/completions": "message"}


@dataclass
class ServedEndpoint:
    """Part of a Linux."""

    linux: Linux

    def connect(self, address: str, port: int) -> socket.socket | None:
        """A connection from within that Linux; None where nothing listens."""
        if not self.linux.part(SimulatedServing).listens(address, port):
            return None
        ours, theirs = socket.socketpair()
        Thread(target=self._serve, args=(theirs,), daemon=True).start()
        return ours

    def _serve(self, connection: socket.socket) -> None:
        serving = self.linux.part(SimulatedServing)

        class Gateway(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(min(length, _MOST)) or b"{}")
                key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                status = serving.status_of(self.path, body, key)
                if status == 200 and body.get("stream") is True and _PATHS[self.path] == "message":
                    _stream(self, body)
                else:
                    _answer(self, status, _said(self.path, body) if status == 200 else _error(status))

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base has it
                """Nobody reads it."""

        with connection:
            Gateway(connection, ("127.0.0.1", 0), None)  # type: ignore[arg-type]  # it asks no server


def _answer(handler: BaseHTTPRequestHandler, status: int, document: Mapping[str, Any]) -> None:
    content = json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def _stream(handler: BaseHTTPRequestHandler, body: Mapping[str, Any]) -> None:
    """Word by word, as server-sent events that end with the connection."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()
    words = re.findall(r"\s*\S+", STAND_IN)
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    choices: list[list[dict[str, Any]]] = [[{"index": 0, "delta": each, "finish_reason": None}] for each in deltas]
    choices[-1][0]["finish_reason"] = "stop"
    events: list[dict[str, Any]] = [{"model": body["model"], "choices": each} for each in choices]
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": 1, "completion_tokens": len(words), "total_tokens": len(words) + 1}
        events.append({"model": body["model"], "choices": [], "usage": usage})
    for event in (*map(json.dumps, events), "[DONE]"):
        handler.wfile.write(f"data: {event}\n\n".encode())


def _said(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    told: Any = STAND_IN if _PATHS[path] == "text" else {"role": "assistant", "content": STAND_IN}
    choice = {"index": 0, _PATHS[path]: told, "finish_reason": "length"}
    return {"object": "text_completion", "model": body["model"], "choices": [choice]}


def _error(status: int) -> dict[str, Any]:
    return {"error": {"message": f"a stand-in of the simulator refuses this: {status}"}}
