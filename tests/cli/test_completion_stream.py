"""Tests of one answer of a gateway over real HTTP: its stream, and the errors for broken answers."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.processes import PATIENCE_S
from winhost.cli.endpoint.chat import ChatClient, ServiceUnavailable, _escape_control_characters
from winhost.model.errors import WinhostError
from winhost.web.server import run_server as running

KEY = "key-of-alice-that-nobody-guesses"


def event(**said: Any) -> bytes:
    return f"data: {json.dumps(said)}\n\n".encode()


def delta(text: str, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None, **more}])


WHOLE = (
    delta("")
    + delta("Hel")
    + b": a comment\n\n"
    + delta("lo", finish_reason="stop")
    + event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2})
    + b"data: [DONE]\n\n"
)


@contextmanager
def gateway(status: int, body: bytes, **headers: str) -> Iterator[tuple[ChatClient, list[dict[str, Any]]]]:
    """Start a gateway that answers each request with these values. Yield a client of it, and the requests."""
    requests: list[dict[str, Any]] = []

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append({"path": self.path, "key": self.headers["Authorization"], **sent})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(body), 7):  # no event comes in one piece
                part = body[at : at + 7]
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            if "cut" not in headers:
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server, running(server):

        def connect(within: float) -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
            connection.sock = socket.create_connection(("127.0.0.1", server.server_port), PATIENCE_S)
            return connection

        yield ChatClient("llm-01", "org/m", connect, KEY, "env:ALICE", 5), requests


HELLO = [{"role": "user", "content": "Say hello"}]


def test_an_answer_comes_in_pieces() -> None:
    with gateway(200, WHOLE) as (client, requests):
        answer = client.stream(HELLO)
        assert [*answer.pieces] == ["Hel", "lo"]
    assert (answer.finish_reason, answer.prompt_tokens, answer.completion_tokens) == ("stop", 3, 2)
    (sent,) = requests
    assert (sent["path"], sent["key"], sent["max_tokens"]) == ("/v1/chat/completions", f"Bearer {KEY}", 5)
    assert (sent["messages"], sent["stream"]) == (HELLO, True)


def refusal(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "code": "x"}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "code", "says"),
    [
        (401, refusal(f"no such key {KEY}"), "ApiKeyRefused", "does not accept the API key env:ALICE: no such key ***"),
        (429, refusal("3 requests a minute"), "RateLimited", "3 requests a minute"),
        (503, refusal("All places are taken."), "NotNow", "All places are taken"),
        (404, refusal("no model"), "NotCompleted", "refused the request (404): no model"),
        (502, b"<html>\x1b[2J", "NotCompleted", "HTTP status 502"),
        (200, delta("Hel") + event(error={"message": "turn-ended\x1b[2J"}), "BrokenOff", "turn-ended\\x1b[2J"),
        (200, delta("Hel"), "BrokenOff", "the stream ended before the answer was complete"),
        (200, delta("Hel") + b"data: nonsense\n\n", "BrokenOff", "not a part of a completion"),
        (200, b"data: [1]\n\n", "BrokenOff", "not a part of a completion"),
    ],
)
def test_an_answer_that_is_none_is_told_without_the_key(status: int, body: bytes, code: str, says: str) -> None:
    with gateway(status, body, Retry_After="7") as (client, _), pytest.raises(WinhostError) as caught:
        "".join(client.stream(HELLO).pieces)
    assert (caught.value.code, says in caught.value.what, KEY in str(vars(caught.value))) == (code, True, False)
    assert int(caught.value.exit_code) == 1
    if isinstance(caught.value, ServiceUnavailable):
        assert caught.value.retry_after == 7


def test_a_connection_that_breaks_is_told_after_what_came() -> None:
    got: list[str] = []
    with gateway(200, delta("Hel"), cut="1") as (client, _), pytest.raises(WinhostError, match="broke off"):
        got.extend(client.stream(HELLO).pieces)
    with gateway(200, delta("Hel"), cut="1") as (client, _):
        assert next(client.stream(HELLO).pieces) == "Hel"


def test_what_a_model_says_moves_no_cursor() -> None:
    assert _escape_control_characters("a\x1b[2J\r\u202e\x9b") == "a\\x1b[2J\\r\\u202e\\x9b"
    same = "two\nlines\tand \u3000spaces, \u00e9, \u200d joined \U0001f469\u200d\U0001f4bb"
    assert _escape_control_characters(same) == same
