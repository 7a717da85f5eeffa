# Part of the program that `winhost serve` sends: requests to the engines and the gateway of this machine.
"""Each request has a connection of its own and a time limit. This part has to parse with Python 3.8."""

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

MAX_BYTES = 4_000_000  # that are read of an answer
MAX_SHOWN = 2000  # characters of an answer that are returned
CHECK_PAUSE_S = 0.5
CONNECTION_ERRORS = (OSError, http.client.HTTPException)
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


def open_connection(endpoint: State, within: float) -> http.client.HTTPConnection:
    """Return a connection. endpoint: {socket}, or {address, port, tls} of this machine's gateway, whose process was
    checked before.
    """
    if "socket" in endpoint:
        return SocketConnection(endpoint["socket"], within)
    return gateway_connection(endpoint["address"], endpoint["port"], endpoint["tls"], within)


def send_request(to: http.client.HTTPConnection, path: str, body: Any, key: str | None) -> http.client.HTTPResponse:
    """Send a GET request, or a POST request if there is a body."""
    headers = {"Connection": "close", **({"Authorization": "Bearer " + key} if key else {})}
    if body is None:
        to.request("GET", path, headers=headers)
    else:
        to.request("POST", path, json.dumps(body).encode("ascii"), {**headers, "Content-Type": "application/json"})
    return to.getresponse()


def fetch(
    endpoint: State, path: str, body: Any = None, key: str | None = None, within: float = 30.0
) -> tuple[int, str]:
    """Return the status and the body of an answer. Raises one of CONNECTION_ERRORS."""
    to = open_connection(endpoint, within)
    try:
        answer = send_request(to, path, body, key)
        return answer.status, answer.read(MAX_BYTES).decode("utf-8", "replace")
    finally:
        to.close()


def time_request(
    endpoint: State, path: str, body: Any, key: str | None, within: float, hopeless: Callable[[], bool] | None = None
) -> State:
    """Return a completion and its duration; for a stream also its number of events, and the time of its first text.

    hopeless: called until the answer begins; the wait ends once it returns True.
    """
    began = time.monotonic()
    found: State = {"status": None, "first": None, "seconds": 0.0, "events": 0, "tokens": None, "whole": False}
    found.update(text="", why=None)
    to = open_connection(endpoint, within)
    try:
        with cancel_if(to, hopeless):
            answer = send_request(to, path, body, key)
        found["status"] = answer.status
        if answer.getheader("Content-Type", "").startswith("text/event-stream"):
            for event in events(answer, began + within):
                add_event(found, event, time.monotonic() - began)
        else:
            text = answer.read(MAX_BYTES).decode("utf-8", "replace")
            found.update(text=text[:MAX_SHOWN], tokens=count_tokens(text), whole=True)
    except CONNECTION_ERRORS as error:
        found["why"] = type(error).__name__ + ": " + str(error)[:200]
    finally:
        to.close()
    found["seconds"] = round(time.monotonic() - began, 4)
    return found


@contextmanager
def cancel_if(to: http.client.HTTPConnection, hopeless: Callable[[], bool] | None) -> Iterator[None]:
    """Close the connection once `hopeless` returns True. A request then raises one of CONNECTION_ERRORS."""
    if hopeless is None:
        yield
        return
    to.connect()
    ended, is_hopeless = threading.Event(), hopeless

    def watch() -> None:
        while not ended.wait(CHECK_PAUSE_S):
            if is_hopeless():
                # Close the TCP connection, not TLS, which would wait for the other side.
                socket.socket.shutdown(to.sock, socket.SHUT_RDWR)
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def events(answer: http.client.HTTPResponse, deadline: float) -> Iterator[str]:
    """Yield the data of each event. Raises TimeoutError."""
    received = 0
    for line in iter(answer.readline, b""):
        received += len(line)
        if time.monotonic() > deadline or received > MAX_BYTES:
            raise TimeoutError("the stream does not end")
        if line.startswith(b"data:"):
            yield line[5:].decode("utf-8", "replace").strip()


def add_event(found: State, event: str, seconds: float) -> None:
    if event == "[DONE]":
        found["whole"] = True
        return
    found["events"] += 1
    event_data = parse_object(event)
    if event_data.get("error"):
        found["why"] = event[:MAX_SHOWN]
    text = "".join(str(each.get("text") or "") for each in listed_choices(event_data))
    if text and found["first"] is None:
        found["first"] = round(seconds, 4)
    found["text"] = (found["text"] + text)[:MAX_SHOWN]
    found["tokens"] = count_tokens(event) or found["tokens"]


def listed_choices(event_data: State) -> list[State]:
    listed = event_data.get("choices")
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def parse_object(text: str) -> State:
    """Parse a JSON object. Return an empty one for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def count_tokens(text: str) -> int | None:
    usage = parse_object(text).get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def sum_metrics(text: str, names: dict[str, str]) -> list[State]:
    """Sum metrics by model. names: the names of metrics, and the names of the sums; the label `state` is added to the
    latter: `turn:asleep`.
    """
    sums: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        found = SAMPLE.fullmatch(line)
        if found and found[1] in names:
            model, state = MODEL.search(found[2] or ""), STATE.search(found[2] or "")
            sum_key = names[found[1]] + (f":{state[1]}" if state else ""), model[1][:255] if model else ""
            try:
                sums[sum_key] = sums.get(sum_key, 0.0) + float(found[3])
            except ValueError:
                continue
    listed = [{"name": name, "model": model, "value": value} for (name, model), value in sorted(sums.items())]
    return [each for each in listed if abs(each["value"]) < 1e18][:1000]  # type: ignore[arg-type]  # no NaN either
