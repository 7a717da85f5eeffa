# Part of what `winhost serve` sends, requests to the engines and the gateway of this machine.
"""Each by a connection of its own, with a time limit for the whole of it. Python 3.8 can read it."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from winhost.agent.linux_ready import gateway_connection

if TYPE_CHECKING:  # Python 3.8 cannot say these
    from collections.abc import Callable, Iterator

    from winhost.agent.linux_agent import State

MOST_BYTES = 4_000_000  # of an answer that are read
SHOWN = 2000  # characters of an answer that are told
BETWEEN_LOOKS_S = 0.5
LOST = (OSError, http.client.HTTPException)
SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)")
MODEL = re.compile(r'\bmodel(?:_name)?="([^"]*)"')
STATE = re.compile(r'\bstate="([a-z-]{1,30})"')


class SocketConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str, within: float) -> None:
        super().__init__(host="engine", timeout=within)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def connection(endpoint: State, within: float) -> http.client.HTTPConnection:
    """endpoint: {socket}, or {address, port, tls} of this machine's own gateway, whose process was looked at before."""
    if "socket" in endpoint:
        return SocketConnection(endpoint["socket"], within)
    return gateway_connection(endpoint["address"], endpoint["port"], endpoint["tls"], within)


def request(to: http.client.HTTPConnection, path: str, body: Any, key: str | None) -> http.client.HTTPResponse:
    """GET, or POST where there is a body."""
    headers = {"Connection": "close", **({"Authorization": "Bearer " + key} if key else {})}
    if body is None:
        to.request("GET", path, headers=headers)
    else:
        to.request("POST", path, json.dumps(body).encode("ascii"), {**headers, "Content-Type": "application/json"})
    return to.getresponse()


def ask(endpoint: State, path: str, body: Any = None, key: str | None = None, within: float = 30.0) -> tuple[int, str]:
    """Status and body of an answer. Raises LOST."""
    to = connection(endpoint, within)
    try:
        answer = request(to, path, body, key)
        return answer.status, answer.read(MOST_BYTES).decode("utf-8", "replace")
    finally:
        to.close()


def timed(
    endpoint: State, path: str, body: Any, key: str | None, within: float, hopeless: Callable[[], bool] | None = None
) -> State:
    """Time a completion and return it; for a stream also its events, its first text, and its end.

    hopeless: asked again and again until the answer begins; it ends the wait.
    """
    began = time.monotonic()
    found: State = {"status": None, "first": None, "seconds": 0.0, "events": 0, "tokens": None, "whole": False}
    found.update(text="", why=None)
    to = connection(endpoint, within)
    try:
        with unless(to, hopeless):
            answer = request(to, path, body, key)
        found["status"] = answer.status
        if answer.getheader("Content-Type", "").startswith("text/event-stream"):
            for event in events(answer, began + within):
                take(found, event, time.monotonic() - began)
        else:
            text = answer.read(MOST_BYTES).decode("utf-8", "replace")
            found.update(text=text[:SHOWN], tokens=tokens_of(text), whole=True)
    except LOST as error:
        found["why"] = type(error).__name__ + ": " + str(error)[:200]
    finally:
        to.close()
    found["seconds"] = round(time.monotonic() - began, 4)
    return found


@contextmanager
def unless(to: http.client.HTTPConnection, hopeless: Callable[[], bool] | None) -> Iterator[None]:
    """Breaks the connection off, which is LOST then."""
    if hopeless is None:
        yield
        return
    to.connect()
    over, ask_it = threading.Event(), hopeless

    def look() -> None:
        while not over.wait(BETWEEN_LOOKS_S):
            if ask_it():
                # Not by TLS, which would have to be spoken to the end.
                socket.socket.shutdown(to.sock, socket.SHUT_RDWR)
                return

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def events(answer: http.client.HTTPResponse, until: float) -> Iterator[str]:
    """The data of each event."""
    heard = 0
    for line in iter(answer.readline, b""):
        heard += len(line)
        if time.monotonic() > until or heard > MOST_BYTES:
            raise TimeoutError("the stream does not end")
        if line.startswith(b"data:"):
            yield line[5:].decode("utf-8", "replace").strip()


def take(found: State, event: str, at: float) -> None:
    if event == "[DONE]":
        found["whole"] = True
        return
    found["events"] += 1
    said = parsed(event)
    if said.get("error"):
        found["why"] = event[:SHOWN]
    text = "".join(str(each.get("text") or "") for each in choices(said))
    if text and found["first"] is None:
        found["first"] = round(at, 4)
    found["text"] = (found["text"] + text)[:SHOWN]
    found["tokens"] = tokens_of(event) or found["tokens"]


def choices(said: State) -> list[State]:
    listed = said.get("choices")
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def parsed(text: str) -> State:
    """An object; of anything else an empty one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def tokens_of(text: str) -> int | None:
    usage = parsed(text).get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def samples(text: str, names: dict[str, str]) -> list[State]:
    """Sums of metrics, by what they are called here and by model. names: of the metrics, and what they are called; a
    state is joined to that: `turn:asleep`.
    """
    sums: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        found = SAMPLE.fullmatch(line)
        if found and found[1] in names:
            model, state = MODEL.search(found[2] or ""), STATE.search(found[2] or "")
            at = names[found[1]] + (f":{state[1]}" if state else ""), model[1][:255] if model else ""
            try:
                sums[at] = sums.get(at, 0.0) + float(found[3])
            except ValueError:
                continue
    listed = [{"name": name, "model": model, "value": value} for (name, model), value in sorted(sums.items())]
    return [each for each in listed if abs(each["value"]) < 1e18][:1000]  # type: ignore[arg-type]  # no NaN either
