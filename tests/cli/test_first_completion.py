"""The completion at the end of a run: waiting for a turn, answers that are no completion, and a key that is
never shown.
"""

import re
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from tests.serving.test_deployed import DEPLOYED
from winhost.cli.up import first_completion
from winhost.cli.up.first_completion import completion_checks
from winhost.connect.tunnel import SshRoute
from winhost.core.steps import DesiredResource
from winhost.engine.progress import ProgressEvent
from winhost.model.errors import WinhostError
from winhost.serving.deployed import PATH

KEY = "key-of-alice-that-nobody-guesses"
TEXT = DEPLOYED.text()
GOOD = '{"choices": [{"text": " four\\u001b[2J"}]}'


class Session:
    """A session whose tunnel gives one of these answers to each connection. asked: the requests."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers = list(answers)
        self.asked: list[bytes] = []
        self.places: list[tuple[str, int]] = []

    def interruptible(self) -> AbstractContextManager[None]:
        return nullcontext()

    def ssh_route(self) -> SshRoute | None:
        raise WinhostError("Gone", what="the session is over")

    def tunnel(self, address: str, port: int) -> socket.socket:
        self.places.append((address, port))
        ours, theirs = socket.socketpair()
        Thread(target=self._answer, args=(theirs, *self.answers.pop(0)), daemon=True).start()
        return ours

    def _answer(self, to: socket.socket, status: int, body: str) -> None:
        with to:
            self.asked.append(whole_request(to))
            head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n"
            to.sendall(head.encode() + body.encode() if status else b"nonsense\r\n")


def whole_request(to: socket.socket) -> bytes:
    """Read a request with its body: closing the connection before would break the client's pipe."""
    said = b""
    while part := to.recv(65536):
        said += part
        head, _, body = said.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        if length and len(body) >= int(length[1]):
            break
    return said


def asked(
    session: Session, monkeypatch: pytest.MonkeyPatch, text: str = TEXT, stop: Callable[[], bool] = lambda: False
) -> tuple[Any, list[ProgressEvent]]:
    monkeypatch.setenv("ALICE", KEY)
    monkeypatch.setattr(first_completion, "_PAUSE_S", 0)
    file = DesiredResource("LinuxFile", {"path": PATH}, {"text": text}, "What is served", "")
    plan = SimpleNamespace(request=SimpleNamespace(asks_with="env:ALICE"))
    record: Any = SimpleNamespace(host="llm-01", plan=plan, stages=[SimpleNamespace(desired=(file,))])
    events: list[ProgressEvent] = []
    made: Any = session
    return completion_checks(events.append, stop)(record, made), events


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ((401, f'{{"error": {{"message": "no such key {KEY}"}}}}'), "401: no such key ***"),
        ((200, "{}"), "an answer that is no completion: {}"),
        ((502, "<html>"), "502: <html>"),
        ((0, ""), "no answer: BadStatusLine: nonsense"),
    ],
)
def test_what_is_no_completion_is_found_and_told_without_the_key(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str], found: str
) -> None:
    ((check,), events) = asked(Session(answer), monkeypatch)
    assert (check.holds, check.desired, str(check.found).strip()) == (False, 200, found)
    assert not [event for event in events if KEY in event.text or event.kind == "done"]


def test_a_completion_is_told_without_what_moves_a_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session((200, GOOD))
    ((check,), events) = asked(session, monkeypatch)
    assert (check.holds, check.found, session.places) == (True, 200, [("127.0.0.1", 8443)])
    assert f"Authorization: Bearer {KEY}".encode() in session.asked[0]
    assert events[-1].text.startswith('A completion of org/model, from this computer: "four')
    assert "\x1b" not in events[-1].text


def test_a_model_that_takes_turns_is_waited_for_until_somebody_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    sharing = TEXT.replace('"turns": false', '"turns": true')
    assert sharing != TEXT
    ((check,), events) = asked(Session((503, "{}"), (503, "{}"), (200, GOOD)), monkeypatch, sharing)
    assert (check.holds, [event.kind for event in events]) == (True, ["at", "waiting", "done"])
    ((check,), _) = asked(Session((503, "{}")), monkeypatch, sharing, stop=lambda: True)
    assert not check.holds
    ((check,), _) = asked(Session((503, "{}")), monkeypatch)
    assert not check.holds
